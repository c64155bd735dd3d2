"""What the ranks that are left hand over to each other, and what they refuse to."""

import threading
import time
from contextlib import suppress

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer

from impl import DistributedDataParallel, ZeroRedundancyOptimizer
from impl.ddp.hooks.default_hooks import allreduce_hook
from impl.ddp.hooks.optimizer_overlap_hooks import _hook_then_optimizer, _OptimizerHookState
from impl.ddp.hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from impl.ddp.survivors import regroup
from impl.errors import PeerFailed
from impl.tests.comm_hook_ranks import run_on_ranks
from impl.tests.test_survivors import Weights, die, stepped
from impl.zero.publisher import Publisher

pytestmark = pytest.mark.slow

_LIMIT_S = 15.0


def until_lost(model):
    with pytest.raises(PeerFailed):
        while True:
            model.reducer.team.guard()
            time.sleep(0.01)


def one_that_goes_on_later(rank, _world):
    """Rank 2 stands still before it publishes its second step, and does so when the others are two steps further."""
    model = DistributedDataParallel(Weights((400_000,) * 3))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.25)
    optimizer.keep_mirror()
    store, publish = dist.distributed_c10d._get_default_store(), Publisher.publish
    stepped(model, optimizer)

    def late(*args, **kwargs):
        die()
        store.wait(["further"])
        # it starts to send, and may wait for ever for those that had seen it go before they sent
        sends = threading.Thread(target=publish, args=args, kwargs=kwargs, daemon=True)
        sends.start()
        sends.join(2.0)
        raise RuntimeError

    if rank == 2:
        Publisher.publish = late
        with suppress(RuntimeError):
            stepped(model, optimizer)
        store.set("published", "")
        store.wait(["seen"])
        model.reducer.team.abandon()
        return None
    with pytest.raises(PeerFailed):
        stepped(model, optimizer)
    steps = regroup(model, optimizer, 1, _LIMIT_S).steps
    for _ in range(2):
        stepped(model, optimizer)
    store.set("further", "")
    store.wait(["published"])
    time.sleep(0.5)
    found = sorted({value for parameter in model.parameters() for value in parameter.unique().tolist()})
    dist.barrier(model.process_group)
    store.set("seen", "")
    return steps, found


def test_what_a_lost_rank_still_sends_reaches_no_parameter():
    found = 1, [1 - 3 * 0.25]
    assert run_on_ranks(one_that_goes_on_later, 3) == [found, found, None]


class Clocked(torch.optim.SGD):
    """Keeps a clock and random numbers, which it saves by itself."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        self.clock, self.drawn = [nn.Module()], torch.Generator().manual_seed(7)  # a module is no number
        self.clock[0].ticks = 0

    def step(self, closure=None):
        self.clock[0].ticks += 1
        torch.rand(1, generator=self.drawn)
        return super().step(closure)

    def state_dict(self):
        return {**super().state_dict(), "ticks": self.clock[0].ticks}

    def load_state_dict(self, state_dict):
        self.clock[0].ticks = state_dict["ticks"]
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "ticks"})


def what_an_optimizer_keeps(rank, _world, sharded):
    model = DistributedDataParallel(Weights((2, 3, 4)))
    called = []
    if sharded:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), Clocked, lr=0.5)
        optimizer.keep_mirror()
        handle = optimizer.optim.register_step_post_hook(lambda *_: called.append(""))
    else:
        optimizer = Clocked(model.parameters(), lr=0.5)
    for _ in range(2):
        stepped(model, optimizer)
    if rank == 2:
        return die()
    if rank == 0 and not sharded:
        optimizer.step()
    until_lost(model)
    steps = regroup(model, optimizer, 3 if rank == 0 and not sharded else 2, _LIMIT_S).steps
    stepped(model, optimizer)
    local = optimizer.optim if sharded else optimizer
    if sharded:
        handle.remove()
        stepped(model, optimizer)
    return steps, local.clock[0].ticks, len(called), torch.rand(1, generator=local.drawn).item()


@pytest.mark.parametrize("sharded", [False, True])
def test_what_an_optimizer_saves_by_itself_its_random_numbers_and_its_hooks_go_on(sharded):
    drawn = torch.rand(5, generator=torch.Generator().manual_seed(7))[4].item()
    found = (2, 4, 3, drawn) if sharded else (3, 4, 0, drawn)
    assert run_on_ranks(what_an_optimizer_keeps, 3, sharded) == [found, found, None]


def hooks_on_the_models_group(rank, _world, powersgd):
    model = DistributedDataParallel(Weights((2, 3)))
    state = PowerSGDState(dist.group.WORLD, start_powerSGD_iter=10) if powersgd else dist.group.WORLD
    model.register_comm_hook(state, powerSGD_hook if powersgd else allreduce_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    stepped(model, optimizer)
    if rank == 2:
        return die()
    with pytest.raises(PeerFailed):
        stepped(model, optimizer)
    regroup(model, optimizer, 1, _LIMIT_S)
    stepped(model, optimizer)
    return model.module.inner[0][0].item()


@pytest.mark.parametrize("powersgd", [False, True])
def test_hooks_that_were_given_the_models_group_go_on_with_the_new_one(powersgd):
    assert run_on_ranks(hooks_on_the_models_group, 3, powersgd) == [0.0, 0.0, None]


def expanded_buffer(rank, _world):
    module = Weights((2, 3))
    module.register_buffer("wide", torch.ones(1).expand(4))
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if rank == 2:
        return die()
    until_lost(model)
    if rank == 0:
        with torch.no_grad():
            module.wide[:1] += 6
    regroup(model, optimizer, 1 - rank, _LIMIT_S)
    return module.wide.tolist(), module.wide.stride()


def test_expanded_buffers_are_handed_over():
    found = [7.0] * 4, (0,)
    assert run_on_ranks(expanded_buffer, 3) == [found, found, None]


def other_shapes(rank, _world):
    module = Weights((2, 3))
    module.own = nn.Parameter(torch.full((3 + rank,), float(rank)))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["own"])
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if rank == 2:
        return die()
    until_lost(model)
    with pytest.raises(RuntimeError, match=r"of rank 1 have other shapes than those of rank 0.*DDP ignores"):
        regroup(model, optimizer, 0, _LIMIT_S)
    return module.own.tolist()


def test_parameters_that_differ_by_rank_are_refused_and_left_alone():
    assert run_on_ranks(other_shapes, 3) == [[0.0] * 3, [1.0] * 4, None]


class StepParam:
    def step_param(self, parameter, gradient):
        parameter.data.sub_(gradient)


def steps_that_nobody_can_tell(rank, _world):
    model = DistributedDataParallel(Weights((2, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with pytest.raises(TypeError, match="PostLocalSGDOptimizer"):
        regroup(model, PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(period=2, warmup_steps=1)), 0)
    model.register_comm_hook(None, _hook_then_optimizer(allreduce_hook, _OptimizerHookState(StepParam())))
    with pytest.raises(TypeError, match="bucket by bucket"):
        regroup(model, optimizer, 0)
    return True


def test_a_hook_that_steps_and_a_wrapped_optimizer_are_refused():
    assert run_on_ranks(steps_that_nobody_can_tell, 2) == [True, True]


def a_mirror_made_again(rank, _world):
    """Rank 1 has made its new mirror, rank 0 not yet, when rank 2 is lost."""
    model = DistributedDataParallel(Weights((2, 3, 4)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.5)
    optimizer.keep_mirror()
    former = optimizer.mirror
    optimizer.keep_mirror()
    if rank == 2:
        return die()
    if rank == 0:
        optimizer.mirror = former
    until_lost(model)
    with pytest.raises(RuntimeError, match="is gone"):
        regroup(model, optimizer, 0, _LIMIT_S)
    return True


def test_copies_of_two_mirrors_are_never_put_together():
    assert run_on_ranks(a_mirror_made_again, 3) == [True, True, None]


def lost_between_two_models(rank, _world):
    """Rank 3 is lost, then rank 2 where one of two models has gone on."""
    models = [DistributedDataParallel(Weights((2, 3))) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in models]
    if rank == 3:
        return die()
    until_lost(models[0])
    first = regroup(models[0], optimizers[0], 0, _LIMIT_S)
    if rank == 2:
        return die()
    until_lost(models[0])
    second = regroup(models[1], optimizers[1], 0, _LIMIT_S)
    assert first.ranks == (0, 1, 2)
    assert second.ranks == (0, 1)
    again = regroup(models[0], optimizers[0], 0, _LIMIT_S)
    for each in zip(models, optimizers, strict=True):
        stepped(*each)
    return again.group is second.group, [model.module.inner[0][0].item() for model in models]


def test_a_model_whose_new_group_has_lost_a_rank_joins_the_others_by_a_further_call():
    found = True, [0.5, 0.5]
    assert run_on_ranks(lost_between_two_models, 4) == [found, found, None, None]
