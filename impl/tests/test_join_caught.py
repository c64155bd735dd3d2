"""Programs that part from the usual way through a context: errors caught in the block, contexts within each other."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from impl import DistributedDataParallel, Join, ZeroRedundancyOptimizer
from impl.comm import collectives, heartbeats
from impl.comm.duplex import way_from
from impl.comm.guard import DETECTION, Guard
from impl.comm.ranks import STRICT, GroupRank, Team
from impl.ddp.mixed_precision import _MixedPrecision
from impl.errors import InputsExhausted, PeerFailed, RanksDisagree
from impl.tests.comm_hook_ranks import run_on_ranks
from impl.tests.joinables import Plain

pytestmark = pytest.mark.slow


def layer(inputs=1, outputs=1):
    made = nn.Linear(inputs, outputs, bias=False)
    nn.init.ones_(made.weight)
    return made


def model_of(*shape, **options):
    return DistributedDataParallel(layer(*shape), **options)


def gradient(model):
    weight = model.module.weight
    weight.grad = None
    model(torch.ones(1, weight.shape[1])).sum().backward()
    return weight.grad.flatten()[0].item()


def wait_in_a_block_that_a_peer_has_left(rank, _world):
    """Rank 0 leaves an inner block by an error, and stays in the outer one; rank 1 waits inside, in what no context
    lists. What that one is told there."""
    outer, inner, store, told = Plain(), Plain(), dist.distributed_c10d._get_default_store(), ""
    with contextlib.suppress(LookupError, PeerFailed), Join([outer]):
        try:
            with Join([inner]):
                if rank == 0:
                    raise LookupError("spilled the tea")
                model_of()
        except PeerFailed as error:
            told = str(error)
            store.set("told", "")
            raise
        except LookupError:
            store.wait(["told"])
            raise
    return told


def test_who_waits_in_an_inner_block_learns_of_who_has_left_that_one_alone():
    _, told = run_on_ranks(wait_in_a_block_that_a_peer_has_left, 2)
    assert "rank 0 left the join context with LookupError" in told


def throw_and_go_on(rank, _world, followed):
    """The error is caught inside the block; what leaving it raises, and what the group computes after that."""
    thing = model_of() if followed else Plain()
    told = []
    try:
        with Join([thing], throw_on_early_termination=True), contextlib.suppress(InputsExhausted):
            for _ in range(2 + 2 * rank):
                gradient(thing) if followed else Join.notify_join_context(thing)
    except InputsExhausted as error:
        told.append(str(error).split(".")[0])
    number = torch.ones(1, dtype=torch.int64)
    dist.all_reduce(number)
    return told, number.item()


@pytest.mark.parametrize("followed", [True, False])
def test_who_catches_inside_the_block_that_inputs_have_run_out_meets_it_again_at_its_end(followed):
    first, second = "Rank 0 exhausted all inputs", "Detected at least one rank that exhausted inputs"
    assert run_on_ranks(throw_and_go_on, 2, followed) == [([first], 2), ([second], 2)]


class Spilled(Exception):
    """A class of the program's own."""


def fail_in_a_future(_rank, _world):
    """A hook's future ends with an error of the program's own, inside a context."""
    model = model_of()

    def hook(_state, _bucket):
        future = torch.futures.Future()
        future.set_exception(Spilled("the tea"))
        return future

    model.register_comm_hook(None, hook)
    try:
        with Join([model]):
            gradient(model)
    except Exception as error:
        return type(error).__name__, str(error)


def test_what_a_hooks_future_ended_with_comes_out_of_backward_in_its_class():
    assert run_on_ranks(fail_in_a_future, 2) == [("Spilled", "the tea")] * 2


def disagree_and_go_on(rank, _world):
    """Ranks 1 and 2 run two models in different orders when rank 0 has run out."""
    models = [model_of(), model_of()]
    with pytest.raises(RanksDisagree), Join(models), contextlib.suppress(RanksDisagree):
        for iteration in range(1 + 2 * min(rank, 1)):
            for model in models[:: -1 if rank == 2 and iteration else 1]:
                gradient(model)
    return True


def test_who_catches_inside_the_block_that_ranks_disagree_meets_it_again_at_its_end():
    assert run_on_ranks(disagree_and_go_on, 3) == [True] * 3


def divide(rank, _world):
    model, other = model_of(), model_of()
    few, everybody = model.join(divide_by_initial_world_size=False), model.join()
    seen = []
    for context in (few, everybody, few):
        with context:
            seen.append([gradient(model) for _ in range(1 + rank)])
    with Join([model, other], divide_by_initial_world_size=False):
        with everybody:
            gradient(model)
        seen.append([gradient(model) for _ in range(1 + rank)])
    return seen


def test_each_context_divides_by_its_own_rule_whatever_was_built_since_or_is_inside_it():
    assert run_on_ranks(divide, 2)[1] == [[1.0, 1.0], [1.0, 0.5], [1.0, 1.0], [1.0, 1.0]]


def nest(rank, _world, sharded, around):
    """The inner context does not list all that is used in it; so many others are ``around`` both."""
    a, b = model_of(2, 2), model_of(2, 2)
    zero = ZeroRedundancyOptimizer(a.parameters(), torch.optim.SGD, lr=0.5)
    outer, inner = (Join([a, zero]), a.join()) if sharded else (a.join(), b.join())
    with contextlib.ExitStack() as stack:
        for context in (*(model_of().join() for _ in range(around)), outer, inner):
            stack.enter_context(context)
        for _ in range(1 + rank):
            gradient(a)
            if sharded:
                zero.step()
            else:
                gradient(b)
    return "left"


def told_of_nesting(rank, world, sharded, around):
    with pytest.raises(RuntimeError, match=r"List all that the block uses in one Join|outer"):
        nest(rank, world, sharded, around)
    return True


@pytest.mark.parametrize(("sharded", "around"), [(False, 0), (True, 0), (False, 1), (False, 2)])
def test_what_only_an_outer_context_lists_is_refused_where_ranks_have_run_out_in_the_inner_one(sharded, around):
    assert run_on_ranks(told_of_nesting, 2, sharded, around) == [True, True]


def nest_evenly(_rank, _world):
    a, b = model_of(2, 2), model_of(3, 2)
    with a.join(), b.join():
        return [(gradient(a), gradient(b)) for _ in range(2)]


def test_two_contexts_within_each_other_serve_even_inputs():
    assert run_on_ranks(nest_evenly, 2) == [[(1.0, 1.0)] * 2] * 2


def leave_one_open(rank, _world):
    """The second model's last forward has no backward, and a new iteration begins with the first model."""
    first, second = model_of(), model_of()
    seen = []
    with Join([first, second]):
        for _ in range(1 + 2 * rank):
            seen.append(gradient(first))
            second(torch.ones(1, 1))
    return seen


def test_a_forward_without_a_backward_keeps_nobody_from_the_next_iteration_of_another_model():
    assert run_on_ranks(leave_one_open, 2) == [[1.0], [1.0, 0.5, 0.5]]


class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = layer()
        self.register_buffer("shift", torch.zeros(1))

    def forward(self, x):
        return self.inner(x) + self.shift


class Late:
    """A work that ends a second later."""

    def __init__(self, work):
        self._work, self._end = work, time.monotonic() + 1

    def is_completed(self):
        return time.monotonic() > self._end

    def wait(self, limit):
        left = self._end - time.monotonic()
        time.sleep(max(min(left, limit.total_seconds()), 0))
        if not self.is_completed():
            raise RuntimeError("the time is over")
        return self._work.wait()


def two_forwards(rank, _world):
    """All ranks make two forwards before one backward; buffers reach rank 1 late."""
    model, seen = DistributedDataParallel(Buffered()), []
    right = collectives.broadcast

    def late(*args):
        pending = right(*args)
        pending.work = Late(pending.work)
        return pending

    with model.join():
        for _ in range(2 + min(rank, 1)):
            model.zero_grad()
            collectives.broadcast = late if rank == 1 else right
            losses = [model(torch.ones(1, 1)).sum() for _ in range(2)]
            collectives.broadcast = right
            sum(losses).backward()
            seen.append(model.module.inner.weight.grad.item())
    return seen


def test_a_rank_that_waits_for_buffers_is_not_taken_for_one_that_reduces():
    assert run_on_ranks(two_forwards, 3)[1] == [2.0, 2.0, pytest.approx(4 / 3)]


def lower_and_leave(rank, _world):
    """The only rank with inputs ends with a forward; its parameters are low then, those of the other are not."""
    model = model_of(4, 4, mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16))
    nn.init.constant_(model.module.weight, 1.0 + 2.0**-20 * rank)
    with model.join():
        for _ in range(rank):
            model(torch.ones(1, 4))
    return model.module.weight.dtype, model.module.weight.unique().tolist()


def test_a_model_in_mixed_precision_leaves_a_context_with_the_full_values_of_the_last_rank():
    assert run_on_ranks(lower_and_leave, 2) == [(torch.float32, [1.0 + 2.0**-20])] * 2


# -- failures


def fail_and_try_again(rank, _world):
    """One rank's backward raises behind its first bucket and is tried again, while the other goes on."""
    layers = nn.Sequential(layer(), layer(2, 1), layer(1, 2))
    model = DistributedDataParallel(nn.Sequential(layers[0], layers[2], layers[1]), bucket_cap_mb=0)
    inputs = torch.ones(1, 1)
    try:
        with model.join():
            for _ in range(3):
                model(inputs).sum().backward()
            loss = model(inputs).sum()
            if rank == 0:
                with layers[0].weight.register_hook(lambda _: 1 / 0), contextlib.suppress(ZeroDivisionError):
                    loss.backward(retain_graph=True)
            loss.backward()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


def test_a_backward_that_one_rank_tries_again_is_refused_inside_a_block():
    first, second = run_on_ranks(fail_and_try_again, 2)
    assert first.startswith("RuntimeError: Join: rank 0 cannot go on in this block")
    assert second.startswith("PeerFailed: Join: rank 0 left the join context")


def freeze(seconds):
    subprocess.Popen(["/bin/sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    return True


def freeze_before_the_block(rank, _world):
    os.environ[DETECTION] = "2"
    model = model_of()
    model.join()
    gradient(model)
    if rank == 1:
        return freeze(6)
    with pytest.raises(PeerFailed, match="rank 1 has stopped answering"):
        gradient(model)
    return True


def freeze_before_the_next_block(rank, _world):
    os.environ[DETECTION] = "2"
    model = model_of()
    with pytest.raises(KeyError), model.join():
        gradient(model)
        raise KeyError
    if rank == 1:
        return freeze(6)
    begun = time.monotonic()
    with pytest.raises(PeerFailed, match="rank 1 has stopped answering"), model.join():
        gradient(model)
    return time.monotonic() - begun < 5


def caught_and_gone_on(rank):
    """Rank 0 has failed in a block, rank 1 because of it; both have caught that, and build anew on a new group."""
    os.environ[DETECTION] = "2"
    model = model_of()
    with contextlib.suppress(KeyError, PeerFailed), model.join():
        gradient(model)
        if rank == 0:
            raise KeyError
        gradient(model)
    model = model_of(process_group=dist.new_group())
    gradient(model)
    return model


def freeze_after_a_failure(rank, _world):
    model = caught_and_gone_on(rank)
    if rank == 1:
        return freeze(6)
    with pytest.raises(PeerFailed, match="rank 1 has stopped answering"):
        gradient(model)
    return True


def end_by_a_mistake_after_a_failure(rank, _world):
    model = caught_and_gone_on(rank)
    if rank == 1:
        sys.last_value = ValueError("of its own")  # as Python leaves what nobody has caught
        heartbeats._leave_all()
        return True
    with pytest.raises(PeerFailed, match=r"the program of rank 1 .* has ended with ValueError: of its own"):
        gradient(model)
    return True


def fail_on_another_group(rank, _world, guarded):
    """A collective of rank 1 fails on a group without rank 0, and it goes on living; while it looks for the cause, its
    guard meets rank 0."""
    os.environ[DETECTION] = "5" if guarded else "0"
    model = model_of()
    unmet = ["rank 0"]
    Guard._unmet = lambda _: unmet.pop() if unmet else ""
    lost = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    with pytest.raises(RuntimeError) as caught, model.join():
        gradient(model)
        if rank == 1:
            raise RuntimeError(lost)
        gradient(model)
    return f"rank 1 left the join context with RuntimeError: {lost}" in str(caught.value) if rank == 0 else True


def wait_alone(rank, _world):
    """Between two hosts rank 1 waits for what rank 0, which fails, never sends; both go on with the model."""
    os.environ["JOINERY_HOSTID"] = f"host {rank}"
    model, team = model_of(), Team.of(None)
    way = way_from(GroupRank(0), team, torch.device("cpu"))
    with contextlib.suppress(KeyError, PeerFailed), model.join():
        gradient(model)
        if rank == 0:
            raise KeyError
        collectives.broadcast(way, torch.ones(1), GroupRank(0), "alone").wait()
    with pytest.raises(RuntimeError, match="out of step"):
        gradient(model)
    return way is not team


def raise_in_strict_mode(rank, _world):
    os.environ[STRICT] = "1"
    model = model_of()
    if rank == 1:
        with pytest.raises(KeyError), model.join():
            gradient(model)
            raise KeyError("spilled the tea")
        return True
    with pytest.raises(PeerFailed, match="rank 1 left the join context with KeyError: 'spilled the tea'"), model.join():
        for _ in range(3):
            gradient(model)
    return True


def raise_in_a_consolidation(rank, _world):
    model = model_of()
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.5)

    def fail():
        raise KeyError("spilled the tea")

    if rank == 1:
        zero.shard.states = fail
        with pytest.raises(KeyError), Join([model, zero]):
            gradient(model)
            zero.consolidate_state_dict()
        return True
    with pytest.raises(PeerFailed, match="rank 1 left the join context with KeyError: 'spilled the tea'"):
        with Join([model, zero]):
            gradient(model)
            zero.consolidate_state_dict()
    return True


@pytest.mark.parametrize("program", [freeze_before_the_block, freeze_before_the_next_block])
def test_a_rank_that_freezes_is_named_before_a_block_and_between_two(program):
    assert run_on_ranks(program, 2) == [True, True]


@pytest.mark.parametrize("program", [freeze_after_a_failure, end_by_a_mistake_after_a_failure])
def test_a_rank_that_has_caught_a_peers_failure_is_named_when_it_ends_later(program):
    assert run_on_ranks(program, 2) == [True, True]


@pytest.mark.parametrize("guarded", [True, False])
def test_a_failure_on_another_group_is_told_where_nobody_else_knows_of_it(guarded):
    assert run_on_ranks(fail_on_another_group, 2, guarded) == [True, True]


def test_behind_a_failure_what_one_of_two_hosts_has_begun_alone_is_not_mixed_with_what_comes():
    assert run_on_ranks(wait_alone, 2) == [True, True]


@pytest.mark.parametrize("program", [raise_in_strict_mode, raise_in_a_consolidation])
def test_whatever_a_rank_waits_for_in_a_block_it_hears_of_a_peer_that_has_left(program):
    assert run_on_ranks(program, 2) == [True, True]
