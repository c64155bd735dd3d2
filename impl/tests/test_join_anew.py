"""A context on a group on which one has failed: right where the ranks are in step, and refused where they are not."""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

from impl import DistributedDataParallel, Join, ZeroRedundancyOptimizer
from impl.comm.ranks import Team
from impl.errors import PeerFailed
from impl.join import in_step
from impl.tests.comm_hook_ranks import run_on_ranks
from impl.tests.joinables import Plain

pytestmark = pytest.mark.slow


def weight_of_one(group=None):
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    return DistributedDataParallel(layer, process_group=group)


def epoch(model, rank, fails=lambda iteration: False):
    with Join([model]):
        for iteration in range(2):
            if fails(iteration):
                raise KeyError("bad sample")
            model.zero_grad()
            model(torch.full((1, 1), 4.0 * (1 + rank))).sum().backward()
    return model.module.weight.grad.item()


def fail_and_go_on(rank, world, failing, elsewhere):
    model = weight_of_one()
    with pytest.raises((KeyError, RuntimeError)):
        epoch(model, rank, lambda iteration: iteration == 1 and rank in failing)
    told = []
    for group in [dist.new_group()] * 2 if elsewhere else [None] * 2:
        model = model if group is None else weight_of_one(group)
        try:
            told.append(epoch(model, rank))
        except RuntimeError as error:
            told.append(f"{error} {model._join_config.enable}")
    return told


@pytest.mark.parametrize("world", [2, 3])
def test_where_one_rank_failed_the_group_is_refused_again_and_again(world):
    for refusals in run_on_ranks(fail_and_go_on, world, [1], False):
        for refusal in refusals:
            assert "out of step" in str(refusal)
            assert "make a new process group on all ranks" in refusal
            assert refusal.endswith(" False"), "the model is still enabled for a context"


def test_where_all_ranks_failed_at_one_place_they_go_on():
    assert run_on_ranks(fail_and_go_on, 2, [0, 1], False) == [[6.0, 6.0]] * 2


def test_a_new_group_is_in_step():
    assert run_on_ranks(fail_and_go_on, 2, [1], True) == [[6.0, 6.0]] * 2


def fail_at_the_very_end(rank, world):
    model = weight_of_one()
    join = Join([model])
    hook, right = join._join_hooks[0], type(join._join_hooks[0]).post_hook

    def post_hook(is_last_joiner):
        right(hook, is_last_joiner)
        if rank == 0:
            raise KeyError("no space left")

    hook.post_hook = post_hook
    try:
        with join:
            model(torch.ones(1, 1)).sum().backward()
    except KeyError:
        assert rank == 0
    return epoch(model, rank)


def test_a_failure_after_the_last_collective_keeps_nobody_waiting():
    assert run_on_ranks(fail_at_the_very_end, 2) == [6.0, 6.0]


def evaluate_alone(rank, _world):
    model = weight_of_one()
    with Join([model]):
        for iteration in range(2 + rank):
            model(torch.ones(1, 1)).sum().backward()
            if (rank, iteration) == (0, 1):
                with torch.no_grad():
                    model.eval()(torch.ones(1, 1))
                model.train()
    return "left"


def test_one_rank_may_evaluate_inside_a_context():
    assert run_on_ranks(evaluate_alone, 2) == ["left", "left"]


class Lost(dist.HashStore):
    """A store whose host has gone."""

    def set(self, *_):
        raise dist.DistStoreError("Broken pipe")


@pytest.mark.usefixtures("alone")
def test_a_lost_store_keeps_nobody_from_training():
    in_step.tell(Team.of(), "join/g/1", Lost())


def messages_between_two(what, model, rank):
    """What is no collective, or one that a backend may count unequally."""
    if what == "states":
        zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.0)
        zero.consolidate_state_dict(0)
    elif what == "barrier":
        dist.monitored_barrier()
    elif rank < 2:
        number = torch.ones(1)
        dist.send(number, 1) if rank == 0 else dist.recv(number, 0)


def fail_together(rank, _world, what, inside):
    model = weight_of_one()
    if not inside:
        messages_between_two(what, model, rank)
    with pytest.raises(KeyError), Join([model]):
        if inside:
            messages_between_two(what, model, rank)
        raise KeyError("the same on all ranks")
    return epoch(model, rank)


@pytest.mark.parametrize("what", ["states", "barrier", "a message"])
@pytest.mark.parametrize("inside", [False, True], ids=["before the context", "inside"])
def test_messages_between_two_ranks_do_not_put_a_group_out_of_step(what, inside):
    assert run_on_ranks(fail_together, 3, what, inside) == [8.0, 8.0, 8.0]


def fail_about_a_hook(rank, _world, where):
    """Rank 1 fails in its communication hook, rank 0 right behind the backward."""
    model = weight_of_one()

    def hook(_state, bucket):
        if rank == 1 and where == "before its collective":
            raise KeyError("here")
        dist.all_reduce(torch.ones(1), async_op=True)
        if rank == 1 and where == "behind its collective":
            raise KeyError("here")
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, hook)
    with pytest.raises((KeyError, PeerFailed)), Join([model]):
        model(torch.ones(1, 1)).sum().backward()
        raise KeyError("here")
    try:
        return len([epoch(model, rank)])
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("where", ["before its collective", "behind its collective"])
def test_a_group_is_refused_where_a_rank_has_left_a_hook_that_others_have_ended(where):
    for told in run_on_ranks(fail_about_a_hook, 2, where):
        assert "out of step" in str(told)


def test_a_group_is_in_step_where_all_have_left_a_hook_at_one_place():
    assert run_on_ranks(fail_about_a_hook, 2, "nowhere") == [1, 1]


def fail_and_be_replaced(rank, _world, folder):
    """Ranks 0 and 1 fail together; rank 2 takes the place of rank 1 in a new world. Then they fail once more."""
    dist.barrier()  # a rank that left before the others have met would break their connections
    dist.destroy_process_group()
    told = []
    for life, members in enumerate(([0, 1], [0, 2])):
        if rank not in members:
            continue
        place = members.index(rank)
        meeting = dist.FileStore(f"{folder}/{life}", 2)
        dist.init_process_group("gloo", store=meeting, rank=place, world_size=2)
        model = weight_of_one()
        told.append(epoch(model, place))
        with pytest.raises(KeyError):
            epoch(model, place, lambda iteration: iteration == 1)
        if life == 1:
            told.append(epoch(model, place))
        dist.destroy_process_group()
    return told


def test_a_group_made_anew_with_a_rank_that_was_replaced_is_new(tmp_path):
    assert run_on_ranks(fail_and_be_replaced, 3, str(tmp_path)) == [[6.0, 6.0, 6.0], [6.0], [6.0, 6.0]]


class Delegates(dist.ProcessGroup):
    """A group of the user's own, of which torch.distributed was never told. It has no name."""

    def allreduce(self, tensors, options):
        return dist.group.WORLD.allreduce(tensors, options)


def use_a_group_of_ones_own(rank, world):
    counts, told = Plain(Delegates(rank, world)), []
    for fails in (True, False):
        try:
            with Join([counts]):
                told += [Join.notify_join_context(counts).result()[0].item() for _ in range(2)]
                if fails:
                    raise KeyError("mine")
        except KeyError as error:
            told.append(str(error))
    return told


def test_a_group_that_torch_does_not_know_may_fail_and_go_on():
    assert run_on_ranks(use_a_group_of_ones_own, 2) == [[2, 2, "'mine'", 2, 2]] * 2


def test_what_is_kept_of_a_group_goes_with_it():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = weakref.ref(dist.group.WORLD)
    model = weight_of_one()
    assert epoch(model, 0) == 4.0
    del model
    dist.destroy_process_group()
    gc.collect()
    assert group() is None


def move_between_building_and_entering(rank, _world):
    """The context is built on all ranks and entered, on uneven inputs, by those to whom the model has moved."""
    model = weight_of_one()
    context = Join([model], divide_by_initial_world_size=False)
    group = dist.new_group([0, 1])
    if rank == 2:
        return None
    model._update_process_group(group)
    with context:
        for _ in range(1 + rank):
            model.zero_grad()
            model(torch.full((1, 1), 4.0 * (1 + rank))).sum().backward()
    return model.module.weight.grad.item()


def test_a_context_is_on_the_ranks_on_which_its_model_is_when_it_is_entered():
    assert run_on_ranks(move_between_building_and_entering, 3) == [6.0, 8.0, None]
