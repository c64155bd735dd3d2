"""Remaining helpers of DDP, and what its documents take for granted."""

import threading
import time
from collections import OrderedDict
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rpc
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.utils.checkpoint import checkpoint

from conformance.api import oracle
from conformance.api.checking import MANY, WORLDS, check
from conformance.fixtures import models
from conformance.fixtures.observing import TINY_MIB, mean_of_all, mine, takes, trained, wrapped
from conformance.fixtures.rpc import remote_calls
from conformance.fixtures.training import gradients, numbers, parameters, private, whole
from conformance.ranks import caught

# -- DDP-166: parameters are not repaired


def train_apart(ctx):
    model = wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB)
    start = parameters(model)
    if ctx.rank == ctx.world - 1:
        for parameter in model.parameters():
            parameter.data.add_(50.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for iteration in range(3):
        trained(model, models.divisible(ctx.rank, iteration).to(ctx.device))
        optimizer.step()
    return start, parameters(model)


@check("DDP-166", worlds=MANY, beyond=False)
def test_a_replica_that_was_moved_apart_keeps_its_distance(ranks):
    *same, (start, moved) = ranks(train_apart)
    assert same == [same[0]] * len(same)
    assert same[0][0] == start, "they did not start equal"
    assert same[0][1] != start, "nothing was trained"
    assert moved == {name: [value + 50.0 for value in values] for name, values in same[0][1].items()}


# -- DDP-167: parameter by parameter


def by_parameter(ctx, model, **options):
    """``model`` under DDP in the Python-reducer mode: chosen by torch's compiler setting, or by asking the object."""
    from torch._dynamo import config

    with config.patch(optimize_ddp="python_reducer"):
        built = wrapped(ctx, model, **options)
    if not getattr(built, "_use_python_reducer", False):
        private(built, "_register_accum_grad_hook")()
    return built


def train_by_parameter(ctx):
    model = by_parameter(ctx, models.Parts("ab"))
    model.module.use = "a"  # b has no gradient, which disturbs nobody
    x = models.divisible(ctx.rank, 0).to(ctx.device)
    model.module(x).sum().backward()  # before any forward of the wrapper
    past = gradients(model)
    model.zero_grad(set_to_none=True)
    first = trained(model, x)
    with model.no_sync():
        local = trained(model, x)
    model(x).sum().backward()
    together = gradients(model)
    model.zero_grad(set_to_none=True)
    with model.no_sync():
        inside = model(x)
    (inside + model(x)).sum().backward()
    return past, first, local, together, gradients(model), trained(model, x)


@check("DDP-167", worlds=WORLDS, beyond=False)
def test_the_python_reducer_averages_each_gradient_and_rests_under_no_sync(ranks):
    def alone(members):
        module = models.Parts("ab")
        module.use = "a"
        for rank in members:
            module(models.divisible(rank, 0)).sum().backward()
        return {
            name: None if p.grad is None else (p.grad / len(members)).flatten().tolist()
            for name, p in module.named_parameters()
        }

    assert ranks(train_halves_by_parameter) == [{"weight": [40000.0]}] * ranks.world  # two of them overflow
    average = alone(range(ranks.world))
    for rank, (past, first, local, together, at_once, last) in enumerate(ranks(train_by_parameter)):
        assert past == first == last == average, f"rank {rank}"
        assert local == alone([rank]), f"rank {rank}"
        doubled = {
            name: None if values is None else [2 * value for value in values] for name, values in average.items()
        }
        assert together == doubled, f"rank {rank}: what accumulated inside and one more gradient were not averaged"
        assert at_once == doubled, f"rank {rank}: a backward through a forward inside and one outside was not averaged"


def part_a_backward_by_parameter(ctx):
    """Gradients of backwards through a forward inside and one outside, each of which uses a part of its own."""
    model, told = by_parameter(ctx, models.Parts("ab"), find_unused_parameters=True), []

    def forward(part, around):
        model.module.use = part
        with around():
            return model(models.divisible(ctx.rank, 0).to(ctx.device))

    for ways in ((nullcontext, model.no_sync), (model.no_sync, nullcontext)):
        model.zero_grad(set_to_none=True)
        outputs = [forward(part, around) for part, around in zip("ab", ways, strict=True)]
        sum(outputs).sum().backward()
        told.append(gradients(model))
    model.zero_grad(set_to_none=True)
    with model.no_sync():
        forward("a", nullcontext).sum().backward()
    return told, gradients(model)


@check("DDP-167", worlds=MANY)
def test_the_python_reducer_averages_what_a_forward_inside_alone_has_used_where_one_outside_goes_backward(ranks):
    batches = [models.divisible(rank, 0) for rank in range(ranks.world)]
    mean = numbers(oracle.averaged_gradients(models.Parts("ab"), batches, ranks.world).items())
    for rank, (told, inside) in enumerate(ranks(part_a_backward_by_parameter)):
        local = numbers(oracle.averaged_gradients(models.Parts("ab"), [batches[rank]], 1).items())
        assert told == [mean] * 2, f"rank {rank}"
        assert inside == {name: each if ".a." in name else None for name, each in local.items()}, f"rank {rank}"


class Nested(nn.Linear):
    """A layer whose gradients come in a backward inside the other, of which no output tells."""

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=True)


def cross_the_border_by_parameter(ctx):
    """Gradients of a backward inside whose forward ran outside, the other way round, and of one more outside; of a
    model that is recomputed the first two."""
    model, seen = by_parameter(ctx, models.scalar()), []
    outside = model(mine(ctx)).sum()
    with model.no_sync():
        seen.append(gradients_of(model, outside))
        inside = model(mine(ctx)).sum()
    outside = model(mine(ctx)).sum()
    seen += [gradients_of(model, loss) for loss in (inside, outside)]
    nested = by_parameter(ctx, Nested(1, 1))
    outside = nested(mine(ctx).requires_grad_()).sum()
    with nested.no_sync():
        seen.append(gradients_of(nested, outside))
        inside = nested(mine(ctx).requires_grad_()).sum()
    return [*seen, gradients_of(nested, inside)]


def gradients_of(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return model.module.weight.grad.item()


@check("DDP-074", worlds=MANY)
def test_where_the_forward_ran_counts_parameter_by_parameter_too(ranks):
    mean = mean_of_all(ranks.world)
    for rank, seen in enumerate(ranks(cross_the_border_by_parameter)):
        local = 12.0 * (rank + 1)
        assert seen == [mean, local, mean, mean, local], f"rank {rank}"


def drop_before_the_reducer(ctx):
    """A hook of the program's own takes the gradients of one weight away, as soon as they have come."""
    module, taken = models.Branches(), []

    def take(parameter):
        taken.append(parameter.grad.item())
        parameter.grad = None

    module.a.weight.register_post_accumulate_grad_hook(take)
    model = by_parameter(ctx, module)
    return [trained(model, mine(ctx), with_b=True) for _ in range(2)], taken


@check("DDP-167", worlds=MANY, beyond=False)
def test_the_python_reducer_passes_over_a_gradient_that_the_program_has_taken_away(ranks):
    expected = [{"a.weight": None, "b.weight": [mean_of_all(ranks.world)]}] * 2
    for rank, (seen, taken) in enumerate(ranks(drop_before_the_reducer)):
        assert (seen, taken) == (expected, [12.0 * (rank + 1)] * 2), f"rank {rank}"


def delay_by_parameter(ctx):
    """The gradients of a model of which one layer is delayed; or the refusal."""
    takes(ctx, "delay_all_reduce_named_params")
    module, told = models.Sum(2).to(ctx.device), []
    late = {"delay_all_reduce_named_params": list(module.layers[1].named_parameters(prefix="layers.1"))}

    def use():
        model = by_parameter(ctx, module, param_to_hook_all_reduce=module.layers[0].weight, **late)
        told.extend(trained(model, models.divisible(ctx.rank, n).to(ctx.device)) for n in range(2))

    return caught(use), told


@check("DDP-167", worlds=MANY, beyond=False)
def test_the_python_reducer_averages_delayed_gradients_or_refuses_them(ranks):
    batches = [[models.divisible(rank, n) for rank in range(ranks.world)] for n in range(2)]
    means = [numbers(oracle.averaged_gradients(models.Sum(2), each, ranks.world).items()) for each in batches]
    for rank, (error, told) in enumerate(ranks(delay_by_parameter)):
        if error is None:
            assert told == means, f"rank {rank} goes on with local gradients"
        else:
            assert error.is_a(RuntimeError), f"rank {rank}: {error}"
            assert "delay" in error.text, f"rank {rank}: {error}"
            ranks.at_limit("the Python reducer refuses delayed parameters")


def return_a_late_future_by_parameter(ctx):
    """A buffer when backward returns, for which a hook has returned a future, and the gradient; then under no_sync."""
    model, told = by_parameter(ctx, models.Counting(0.0)), []

    def hook(_state, buffers):
        future = torch.futures.Future()

        def end():
            time.sleep(LATE_S)
            buffers["count"].add_(1000)
            future.set_result(None)

        threading.Thread(target=end).start()
        return [future]

    private(model, "_register_buffer_comm_hook")(None, hook)
    for around in (nullcontext, model.no_sync):
        with around():
            gradient = trained(model, mine(ctx))["a.weight"]
        told.append((model.module.count.item(), gradient))
    return told


@check("DDP-095", worlds=MANY)
def test_the_python_reducer_waits_for_the_futures_of_a_buffer_hook(ranks):
    for rank, told in enumerate(ranks(return_a_late_future_by_parameter)):
        assert [gradient for _, gradient in told] == [[mean_of_all(ranks.world)], [12.0 * (rank + 1)]], f"rank {rank}"
        buffers = [buffer for buffer, _ in told]
        assert buffers == [1000, 2000], f"the future of rank {rank} is not done: the buffer is {buffers}"


def add_to_turned_gradients(ctx):
    """Each rank goes on from gradients of its own, in turns laid out row by row and column by column."""
    model, seen = by_parameter(ctx, nn.Linear(3, 2, bias=False)), []
    for iteration in range(2):
        ours = torch.zeros(3, 2, device=ctx.device).t() if (ctx.rank + iteration) % 2 else None
        model.module.weight.grad = torch.zeros(2, 3, device=ctx.device) if ours is None else ours
        model(12.0 * (ctx.rank + 1) * torch.arange(3.0, device=ctx.device).view(1, 3)).sum().backward()
        seen.append(whole(model.module.weight.grad).tolist())
    return seen


@check("DDP-167", worlds=(1, 2, 4))
def test_the_python_reducer_averages_gradients_whatever_their_layout(ranks):
    right = [[mean_of_all(ranks.world) * place for place in range(3)]] * 2
    assert ranks(add_to_turned_gradients) == [[right] * 2] * ranks.world


def look_up_by_parameter(ctx):
    """Each rank looks up a row of its own and the last one, twice over."""
    model, told = by_parameter(ctx, nn.Embedding(5, 1, sparse=True)), []
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        (12.0 * model(torch.tensor([ctx.rank, 4, 4], device=ctx.device))).sum().backward()
        held = model.module.weight.grad
        told.append((held.is_sparse, held.to_dense().flatten().tolist()))
    return told


@check("DDP-167", worlds=(1, 2, 3, 4), beyond=False)
def test_the_python_reducer_averages_sparse_gradients_too(ranks):
    mean = [12.0 / ranks.world * (row < ranks.world) for row in range(4)] + [24.0]
    assert ranks(look_up_by_parameter) == [[(True, mean)] * 2] * ranks.world


def train_halves_by_parameter(ctx):
    model = by_parameter(ctx, models.scalar().half())
    return trained(model, torch.full((1, 1), 40000.0, dtype=torch.float16, device=ctx.device))


def train_by_parameter_in_a_subgroup(ctx, members):
    group = dist.new_group(members)
    moving = by_parameter(ctx, models.scalar())
    told = [trained(moving, mine(ctx))]
    if ctx.rank not in members:
        return told
    private(moving, "_update_process_group")(group)
    there = by_parameter(ctx, models.scalar(), process_group=group)
    return [*told, *(trained(model, mine(ctx)) for model in (moving, there))]


@check("DDP-167", "DDP-162", worlds=(3, 4), beyond=False)
def test_the_python_reducer_divides_by_the_size_of_its_group(ranks):
    members = list(range(1, ranks.world))
    before, mean = mean_of_all(ranks.world), sum(12.0 * (rank + 1) for rank in members) / len(members)
    for rank, told in enumerate(ranks(train_by_parameter_in_a_subgroup, members)):
        expected = [before, mean, mean] if rank in members else [before]
        assert told == [{"weight": [each]} for each in expected], f"rank {rank}: in the world, moved, built there"


def hook_by_parameter(ctx):
    model = by_parameter(ctx, models.Branches())
    calls = []

    def hook(state, bucket):
        gradient, parameter = bucket
        calls.append((state, gradient is parameter.grad, parameter is model.module.a.weight, gradient.item()))
        gradient.neg_()

    model.register_comm_hook("my state", hook)
    return trained(model, mine(ctx)), calls


@check("DDP-167", worlds=(1, 2, 3))
def test_a_hook_of_the_python_reducer_is_called_with_gradient_and_parameter(ranks):
    for rank, (found, calls) in enumerate(ranks(hook_by_parameter)):
        local = 12.0 * (rank + 1)
        assert calls == [("my state", True, True, local)], f"rank {rank}"
        assert found == {"a.weight": [-local], "b.weight": None}, f"rank {rank}"


def begin_by_parameter_in_a_context(ctx):
    """What switching to that mode raises in a join context, and the gradients of a backward there."""
    model = wrapped(ctx, models.scalar())
    switch = private(model, "_register_accum_grad_hook")
    with model.join():
        error = caught(switch)
        return error, trained(model, mine(ctx))


@check("DDP-167", worlds=(1, 2, 3))
def test_a_switch_to_the_python_reducer_in_a_context_averages_or_is_refused(ranks):
    for rank, (error, found) in enumerate(ranks(begin_by_parameter_in_a_context)):
        assert error is None or error.is_a(RuntimeError), f"rank {rank}: {error}"
        assert found == {"weight": [mean_of_all(ranks.world)]}, f"rank {rank}: {found}, {error or 'accepted'}"


def put_beside_averages_by_parameter(ctx):
    """What is raised for what cannot be beside that mode: uneven inputs, a fused optimizer, attached ones; then the
    gradients of the first model."""
    assert ctx.subject.regroup, "others do not offer to refuse all of these"
    model, module = by_parameter(ctx, models.scalar()), models.scalar().to(ctx.device)
    attached = by_parameter(ctx, module)
    _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 1.0})

    def train_unevenly():
        with model.join():
            for _ in range(ctx.rank):
                trained(model, mine(ctx))

    errors = {
        "a context": caught(train_unevenly),
        "a fused optimizer": caught(private(model, "_register_fused_optim"), torch.optim.SGD, lr=1.0),
        "attached ones": caught(trained, attached, mine(ctx)),
    }
    ctx.meet("refused")
    return errors, trained(model, mine(ctx))


@check("DDP-167", "DDP-133", worlds=MANY, beyond=False, deadline_s=10)
def test_what_cannot_be_beside_the_python_reducer_is_refused_at_once(ranks):
    for rank, (errors, found) in enumerate(ranks(put_beside_averages_by_parameter)):
        for what, error in errors.items():
            assert error is not None, f"rank {rank}, {what}"
            assert error.is_a(RuntimeError), f"rank {rank}, {what}: {error}"
            assert "parameter by parameter" in error.text, f"rank {rank}, {what}: {error}"
        assert found == {"weight": [mean_of_all(ranks.world)]}, f"rank {rank}"


def count_calls_by_parameter(ctx):
    """How often a hook is called in a step before a layer is thawed, and in one after it."""
    assert ctx.subject.regroup, "others average what is thawed in their own way, or never"
    module, calls, told = models.Branches(), [], []
    module.b.requires_grad_(False)
    model = by_parameter(ctx, module)
    model.register_comm_hook(None, lambda _state, bucket: calls.append(bucket))
    for thawed in (False, True):
        module.b.requires_grad_(thawed)
        calls.clear()
        trained(model, mine(ctx), with_b=True)
        told.append(len(calls))
    return told


@check("DDP-167", worlds=(1, 2))
def test_a_hook_of_the_python_reducer_is_called_once_for_each_gradient_also_of_what_was_thawed(ranks):
    assert ranks(count_calls_by_parameter) == [[1, 2]] * ranks.world


class Summed(nn.Module):
    """A sum passes one gradient on to both sides: to a weight, as a view, and to a layer that each rank scales."""

    def __init__(self):
        super().__init__()
        self.square, self.weight = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.ones(4))

    def forward(self, scale, factors):
        return (self.weight * scale + self.square.view(-1)) * factors


def pass_on_by_parameter(ctx):
    factors = torch.arange(1.0, 5.0, device=ctx.device) * (ctx.rank + 1)
    return trained(by_parameter(ctx, Summed()), torch.full((4,), ctx.rank + 1.0, device=ctx.device), factors)


@check("DDP-167", worlds=(1, 2, 4))
def test_the_python_reducer_changes_no_gradient_that_is_still_to_be_passed_on(ranks):
    numbers = range(1, ranks.world + 1)
    mean, squares = (sum(number**power for number in numbers) / ranks.world for power in (1, 2))
    right = {name: [factor * by for factor in range(1, 5)] for name, by in (("square", mean), ("weight", squares))}
    for rank, found in enumerate(ranks(pass_on_by_parameter)):
        assert found == right, f"rank {rank} has {found}"


# -- DDP-168: outputs that live elsewhere


def keep(tensor):
    return tensor.detach()


class Sending(nn.Module):
    """``a`` is returned; what ``b`` made is sent to another rank, and a reference to it is returned."""

    def __init__(self, target):
        super().__init__()
        self.a, self.b, self.target = models.scalar(), models.scalar(), target

    def forward(self, x):
        return {"here": self.a(x), "there": rpc.remote(self.target, keep, args=(self.b(x).cpu(),))}


def send_away(ctx):
    with remote_calls(ctx):
        model = wrapped(ctx, Sending(f"rank{1 - ctx.rank}"), find_unused_parameters=True)
        seen = []
        for _ in range(2):
            model.zero_grad()
            out = model(mine(ctx))
            out["here"].sum().backward()
            a, b = (layer.weight.grad for layer in (model.module.a, model.module.b))
            seen.append((a.item(), b, out["there"].is_owner(), out["there"].to_here().item()))
            del out
        return seen


@check("DDP-168", worlds=(2,), backends=("gloo",))
def test_what_is_behind_a_reference_to_another_rank_counts_as_unused(ranks):
    for rank, seen in enumerate(ranks(send_away)):
        assert seen == [(mean_of_all(2), None, False, 12.0 * (rank + 1))] * 2, f"rank {rank}"


MADE = {}  # on the rank that is asked: what it waits for
PATIENCE_S = 2.0


def make_when_told(rank):
    """Answers when rank ``rank`` has said so; False if it waited in vain."""
    return MADE.setdefault(rank, threading.Event()).wait(PATIENCE_S)


def say_so(rank):
    MADE.setdefault(rank, threading.Event()).set()


class Asking(nn.Module):
    """Returns its output beside a reference to an answer that another rank has yet to find."""

    def __init__(self, target, rank):
        super().__init__()
        self.a, self.b, self.target, self.rank = models.scalar(), models.scalar(), target, rank

    def forward(self, x):
        return [self.a(x), rpc.remote(self.target, make_when_told, args=(self.rank,))]


def train_beside_a_slow_reference(ctx):
    with remote_calls(ctx):
        other = f"rank{1 - ctx.rank}"
        model = wrapped(ctx, Asking(other, ctx.rank), find_unused_parameters=True)
        out, there = model(mine(ctx))
        out.sum().backward()
        rpc.rpc_sync(other, say_so, args=(ctx.rank,))
        return gradients(model), there.to_here()


@check("DDP-168", worlds=(2,), backends=("gloo",))
def test_nobody_waits_for_what_is_behind_a_reference_to_another_rank(ranks):
    assert ranks(train_beside_a_slow_reference) == [({"a.weight": [mean_of_all(2)], "b.weight": None}, True)] * 2


# -- DDP-169, DDP-170: small helpers


class Spy:
    """Stands in for the reducer and notes what it is handed."""

    def __init__(self):
        self.given = []

    def _set_sparse_metadata(self, metadata):
        self.given.append(metadata)


def hand_over_metadata(ctx):
    model = wrapped(ctx, models.scalar())
    hand_over = private(model, "_set_sparse_metadata")
    private(model, "reducer")
    hand_over({"table.weight": torch.tensor([1])})  # the reducer itself takes them, too
    spy, ids = Spy(), {"table.weight": torch.tensor([3, 1])}
    model.reducer = spy
    hand_over(ids)
    return len(spy.given), spy.given[0] is ids, {name: each.tolist() for name, each in ids.items()}


@check("DDP-169", worlds=(1,))
def test_sparse_metadata_reach_the_reducer_unchanged(ranks):
    assert ranks(hand_over_metadata) == [(1, True, {"table.weight": [3, 1]})]


def list_parameters(ctx):
    root = models.Parts("ab")
    root.register_parameter("own", nn.Parameter(torch.ones(1)))
    root.parts["a"].extra = nn.Linear(1, 1)
    model = wrapped(ctx, root)
    listed = private(model, "_get_parameters")
    by_module = [parameter for module in root.modules() for parameter in module.parameters(recurse=False)]
    told = [list(map(id, listed(root))) == list(map(id, by_module)), len(by_module),
            [each is root.own for each in listed(root, recurse=False)]]  # fmt: skip
    former = OrderedDict(first=torch.ones(1), second=torch.zeros(1))
    root.parts["b"]._former_parameters = former
    there = list(listed(root))
    told.append([any(each is known for each in there) for known in former.values()])
    told.append(any(each is own for each in there for own in root.parts["b"].parameters(recurse=False)))
    root._former_parameters = OrderedDict()  # as of a replica that has none: not even what was put in afterwards
    told.append(list(listed(root, recurse=False)))
    return told


@check("DDP-170", worlds=(1,))
def test_parameters_are_listed_module_by_module_and_former_ones_instead_where_there_are_some(ranks):
    assert ranks(list_parameters) == [[True, 7, [True], [True, True], False, []]]


# -- DDP-171: buffer hooks that do not wait

LATE_S = 0.15


def synchronise_late(ctx, waits):
    """The last rank's hook starts late; returns what forwards saw of the buffer and what it was after backward."""
    model = wrapped(ctx, models.Counting(0.0))
    model.module.count.fill_(1.0 + ctx.rank)

    def hook(_state, buffers):
        if ctx.rank == ctx.world - 1:
            time.sleep(LATE_S)
        buffer = buffers["count"]
        whole = buffer.clone()
        work = dist.all_reduce(whole, async_op=True)
        if waits:
            work.wait()
            buffer.copy_(whole)
            return []
        return [work.get_future().then(lambda _future: buffer.copy_(whole))]

    before = private(ctx.subject.ddp, "_BufferCommHookLocation").PRE_FORWARD
    private(model, "_register_buffer_comm_hook")(None, hook, before)
    model(mine(ctx)).sum().backward()
    if ctx.device.type != "cpu":
        torch.get_device_module(ctx.device).synchronize()
    return model.module.seen, model.module.count.item(), whole(model.module.a.weight.grad).item()


@check("DDP-171", worlds=MANY, beyond=False)
def test_a_buffer_hook_before_forward_may_wait_by_itself_and_is_awaited_by_backward_at_the_latest(ranks):
    whole = float(sum(range(1, ranks.world + 1)))
    assert ranks(synchronise_late, True) == [([whole], whole, mean_of_all(ranks.world))] * ranks.world
    for rank, (seen, count, averaged) in enumerate(ranks(synchronise_late, False)):
        assert (count, averaged) == (whole, mean_of_all(ranks.world)), f"rank {rank}"
        assert seen in ([1.0 + rank], [whole]), f"rank {rank}: half a synchronisation: {seen}"
        if seen != [whole]:
            ranks.at_limit("forward does not wait for an asynchronous buffer hook")
