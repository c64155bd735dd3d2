"""What a program does around an overlapped step, compared with one process after every iteration."""

import collections
import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as torchs_hooks

from conformance.fixtures.models import integers
from conformance.ranks import caught

pytestmark = pytest.mark.slow

CAP_MIB = 0.00001  # a bucket for each parameter


class Net(nn.Module):
    """Layers registered out of their order of use, so that owners change once; one may be left out, or fail."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.last, self.first, self.middle, self.never = (nn.Linear(3, 3) for _ in range(4))
        with torch.no_grad():
            for place, parameter in enumerate(self.parameters()):
                parameter.copy_(integers(*parameter.shape, seed=place) / 4)
        self.to(dtype)
        self.leaves_out, self.fails = False, False

    def forward(self, batch):
        hidden = torch.tanh(self.first(batch.to(self.first.weight.dtype)))
        if self.fails:
            hidden.register_hook(fail)
        return self.last(hidden if self.leaves_out else self.middle(hidden))


def fail(_gradient):
    raise KeyError("this backward fails on every rank")


def backward(model, rank, iteration):
    output = model(integers(2, 3, seed=100 * rank + iteration) / 4)
    ((output * output).sum() / 8).backward()


class Alone:
    """One process with the ordinary optimizer: sums every rank's gradient, divides, clips, steps."""

    def __init__(self, ctx, model, kind, max_norm=None, **settings):
        self.world, self.max_norm = ctx.world, max_norm
        self.model = copy.deepcopy(model)
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        for mine, other in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.grad_dtype = other.grad_dtype
        self.optimizer = kind(self.parameters, **settings)

    def step(self, iteration):
        kept = [parameter.grad for parameter in self.parameters]
        total = [None] * len(kept)
        for rank in range(self.world):
            self.model.zero_grad()
            backward(self.model, rank, iteration)
            for place, parameter in enumerate(self.parameters):
                if parameter.grad is not None:
                    part = parameter.grad / self.world
                    total[place] = part if total[place] is None else total[place] + part
        for parameter, gradient, old in zip(self.parameters, total, kept, strict=True):
            parameter.grad = old if gradient is None else gradient
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
        self.optimizer.step()


def wrapped(ctx, model, zero, interleaved, hook=None, arguments=None, **keywords):
    """A DDP around the model, whose hook steps ``zero``."""
    subject = ctx.subject
    ddp = subject.DistributedDataParallel(model, bucket_cap_mb=CAP_MIB, **(arguments or {}))
    factory = subject.hook_with_zero_step_interleaved if interleaved else subject.hook_with_zero_step
    ddp.register_comm_hook(None, factory(hook or subject.default_hooks.allreduce_hook, ddp, zero, **keywords))
    return ddp


def sharded(ctx, model, kind, **settings):
    return ctx.subject.ZeroRedundancyOptimizer(model.parameters(), kind, overlap_with_ddp=True, **settings)


def train(ctx, interleaved, kind, settings, dtype=torch.float32, hook=None, tolerance=1e-5, before=None):
    """Where this rank is not one process; ``before`` may change both sides before an iteration."""
    model = Net(dtype)
    model.never.requires_grad_(False)
    alone = Alone(ctx, model, kind, **settings)
    zero = sharded(ctx, model, kind, **settings)
    ddp = wrapped(ctx, model, zero, interleaved, hook)
    found = []
    for iteration in range(6):
        if before is not None:
            ddp = before(iteration, ddp, zero, alone) or ddp
        ddp.zero_grad()
        backward(ddp, ctx.rank, iteration)
        alone.step(iteration)
        found += differences(iteration, model, alone, tolerance)
    return found


def differences(iteration, model, alone, tolerance=1e-5):
    pairs = zip(model.named_parameters(), alone.model.parameters(), strict=True)
    return [
        f"iteration {iteration}: {name}" for (name, mine), theirs in pairs
        if not torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance)
    ]  # fmt: skip


class Finely(torch.optim.SGD):
    """Keeps finer copies of its parameters, a count and a word, each of which a load would make something else of."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    count = torch.zeros((), dtype=torch.int64)
                    state.update(fine=parameter.detach().float(), count=count, word="fine", kept=[count])
                kinds = (state["word"], state["count"].dtype, state["fine"].dtype)
                assert kinds == ("fine", torch.int64, torch.float32)
                state["count"] += 1
                state["fine"].sub_(parameter.grad.float() + 2.0**-12, alpha=group["lr"])
                parameter.copy_(state["fine"])


class Gathering(torch.optim.SGD):
    """Counts its steps in containers of many kinds in its groups."""

    def __init__(self, params, lr):
        super().__init__(params, lr=lr)
        for group in self.param_groups:
            group["kinds"] = [collections.deque(maxlen=9), set(), collections.Counter()]
            group["by name"] = collections.OrderedDict(filled=collections.defaultdict(int))

    def step(self, closure=None):
        for group in self.param_groups:
            queue, seen, counter = group["kinds"]
            queue.append(1)
            seen.add(len(seen))
            counter["steps"] += 1
            group["by name"]["filled"]["steps"] += 1
            steps = len(queue) + len(seen) + counter["steps"] + group["by name"]["filled"]["steps"]
            group["lr"] = 0.5 / steps
        return super().step(closure)


def doubled(_state, bucket):
    """Averages in double precision, and leaves it to DDP to cast what comes of it."""
    total = bucket.buffer().double()
    torch.distributed.all_reduce(total)
    future = torch.futures.Future()
    future.set_result(total / torch.distributed.get_world_size())
    return future


def forget(iteration, _ddp, zero, alone):
    """The program drops the state between two iterations."""
    if iteration == 3:
        zero.state, alone.optimizer.state = collections.defaultdict(dict), collections.defaultdict(dict)


MOMENTUM = (torch.optim.SGD, {"lr": 0.125, "momentum": 0.5})
PROGRAMS = {
    "states that are finer than their parameters": {"of": (Finely, {"lr": 0.125}), "dtype": torch.bfloat16},
    "containers in groups": {"of": (Gathering, {"lr": 0.5})},
    "a hook that answers in another dtype": {"of": MOMENTUM, "hook": doubled},
    "torch's wrapper of compressing hooks": {
        "of": MOMENTUM, "tolerance": 0.02, "hook": torchs_hooks.fp16_compress_wrapper(torchs_hooks.allreduce_hook),
    },
    "another state": {"of": MOMENTUM, "before": forget},
}  # fmt: skip


def train_program(ctx, interleaved, name):
    program = dict(PROGRAMS[name])
    kind, settings = program.pop("of")
    exact = {"tolerance": 0.0} if "dtype" in program else {}
    return train(ctx, interleaved, kind, settings, **exact, **program)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_trains_as_one_process(run, name, interleaved):
    assert run(train_program, interleaved, name, world=2) == [[]] * 2


def wrap_again(ctx, interleaved):
    def anew(iteration, ddp, zero, _alone):
        return wrapped(ctx, ddp.module, zero, interleaved) if iteration == 3 else None

    kind, settings = MOMENTUM
    return train(ctx, interleaved, kind, settings, before=anew)


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_state_goes_over_to_a_second_model_around_the_same_parameters(run, interleaved):
    assert run(wrap_again, interleaved, world=2) == [[]] * 2


def two_optimizers(ctx, inner, outer):
    """Every second parameter is stepped by another optimizer, whose hook is around that of the first."""
    subject, model = ctx.subject, Net()
    model.never.requires_grad_(False)
    alone = Alone(ctx, model, torch.optim.SGD, lr=0.0)
    halves = [list(model.parameters())[place:6:2] for place in range(2)]
    kinds = [(torch.optim.SGD, {"lr": 0.125, "momentum": 0.5}), (torch.optim.Adam, {"lr": 0.0625})]
    ordinary = [kind(alone.parameters[place::2], **settings) for place, (kind, settings) in enumerate(kinds)]
    ddp = subject.DistributedDataParallel(model, bucket_cap_mb=CAP_MIB)
    hook = subject.default_hooks.allreduce_hook
    for half, (kind, settings), interleaved in zip(halves, kinds, (inner, outer), strict=True):
        zero = subject.ZeroRedundancyOptimizer(half, kind, overlap_with_ddp=True, **settings)
        factory = subject.hook_with_zero_step_interleaved if interleaved else subject.hook_with_zero_step
        hook = factory(hook, ddp, zero)
    ddp.register_comm_hook(None, hook)
    found = []
    for iteration in range(4):
        ddp.zero_grad()
        backward(ddp, ctx.rank, iteration)
        alone.step(iteration)
        for optimizer in ordinary:
            optimizer.step()
        found += differences(iteration, model, alone)
    return found


@pytest.mark.parametrize(("inner", "outer"), [(False, True), (True, False)])
def test_two_optimizers_share_a_model_by_hooks_around_each_other(run, inner, outer):
    assert run(two_optimizers, inner, outer, world=2) == [[]] * 2


def fail_beside_an_old_gradient(ctx, interleaved):
    """A backward fails when it has set the old gradient of an unused layer aside; then that is cleared to zeros."""
    model = Net()
    model.never.requires_grad_(False)
    kind, settings = MOMENTUM
    alone, zero = Alone(ctx, model, kind, **settings), sharded(ctx, model, kind, **settings)
    arguments = {"find_unused_parameters": True, "gradient_as_bucket_view": True}
    ddp = wrapped(ctx, model, zero, interleaved, arguments=arguments)
    found, failed = [], None
    for iteration in range(6):
        model.leaves_out = alone.model.leaves_out = iteration >= 3
        if iteration == 3:
            kept = {parameter: copy.deepcopy(state) for parameter, state in zero.state.items()}
            zero.param_groups[0]["lr"], model.fails = 0.0, True
            failed = caught(backward, ddp, ctx.rank, iteration)
            zero.param_groups[0]["lr"], model.fails = settings["lr"], False
            zero.state.update(kept)
        ddp.zero_grad(set_to_none=False)
        alone.optimizer.zero_grad(set_to_none=False)
        backward(ddp, ctx.rank, iteration)
        alone.step(iteration)
        found += differences(iteration, model, alone)
    return failed is not None and failed.kinds[0], found


@pytest.mark.parametrize("interleaved", [False, True])
def test_gradients_that_a_failed_backward_set_aside_are_stepped_with_no_more(run, interleaved):
    assert run(fail_beside_an_old_gradient, interleaved, world=2) == [("KeyError", [])] * 2


def clip_finer_gradients(ctx):
    """How far the clipped gradients are from one process's, where they are of a finer dtype than their parameters."""
    model = Net(torch.bfloat16)
    for parameter in model.parameters():
        parameter.grad_dtype = torch.float32
    model.never.requires_grad_(False)
    alone = Alone(ctx, model, Finely, max_norm=0.01, lr=0.125)
    ddp = wrapped(ctx, model, sharded(ctx, model, Finely, lr=0.125), False, max_norm=0.01)
    backward(ddp, ctx.rank, 0)
    alone.step(0)
    return [
        (mine.grad - theirs.grad).abs().max().item() <= 1e-5 * theirs.grad.abs().max().item()
        for mine, theirs in zip(model.parameters(), alone.model.parameters(), strict=True) if mine.requires_grad
    ]  # fmt: skip


@pytest.mark.skipif(not hasattr(torch.empty(0), "grad_dtype"), reason="parameters of this torch have no grad_dtype")
def test_the_norm_is_as_fine_as_the_gradients(run):
    assert run(clip_finer_gradients, world=2) == [[True] * 6] * 2


def average_in_half(group, bucket):
    """A user's hook whose result is of half precision, for DDP to cast."""
    low = bucket.buffer().half() / dist.get_world_size(group)
    return dist.all_reduce(low, group=group, async_op=True).get_future().then(lambda done: done.value()[0])


def clip_behind_a_hook_of_half_precision(ctx):
    """The norm of all gradients after a clipped step."""
    model = Net()
    model.never.requires_grad_(False)
    zero = sharded(ctx, model, torch.optim.SGD, lr=0.125)
    ddp = wrapped(ctx, model, zero, False, hook=average_in_half, max_norm=0.01)
    backward(ddp, ctx.rank, 0)
    return nn.utils.get_total_norm([p.grad for p in model.parameters() if p.requires_grad]).item()


def test_gradients_are_clipped_too_where_a_hook_gives_them_in_another_dtype(run):
    assert run(clip_behind_a_hook_of_half_precision, world=2) == [pytest.approx(0.01, rel=1e-3)] * 2


def leave_out(ctx, to_none, static):
    """The error of a loop in which a layer is left out of reductions, whose gradients are cleared."""
    model = Net()
    arguments = {"skip_all_reduce_unused_params": True, "find_unused_parameters": True, "static_graph": static}
    ddp = wrapped(ctx, model, sharded(ctx, model, torch.optim.SGD, lr=0.1, momentum=0.5), False, arguments=arguments)
    for parameter in model.never.parameters():
        parameter.grad = torch.ones_like(parameter)

    def loop():
        for iteration in range(5):
            ddp.zero_grad(set_to_none=to_none)
            backward(ddp, ctx.rank, iteration)

    error = caught(loop)
    return error and (error.kinds[0], "set_to_none=True" in error.text)


@pytest.mark.parametrize("static", [False, True])
def test_what_is_left_out_of_reductions_must_not_keep_a_gradient(run, static):
    assert run(leave_out, True, static, world=2) == [None] * 2
    assert run(leave_out, False, static, world=2) == [("RuntimeError", True)] * 2
