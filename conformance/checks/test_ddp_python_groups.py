"""Process groups written in Python: Works that demand a timeout, and hold an all-reduce's result in their future."""

import time

import torch
import torch.distributed as dist

from conformance.api.checking import WORLDS, check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import TINY_MIB, alone, steps
from conformance.fixtures.errors import BadBatch
from conformance.fixtures.joinables import recorder
from conformance.fixtures.observing import wrapped
from conformance.fixtures.training import ddp, gradient, private, scalar_means
from conformance.ranks import caught
from conformance.subjects import STRICT, Unsupported

COUNT = 3
LATE_S = 0.15  # longer than a wait lasts before anybody looks for a failure
OF_PYTHON = "process groups written in Python"  # what a subject that works through torch.distributed may lack


class Waited(dist.Work):
    """A Work of the user's own. torch's C++ code waits for such with a timeout, always."""

    def __init__(self, work, result):
        super().__init__()
        self._work, self._result = work, result

    def wait(self, timeout):
        return self._work.wait(timeout)

    def is_completed(self):
        return self._work.is_completed()

    def get_future(self):
        self._work.wait()
        future = torch.futures.Future()
        future.set_result(self._result)
        return future


class Elsewhere(dist.ProcessGroup):
    """Passes collectives on to another group; what it is given to all-reduce stays as it is."""

    def __init__(self, inner, demands_timeout):
        super().__init__(inner.rank(), inner.size())
        self._inner, self._demands_timeout = inner, demands_timeout

    def getBackendName(self):
        return "elsewhere"

    def allreduce(self, tensors, options):
        reduced = [tensor.clone() for tensor in tensors]
        return self._work(self._inner.allreduce(reduced, options), reduced)

    def broadcast(self, tensors, options):
        return self._work(self._inner.broadcast(tensors, options), tensors)

    def allgather(self, outputs, inputs, options):
        return self._work(self._inner.allgather(outputs, inputs, options), outputs)

    def _allgather_base(self, output, part, options):
        return self._work(self._inner._allgather_base(output, part, options), [output])

    def all_gather_single(self, output, part, *options, **named):
        return self._work(self._inner.all_gather_single(output, part, *options, **named), [output])

    def _work(self, work, result):
        if self._demands_timeout:
            return Waited(work, result)
        return torch._C._distributed_c10d._create_work_from_future(Waited(work, result).get_future())


def train_over(ctx, options, demands_timeout):
    ctx.subject.require(OF_PYTHON)
    group = Elsewhere(ctx.group, demands_timeout)
    model = wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB, process_group=group, **options)
    return steps(ctx, model, count=COUNT)


GROUPS = {"with works of its own": True, "with works made of futures": False}


@check("DDP-049", worlds=WORLDS, scenarios=GROUPS, beyond=False)
def test_the_result_of_a_groups_own_work_is_taken_from_its_future(ranks, scenario):
    for options, env in (({}, {}), ({"gradient_as_bucket_view": True}, {}), ({}, {STRICT: "1"})):
        for rank, seen in enumerate(ranks(train_over, options, scenario, env=env)):
            assert seen == alone(range(ranks.world), count=COUNT), f"rank {rank}, {options}, {env}"


class Bare(Waited):
    """Its future holds the tensor itself, and no list of it."""

    def get_future(self):
        (result,) = super().get_future().wait()
        future = torch.futures.Future()
        future.set_result(result)
        return future


class Plain(dist.Work):
    """Has no future: what was reduced is where it was."""

    def __init__(self, work):
        super().__init__()
        self._work = work

    def wait(self, timeout=None):
        return self._work.wait() if timeout is None else self._work.wait(timeout)

    def is_completed(self):
        return self._work.is_completed()


class WithBareFutures(Elsewhere):
    def allreduce(self, tensors, options):
        reduced = [tensor.clone() for tensor in tensors]
        return Bare(self._inner.allreduce(reduced, options), reduced)


class InPlace(Elsewhere):
    def allreduce(self, tensors, options):
        return Plain(self._inner.allreduce(tensors, options))


def train_over_others(ctx):
    """The gradients over each of these groups."""
    ctx.subject.require(OF_PYTHON)
    told = []
    for kind in (WithBareFutures, InPlace):
        model = wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB, process_group=kind(ctx.group, True))
        seen = []
        told.append((caught(lambda model=model, seen=seen: seen.extend(steps(ctx, model, count=COUNT))), seen))
    return told


@check("DDP-049", worlds=(1, 2, 3), beyond=False)
def test_results_are_found_in_bare_futures_and_where_there_are_none(ranks):
    expected = alone(range(ranks.world), count=COUNT)
    for rank, ((error, seen), (refused, others)) in enumerate(ranks(train_over_others)):
        assert error is None, f"rank {rank}: {error}"
        assert seen == expected, f"rank {rank}"
        if refused is None:
            assert others == expected, f"rank {rank}, without futures"
        else:
            assert refused.is_a(RuntimeError), f"rank {rank}, without futures: {refused}"
            ranks.at_limit("works without a future are refused")


class OfNoWorld(Elsewhere):
    """Around a backend of torch's that makes no group; torch.distributed has not been set up at all."""

    def all_gather_single(self, output, part, *options, **_):
        return self._allgather_base(output, part, *options)


def train_without_a_world(ctx):
    """The gradients of unequally many iterations, in which rank 0 is late, and of one iteration behind them."""
    ctx.subject.require(OF_PYTHON)
    inner = dist.ProcessGroupGloo(dist.PrefixStore("inner", ctx.store), ctx.rank, ctx.world)
    model = ddp(ctx, models.scalar(), process_group=OfNoWorld(inner, True))
    seen = []

    def train():
        with model.join():
            for iteration in range(1 + ctx.rank):
                model.zero_grad()
                loss = model(models.divisible_scalar(ctx.rank, iteration)).sum()
                time.sleep(0.0 if ctx.rank else LATE_S)
                loss.backward()
                seen.append(gradient(model.module.weight))

    error = caught(train)
    if error is not None and ("is not registered" in error.text or "Default process group" in error.text):
        raise Unsupported(f"contexts of {ctx.subject.name} are on groups that torch.distributed has made")
    model.zero_grad()
    model(models.divisible_scalar(ctx.rank, 0)).sum().backward()
    return error, seen, gradient(model.module.weight)


@check("DDPJ-007", worlds=(1, 2, 3), backends=("gloo",), beyond=False)
def test_a_group_needs_no_world_around_it(ranks):
    schedule = tuple(range(1, 1 + ranks.world))
    for rank, (error, seen, last) in enumerate(ranks(train_without_a_world, init=False)):
        assert error is None, f"rank {rank}: {error}"
        assert seen == scalar_means(schedule)[: schedule[rank]], f"rank {rank}"
        assert [last] == scalar_means((1,) * ranks.world), f"rank {rank}, behind the block"


class Turning(torch.nn.Module):
    """Complex parameters; every gradient is the complex conjugate of the input."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64)) for _ in range(2))

    def forward(self, x):
        return (self.a * x + self.b * x).sum().real


class Complex(Elsewhere):
    """Shows what was reduced as complex numbers where two real ones stand for each."""

    def allreduce(self, tensors, options):
        reduced = [tensor.clone() for tensor in tensors]
        work = self._inner.allreduce(reduced, options)
        shown = [torch.view_as_complex(each) if each.dim() and each.shape[-1] == 2 else each for each in reduced]
        return self._work(work, shown if tensors[0].is_floating_point() else reduced)


def train_complex(ctx):
    ctx.subject.require(OF_PYTHON)
    seen = []
    for kind in (Elsewhere, Complex):
        model = wrapped(ctx, Turning(), process_group=kind(ctx.group, True))
        for iteration in range(COUNT):
            model.zero_grad()
            model(torch.full((3,), complex(4 * ctx.rank, 8 + iteration))).backward()
            seen.append([torch.view_as_real(p.grad).tolist() for p in model.parameters()])
    return seen


@check("DDP-052", "DDP-049", worlds=(1, 2, 4), beyond=False)
def test_complex_results_are_taken_from_the_future_in_either_form(ranks):
    mean = sum(4 * rank for rank in range(ranks.world)) / ranks.world
    expected = [[[[mean, -8.0 - iteration]] * 3] * 2 for iteration in range(COUNT)]
    for rank, seen in enumerate(ranks(train_complex)):
        assert seen == expected * 2, f"rank {rank}"


def train_with_the_built_in_hook(ctx):
    ctx.subject.require(OF_PYTHON)
    group = Elsewhere(ctx.group, demands_timeout=True)
    model = wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB, process_group=group)
    private(model, "_register_builtin_comm_hook")(ctx.subject.BuiltinCommHookType.ALLREDUCE)
    return steps(ctx, model, count=COUNT)


@check("COMM-017", worlds=WORLDS, beyond=False)
def test_the_built_in_hook_takes_the_result_from_the_future_too(ranks):
    for rank, seen in enumerate(ranks(train_with_the_built_in_hook)):
        assert seen == alone(range(ranks.world), count=COUNT), f"rank {rank}"


def spill_in_a_context(ctx):
    """By group, the error that leaves a block over a joinable on a group that torch has not made."""
    ctx.subject.require(OF_PYTHON)
    told = []
    for demands_timeout in GROUPS.values():
        joinable = recorder(ctx, group=Elsewhere(ctx.group, demands_timeout))

        def train(joinable=joinable):
            with ctx.subject.Join([joinable]):
                joinable.step()
                raise BadBatch("planted")

        told.append(caught(train))
        if told[-1] is not None and "is not registered" in told[-1].text:
            raise Unsupported(f"contexts of {ctx.subject.name} are on groups that torch.distributed has made")
    return told


@check("JOIN-023", worlds=(1, 2), beyond=False)
def test_the_error_of_a_body_leaves_a_block_on_such_a_group_as_it_is(ranks):
    for rank, told in enumerate(ranks(spill_in_a_context)):
        for error in told:
            assert error is not None, f"rank {rank}"
            assert error.is_a(BadBatch), f"rank {rank}: {error}"


def count_in_futures(ctx, beside):
    """What the futures of a joinable's handles hold, in a context on a group whose futures hold bare tensors."""
    ctx.subject.require(OF_PYTHON)
    group, told = WithBareFutures(ctx.group, True), []
    joinable = recorder(ctx, group=group)
    others = [wrapped(ctx, models.Sum(), process_group=group)] if beside else []

    def train():
        with ctx.subject.Join([joinable, *others]):
            for iteration in range(2):
                future = joinable.notify().get_future()
                told.append([float(each) for each in future.wait()])
                for model in others:
                    model(models.divisible(ctx.rank, iteration)).sum().backward()

    error = caught(train)
    if error is not None and "is not registered" in error.text:
        raise Unsupported(f"contexts of {ctx.subject.name} are on groups that torch.distributed has made")
    return error, told


@check("JOIN-031", worlds=(1, 2), scenarios={"by itself": False, "beside a model": True}, beyond=False)
def test_the_number_of_active_ranks_is_found_in_bare_futures(ranks, scenario):
    for rank, (error, told) in enumerate(ranks(count_in_futures, scenario)):
        assert error is None, f"rank {rank}: {error}"
        assert told == [[ranks.world]] * 2, f"rank {rank}"
