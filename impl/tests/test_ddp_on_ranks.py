"""DDP where others' machinery is around it: the compiler, and process groups of a class of the user's own."""

import pickle
import threading
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from conformance.ranks import caught
from impl.ddp import DistributedDataParallel, _MixedPrecision
from impl.ddp.buffers import _BufferCommHookLocation
from impl.tests.comm_hook_ranks import run_on_ranks

pytestmark = pytest.mark.slow


def train(model, rank, seen):
    """Three steps on small integers; ``seen`` is the object whose forward is called."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for iteration in range(3):
        optimizer.zero_grad()
        seen(torch.full((1, 2), float(rank + iteration))).sum().backward()
        optimizer.step()
    return [parameter.tolist() for parameter in model.parameters()]


def linear():
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.fill_(2.0)
        layer.bias.fill_(1.0)
    return layer


LOWERED = _MixedPrecision(torch.bfloat16, torch.float32)


def train_compiled_and_not(rank, world, options):
    plain, compiled = (DistributedDataParallel(linear(), **options) for _ in range(2))
    graphs = []

    def backend(graph, inputs):
        graphs.append({each.dtype for each in inputs if isinstance(each, torch.Tensor)})
        return graph.forward

    trained = train(compiled, rank, torch.compile(compiled, backend=backend))
    return train(plain, rank, plain), trained, graphs


@pytest.mark.parametrize(("options", "dtype"), [({}, torch.float32), ({"mixed_precision": LOWERED}, torch.bfloat16)])
def test_a_compiled_model_trains_as_it_does_uncompiled(options, dtype):
    for plain, compiled, graphs in run_on_ranks(train_compiled_and_not, 2, options):
        assert compiled == plain
        assert graphs == [{dtype}], "only the wrapped module is compiled, once, and on what it is given"


def fail_compiled(rank, world):
    ddp = DistributedDataParallel(linear(), mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16))
    seen = torch.compile(ddp, backend="eager")
    error = caught(seen, torch.ones(1, 3))  # three numbers for a layer of two
    after = [parameter.dtype for parameter in ddp.parameters()]
    seen(torch.ones(1, 2)).sum().backward()
    return error is not None, after, ddp.module.weight.grad.tolist()


def test_a_compiled_forward_that_fails_leaves_nothing_lowered():
    assert run_on_ranks(fail_compiled, 1) == [(True, [torch.float32] * 2, [[1.0, 1.0]])]


class Wide(nn.Module):
    """Six layers of 1 MiB each; small integers, so that every order of summation gives the same bits."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(512, 512, bias=False) for _ in range(6)])
        with torch.no_grad():
            for layer in self.layers:
                layer.weight.copy_(torch.eye(512) * 2)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def graphs_and_gradients(made, rank, *, inside):
    """How many pieces the compiler was given of a model under DDP, and the gradients; ``inside``: the module alone."""
    torch.compiler.reset()
    pieces = []

    def backend(graph, _inputs):
        pieces.append(graph)
        return graph.forward

    ddp = made(torch.compile(Wide(), backend=backend) if inside else Wide(), bucket_cap_mb=1)
    forward = ddp if inside else torch.compile(ddp, backend=backend)
    for iteration in range(2):
        ddp.zero_grad()
        forward(torch.full((1, 512), float(rank + iteration))).sum().backward()
    return len(pieces), [parameter.grad.clone() for parameter in ddp.parameters()]


def compile_ours_and_torchs(rank, world, inside):
    ours = graphs_and_gradients(DistributedDataParallel, rank, inside=inside)
    theirs = graphs_and_gradients(torch.nn.parallel.DistributedDataParallel, rank, inside=inside)
    plain = DistributedDataParallel(Wide(), bucket_cap_mb=1)
    plain(torch.full((1, 512), float(rank + 1))).sum().backward()
    same = all(map(torch.equal, ours[1], [parameter.grad for parameter in plain.parameters()]))
    left = torch.nn.parallel.DistributedDataParallel._get_active_ddp_module()
    torch.nn.parallel.DistributedDataParallel = DistributedDataParallel  # as programs do that are to use ours unchanged
    in_its_place = graphs_and_gradients(torch.nn.parallel.DistributedDataParallel, rank, inside=inside)
    return ours[0], theirs[0], in_its_place[0], same, left


@pytest.mark.parametrize("inside", [False, True])
def test_a_compiled_model_is_split_where_torchs_is_so_that_buckets_can_start_early(inside):
    for ours, theirs, in_its_place, same, left in run_on_ranks(compile_ours_and_torchs, 2, inside):
        assert ours == theirs == in_its_place > 1
        assert same
        assert left is None, "the forward has ended, and the compiler would still split for it"


def compile_with_a_tiny_cap(rank, world):
    model = DistributedDataParallel(linear(), bucket_cap_mb=1e-4)
    return train(model, rank, torch.compile(model, backend="eager"))


def test_a_cap_below_the_compilers_least_compiles():
    first, second = run_on_ranks(compile_with_a_tiny_cap, 2)
    assert first == second


class Alone(dist.ProcessGroup):
    """A group of one rank that torch.distributed was never told of; it has just the collectives that DDP needs."""

    def __init__(self):
        super().__init__(0, 1)
        self.reduced = 0

    def allreduce(self, tensors, _options):
        self.reduced += 1
        return self._done(tensors)

    def broadcast(self, tensors, _options):
        return self._done(tensors)

    def getSize(self):
        return 1

    def getBackendName(self):
        return "alone"

    def _done(self, tensors):
        future = torch.futures.Future()
        future.set_result(tensors)
        return torch._C._distributed_c10d._create_work_from_future(future)


def train_in_a_group_of_our_own(rank, world):
    group = Alone()
    model = DistributedDataParallel(linear(), process_group=group)
    told = model._get_ddp_logging_data()
    return train(model, rank, model), group.reduced, told["backend_name"], told["world_size"]


def test_a_group_that_nobody_was_told_of_is_good_enough():
    (told,) = run_on_ranks(train_in_a_group_of_our_own, 1)
    layer = linear()
    assert told == (train(layer, 0, layer), 3, "alone", 1)


def reduce_the_last_of_two_local_forwards(rank, world):
    """As trainers that accumulate over several losses do."""
    told = []
    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
        model = DistributedDataParallel(linear(), **options)
        for _ in range(3):
            model.zero_grad()
            with model.no_sync():
                losses = [model(torch.full((1, 2), float(rank + extra))).sum() for extra in (1, 3)]
                losses[0].backward()
            model.reducer.prepare_for_backward([losses[1]])
            losses[1].backward()
            told.append([parameter.grad.flatten().tolist() for parameter in model.parameters()])
    return told


def test_a_local_forward_may_be_followed_by_a_backward_that_is_reduced():
    for told in run_on_ranks(reduce_the_last_of_two_local_forwards, 2):
        assert told == [[[5.0, 5.0], [2.0]]] * 9


def restore_then_attach(rank, world):
    """A model is trained and restored; then optimizers are attached to its parameters."""
    model = DistributedDataParallel(linear())
    model(torch.ones(1, 2)).sum().backward()
    restored = pickle.loads(pickle.dumps(model))
    restored.zero_grad(set_to_none=True)
    _apply_optimizer_in_backward(torch.optim.SGD, restored.parameters(), {"lr": 0.5})
    restored(torch.full((1, 2), 2.0 * rank)).sum().backward()
    return [(parameter.flatten().tolist(), parameter.grad) for parameter in restored.parameters()]


def test_optimizers_that_a_restored_model_is_given_step_with_the_average():
    assert run_on_ranks(restore_then_attach, 2) == [[([1.5, 1.5], None), ([0.5], None)]] * 2


def checkpoint_with_a_buffer_hook(rank, world):
    """How often a buffer hook has been called after each iteration of a model that is checkpointed as a whole."""
    told = []
    for location in _BufferCommHookLocation:
        model, calls = DistributedDataParallel(Counts(1.0)), []
        model._register_buffer_comm_hook(None, lambda *_, calls=calls: calls.append("hook"), location)
        for _ in range(2):
            with set_checkpoint_early_stop(False):  # else the second forward is broken off in its last layer
                output = checkpoint(model, torch.ones(1, 1, requires_grad=True), use_reentrant=False)
            output.sum().backward()
            told.append(len(calls))
    return told


def test_a_buffer_hook_is_not_called_where_a_forward_is_recomputed():
    assert run_on_ranks(checkpoint_with_a_buffer_hook, 2) == [[1, 2, 1, 2]] * 2


def begin_again_while_a_buffer_hook_is_under_way(rank, world):
    """What the next forward finds of the futures of a buffer hook that ends late, on another thread."""
    model, found, futures = DistributedDataParallel(Counts(1.0)), [], []

    def late(_state, _buffers):
        futures.append(torch.futures.Future())
        threading.Timer(0.2, futures[-1].set_result, [None]).start()
        return futures[-1:]

    model._register_buffer_comm_hook(None, late, _BufferCommHookLocation.POST_FORWARD)
    model.module.register_forward_pre_hook(lambda *_: found.append([future.done() for future in futures]))
    (model(torch.ones(1, 1)) + model(torch.ones(1, 1))).sum().backward()
    return found


def test_a_forward_waits_for_the_buffers_that_the_last_ones_hook_still_receives():
    assert run_on_ranks(begin_again_while_a_buffer_hook_is_under_way, 2) == [[[], [True]]] * 2


class SharesItsBuffer(nn.Module):
    """One buffer with two names."""

    def __init__(self, mark):
        super().__init__()
        self.first, self.second = nn.Linear(1, 1), nn.Linear(1, 1)
        self.first.register_buffer("shared", torch.full((1,), mark))
        self.second.register_buffer("shared", self.first.shared)

    def forward(self, x):
        return self.second(self.first(x))


def ignore_a_shared_buffer(rank, world):
    told = []
    for name in ("first.shared", "second.shared"):
        module = SharesItsBuffer(float(rank))
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, [name])
        model = DistributedDataParallel(module)
        model(torch.ones(1, 1)).sum().backward()
        told.append(module.first.shared.item())
    return told


def test_a_buffer_that_is_ignored_under_one_of_its_names_is_ignored_under_all():
    assert run_on_ranks(ignore_a_shared_buffer, 2) == [[0.0, 0.0], [1.0, 1.0]]


def recompute_the_whole_model_unevenly(rank, world):
    """The recomputation stops early by an exception of its own, which is none of the model's."""
    model, found = DistributedDataParallel(linear()), []
    with model.join():
        for iteration in range(2 + rank):
            model.zero_grad()
            checkpoint(model, torch.full((1, 2), 2.0 * (iteration + 1)), use_reentrant=False).sum().backward()
            found.append(model.module.weight.grad.tolist())
    return found


def test_a_model_that_is_checkpointed_as_a_whole_may_run_out_of_inputs():
    means = [[[2.0] * 2], [[4.0] * 2], [[3.0] * 2]]
    assert run_on_ranks(recompute_the_whole_model_unevenly, 2) == [means[:2], means]


class Counting(nn.Module):
    """Counts its forwards in a buffer, in steps of the rank's own, and notes what it finds there."""

    def __init__(self, step):
        super().__init__()
        self.layer, self.step, self.found = nn.Linear(1, 1), step, []
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.found.append(self.count.item())
        self.count += self.step
        return self.layer(x)


def move_from_groups_that_ended_differently(rank, world):
    group = [dist.new_group([each]) for each in range(world)][rank]
    model = DistributedDataParallel(Counting(1.0 + 10 * rank), process_group=group)
    model(torch.ones(1, 1)).sum().backward()
    with model.no_sync() if rank else nullcontext():
        model(torch.ones(1, 1)).sum().backward()
    model._update_process_group(dist.group.WORLD)
    for _ in range(2):
        model(torch.ones(1, 1)).sum().backward()
    return model.module.found


def test_ranks_of_a_new_group_synchronise_buffers_whatever_their_last_forwards_were():
    assert run_on_ranks(move_from_groups_that_ended_differently, 2) == [[0.0, 1.0, 2.0, 3.0], [0.0, 11.0, 2.0, 3.0]]


def ask_around_an_inner_model(rank, world):
    inner, told = DistributedDataParallel(linear()), []

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.layer = inner, nn.Linear(1, 1)

        def forward(self, x):
            x = self.inner(x)
            told.append(DistributedDataParallel._get_active_ddp_module())
            return self.layer(x)

    outer = DistributedDataParallel(Outer())
    outer(torch.ones(1, 2))
    return told[0] is outer


def test_after_an_inner_model_the_outer_one_is_active_again():
    assert run_on_ranks(ask_around_an_inner_model, 1) == [True]


def go_on_behind_a_backward_that_fails(rank, world):
    """The first weight's gradient after each iteration; in one of them backward raises behind the other buckets."""
    layers = [nn.Linear(1, 1, bias=False) for _ in range(3)]
    for layer in layers:
        nn.init.ones_(layer.weight)
    model, told = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1e-6), []

    def spill(_gradient):
        raise ValueError("spilled")

    for iteration in range(6):
        model.zero_grad(set_to_none=True)
        output = model(torch.full((1, 1), 2.0 * (rank + iteration)))
        if iteration == 3:
            hook = layers[0].weight.register_hook(spill)
            with pytest.raises(ValueError, match="spilled"):
                output.sum().backward()
            hook.remove()
        else:
            output.sum().backward()
            told.append(layers[0].weight.grad.item())
    return told


def test_a_backward_that_fails_on_all_ranks_leaves_the_next_one_averaged():
    assert run_on_ranks(go_on_behind_a_backward_that_fails, 2) == [[1.0, 3.0, 5.0, 9.0, 11.0]] * 2


class Counts(nn.Module):
    """Its buffer grows by another step on each rank."""

    def __init__(self, step):
        super().__init__()
        self.line, self.step, self.seen = nn.Linear(1, 1), step, []
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.seen.append(self.count.item())
        self.count += self.step
        return self.line(x)


def count_in_training_mode(rank, _world):
    model = DistributedDataParallel(Counts(1.0 + 10 * rank))
    for _ in range(2):
        model(torch.ones(1, 1, device="cpu")).sum().backward()
    with model.no_sync(), torch.no_grad():
        model(torch.ones(1, 1, device="cpu"))
    return model.module.seen


def test_a_local_forward_without_gradients_begins_with_the_buffers_of_rank_0_where_the_last_one_was_synchronised():
    assert run_on_ranks(count_in_training_mode, 2) == [[0.0, 1.0, 2.0]] * 2


def look_through(rank, world):
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    model = DistributedDataParallel(linear())
    return isinstance(model, nn.parallel.DistributedDataParallel), sorted(get_model_state_dict(model))


def test_others_look_through_it_as_they_do_through_torchs():
    assert run_on_ranks(look_through, 1) == [(True, ["bias", "weight"])]


def leave_a_part_out(rank, _world):
    """Rank 0 never uses the second layer; what the reducer says of use under the names that torch's has."""
    layers = nn.ModuleList([linear(), linear()])
    model = DistributedDataParallel(layers, find_unused_parameters=True)
    layers.forward = lambda x, used: sum(layer(x).sum() for layer in layers[:used])
    for _ in range(2):
        model(torch.ones(1, 2), 1 + rank).backward()
    before = model.reducer._ddp_graph_static()
    model(torch.ones(1, 2), 2).backward()
    return model.reducer._get_local_used_map().tolist(), before, model.reducer._ddp_graph_static()


def test_the_reducer_says_what_is_used_and_whether_that_stays_the_same():
    assert run_on_ranks(leave_a_part_out, 2) == [([2, 2, 2, 2], True, False), ([2, 2, 2, 2], True, True)]


def keep_gradients_finely(rank, _world):
    """Gradients in float32 of parameters in bfloat16, dense, sparse and delayed; what differs in the refusals."""
    fine = 2.0**-12

    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (nn.Linear(1, 1, bias=False) for _ in range(2))
            self.table = nn.Embedding(2, 1, sparse=True)
            self.bfloat16()
            for parameter in self.parameters():
                nn.init.ones_(parameter)
                parameter.grad_dtype = torch.float32

        def forward(self, x):
            return self.first(x) + self.second(x) + self.table(torch.zeros(1, dtype=torch.int64)) * x

    parts = Parts()
    model = DistributedDataParallel(
        parts,
        delay_all_reduce_named_params=[("second.weight", parts.second.weight)],
        param_to_hook_all_reduce=parts.first.weight,
    )
    for value in (1.0, fine, 0.0):
        model.require_backward_grad_sync = value == 0.0
        model(torch.full((1, 1), value, dtype=torch.bfloat16)).sum().backward()
    told = {name: (p.grad.dtype, p.grad.to_dense().flatten()[0].item()) for name, p in parts.named_parameters()}
    refusals = []
    for late in (torch.float32, None):
        model = DistributedDataParallel(nn.Linear(1, 1, dtype=torch.bfloat16))
        model.module.weight.grad_dtype = late
        try:
            model(torch.ones(1, 1, dtype=torch.bfloat16))
        except RuntimeError as error:
            refusals.append("weight.grad_dtype" in str(error))
    return told, refusals


def test_gradients_are_averaged_in_their_own_dtype_which_must_be_known_in_time():
    for told, refusals in run_on_ranks(keep_gradients_finely, 2):
        assert set(told.values()) == {(torch.float32, 1.0 + 2.0**-12)}, told
        assert refusals == [True, True]


def step_what_is_delayed(rank, world):
    from torch.distributed.optim import _apply_optimizer_in_backward

    layers = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(2)])
    for parameter in layers.parameters():
        nn.init.ones_(parameter)
    late = {"delay_all_reduce_named_params": [("1.weight", layers[1].weight)]}
    model = DistributedDataParallel(layers, param_to_hook_all_reduce=layers[0].weight, **late)
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.125})
    model(torch.full((1, 1), 2.0 * (rank + 1))).sum().backward()
    return [(parameter.item(), parameter.grad) for parameter in model.parameters()]


def test_an_optimizer_in_backward_steps_a_delayed_parameter_with_the_average():
    assert run_on_ranks(step_what_is_delayed, 2) == [[(1.0 - 3.0 / 8, None)] * 2] * 2
