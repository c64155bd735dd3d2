"""What a program does to a module after it was wrapped: thaws, adds, swaps, copies; and modules with their own ways."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from impl import DistributedDataParallel
from impl.ddp import _MixedPrecision
from impl.tests.comm_hook_ranks import run_on_ranks

pytestmark = pytest.mark.slow

WORLD = 2


def layer(*, trained=True):
    made = nn.Linear(1, 1, bias=False).requires_grad_(trained)
    nn.init.ones_(made.weight)
    return made


class Pair(nn.Module):
    """Averages are 3 for ``first`` and 6 for ``second``."""

    def __init__(self, *, first_is_trained=True):
        super().__init__()
        self.first = layer(trained=first_is_trained)
        self.second = layer()

    def forward(self, x):
        return self.first(x) + 2 * self.second(x)


def batch(rank):
    return torch.full((1, 1), 2.0 + 2 * rank)


def trained(model, rank):
    model(batch(rank)).sum().backward()
    return [None if parameter.grad is None else parameter.grad.item() for parameter in model.parameters()]


WAYS = {
    "copies": {},
    "views": {"gradient_as_bucket_view": True},
    "a search": {"find_unused_parameters": True},
    "a static graph": {"static_graph": True},
    "mixed precision": {"mixed_precision": _MixedPrecision(torch.bfloat16, torch.float32)},
    "left out while unused": {"find_unused_parameters": True, "skip_all_reduce_unused_params": True},
}


def thaw(rank, world, options):
    model, seen = DistributedDataParallel(Pair(first_is_trained=False), **options), []
    for iteration in range(6):
        model.module.first.requires_grad_(iteration >= 3)
        if iteration != 4:
            model.zero_grad()
        seen.append(trained(model, rank))
    return seen


@pytest.mark.parametrize("way", WAYS)
def test_what_is_thawed_is_averaged_from_then_on(way):
    expected = [[None, 6.0]] * 3 + [[3.0, 6.0], [6.0, 12.0], [3.0, 6.0]]
    assert run_on_ranks(thaw, WORLD, WAYS[way]) == [expected] * WORLD


def thaw_under_no_sync(rank, world):
    model = DistributedDataParallel(Pair(first_is_trained=False), find_unused_parameters=True)
    for _ in range(3):
        model.zero_grad()
        trained(model, rank)
    model.zero_grad()
    model.module.requires_grad_(True)
    with model.no_sync():
        local = trained(model, rank)
    return local, trained(model, rank)


def test_what_is_thawed_while_gradients_accumulate_is_averaged_with_them():
    told = run_on_ranks(thaw_under_no_sync, WORLD)
    assert told == [([2.0 + 2 * rank, 4.0 + 4 * rank], [6.0, 12.0]) for rank in range(WORLD)]


def thaw_in_a_block(rank, world, at):
    """Rank 0 has two inputs, rank 1 four."""
    model, seen = DistributedDataParallel(Pair(first_is_trained=False)), []
    with model.join(divide_by_initial_world_size=False):
        for iteration in range(2 + 2 * rank):
            model.module.first.requires_grad_(iteration >= at)
            model.zero_grad()
            seen.append(trained(model, rank))
    return seen


def test_in_a_join_block_ranks_without_inputs_follow_what_was_thawed_before():
    both, alone = [3.0, 6.0], [4.0, 8.0]
    assert run_on_ranks(thaw_in_a_block, WORLD, 1) == [
        [[None, 6.0], both], [[None, 6.0], both, alone, alone]
    ]  # fmt: skip


@pytest.mark.usefixtures("alone")
def test_the_log_tells_what_is_thawed_as_it_is_and_not_as_it_travels():
    model = DistributedDataParallel(Pair(first_is_trained=False), mixed_precision=_MixedPrecision(torch.bfloat16))
    model.module.requires_grad_(True)
    trained(model, 0)
    log = model._get_ddp_logging_data()
    entries = "num_parameter_tensors", "total_parameter_size_bytes", "dtypes"
    assert [log[entry] for entry in entries] == [2, 8, "float"]


def thaw_too_late(rank, world):
    with pytest.raises(RuntimeError) as told:
        thaw_in_a_block(rank, world, 3)
    return str(told.value)


def test_what_a_rank_without_inputs_cannot_thaw_is_refused():
    assert "thawed in a join block after some rank had run out" in run_on_ranks(thaw_too_late, WORLD)[1]


def thaw_between_blocks(rank, world):
    """In the second block rank 0 has no input."""
    model, seen = DistributedDataParallel(Pair(first_is_trained=False)), []
    for inputs in (2, 2 * rank):
        with model.join():
            for _ in range(inputs):
                model.zero_grad()
                seen.append(trained(model, rank))
        model.requires_grad_(True)
    return seen


def test_between_two_blocks_a_rank_that_makes_no_forward_thaws_as_well():
    before, after = [[None, 6.0]] * 2, [[2.0, 4.0]] * 2
    assert run_on_ranks(thaw_between_blocks, WORLD) == [before, before + after]


# -- what is put in later


def told_of(model, rank, times=3):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(times):
            model(batch(rank)).sum().backward()
    return [str(each.message) for each in told if "put into the module" in str(each.message)]


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.up = layer()

    def forward(self, x):
        return self.base(x) + self.up(x)


def adapt(rank, world):
    model = DistributedDataParallel(Pair(), find_unused_parameters=True)
    nothing = told_of(model, rank)
    model.module.first = Adapted(model.module.first)
    return nothing, told_of(model, rank)


def adapt_all(rank, world):
    """Everything that is averaged is frozen, so that no backward tells that something is missing."""
    model = DistributedDataParallel(Pair())
    nothing = told_of(model, rank)
    model.module.requires_grad_(False)
    model.module.first = Adapted(model.module.first)
    return nothing, told_of(model, rank)


@pytest.mark.parametrize("function", [adapt, adapt_all])
def test_parameters_that_are_put_in_later_are_told_of_once(function):
    for nothing, told in run_on_ranks(function, WORLD):
        assert nothing == []
        assert len(told) == 1
        assert "first.up.weight (1 in all)" in told[0]


def swap_the_module(rank, world):
    model = DistributedDataParallel(Pair())
    told_of(model, rank)
    model.zero_grad()
    model.module = nn.Sequential(model.module)
    told = told_of(model, rank, 1)
    same = [parameter.grad.item() for parameter in model.parameters()]
    model.module = Pair()
    told += told_of(model, rank, 1)
    with pytest.raises(RuntimeError, match="were replaced"):
        model(batch(rank))
    return same, told


def test_another_module_with_the_same_parameters_is_averaged_and_one_with_others_told_of():
    for same, told in run_on_ranks(swap_the_module, WORLD):
        assert same == [3.0, 6.0]
        assert len(told) == 1
        assert "first.weight, second.weight (2 in all)" in told[0]


def prune_later(rank, world):
    torch.manual_seed(rank)
    module = nn.Linear(8, 1, bias=False)
    model = DistributedDataParallel(module)
    model(torch.ones(1, 8)).sum().backward()
    prune.random_unstructured(module, "weight", amount=0.5)
    model.zero_grad()
    model(torch.full((1, 8), 2.0 + 2 * rank)).sum().backward()
    return module.weight_mask.tolist(), (module.weight_orig.grad / 3).tolist()


def test_the_first_buffer_of_a_model_is_that_of_rank_0_whenever_it_comes():
    told = run_on_ranks(prune_later, WORLD)
    assert told[0] == told[1]
    assert told[0][0] == told[0][1]  # gradients where the mask is


# -- gradients that change places


def swap(a, b):
    a.grad, b.grad = b.grad, a.grad


def swap_memory(a, b):
    a.grad.data, b.grad.data = b.grad.data, a.grad.data


def swap_gradients(rank, world, act, options):
    model = DistributedDataParallel(Pair(), gradient_as_bucket_view=True, **options)
    seen = [trained(model, rank)]
    for cleared in (True, False):
        act(*model.parameters())
        if cleared:
            model.zero_grad(set_to_none=False)
        seen.append(trained(model, rank))
    return seen


@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 1e-6}, {"find_unused_parameters": True}])
@pytest.mark.parametrize("act", [swap, swap_memory])
def test_gradients_that_a_program_swaps_are_averaged_where_they_are(act, options):
    assert run_on_ranks(swap_gradients, WORLD, act, options) == [[[3.0, 6.0], [3.0, 6.0], [9.0, 9.0]]] * WORLD


def swap_delayed_gradients(rank, world):
    module = nn.Sequential(Pair(), layer())
    late = [(f"0.{name}", each) for name, each in module[0].named_parameters()]
    model = DistributedDataParallel(
        module, delay_all_reduce_named_params=late, param_to_hook_all_reduce=module[1].weight
    )  # fmt: skip
    seen = []
    for _ in range(2):
        seen.append(trained(model, rank)[:2])
        swap(*module[0].parameters())
        model.zero_grad(set_to_none=False)
    return seen


def test_delayed_gradients_that_a_program_swaps_are_averaged_where_they_are():
    assert run_on_ranks(swap_delayed_gradients, WORLD) == [[[3.0, 6.0]] * 2] * WORLD


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.outer = inner, layer()

    def forward(self, x):
        return self.inner(x) + 2 * self.outer(x)


def train_a_wrapper_in_a_wrapper(rank, world, copied):
    options = {"gradient_as_bucket_view": True}
    model = DistributedDataParallel(Around(DistributedDataParallel(layer(), **options)), **options)
    model, seen = copy.deepcopy(model) if copied else model, []
    for _ in range(4):
        model.zero_grad(set_to_none=False)
        seen.append(trained(model, rank))
    return seen


@pytest.mark.parametrize("copied", [False, True])
def test_a_wrapper_in_a_wrapper_averages_the_gradients_that_both_manage(copied):
    assert run_on_ranks(train_a_wrapper_in_a_wrapper, WORLD, copied) == [[[3.0, 6.0]] * 4] * WORLD


class Sharing(nn.Module):
    """Two layers side by side; what it runs first gets its gradient last."""

    def __init__(self, shared, *, own_first):
        super().__init__()
        self.own, self.shared, self.own_first = layer(), shared, own_first

    def forward(self, x):
        first, then = (self.own, self.shared) if self.own_first else (self.shared, self.own)
        return first(x) + then(x)


def train_two_wrappers_over_one_layer(rank, world, order, options):
    shared = layer()
    pair = [DistributedDataParallel(Sharing(shared, own_first=own_first), **options) for own_first in (True, False)]
    seen = []
    for iteration in range(5):
        for model in pair:
            model.zero_grad(set_to_none=iteration == 0)
        outputs = [model(batch(rank)) for model in pair]
        sum(outputs[place].sum() for place in order).backward()
        seen.append([each.grad.item() for each in (shared.weight, *(model.module.own.weight for model in pair))])
    return seen


@pytest.mark.parametrize("options", [
    {"gradient_as_bucket_view": True}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 1e-6}
])  # fmt: skip
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_wrappers_average_a_layer_that_both_have(order, options):
    told = run_on_ranks(train_two_wrappers_over_one_layer, WORLD, order, options)
    assert told == [[[6.0, 3.0, 3.0]] * 5] * WORLD


def train_in_turns(rank, world):
    """Two wrappers over one layer, one after the other: where its gradient lies in the end."""
    shared, options = layer(), {"gradient_as_bucket_view": True}
    pair = [DistributedDataParallel(Sharing(shared, own_first=True), **options) for _ in range(2)]
    for _ in range(3):
        for model in pair:
            model.zero_grad(set_to_none=False)
            model(batch(rank)).sum().backward()
    return shared.weight.grad.item(), len({each.grad.untyped_storage().data_ptr() for each in pair[1].parameters()})


def test_wrappers_that_take_turns_keep_their_views():
    assert run_on_ranks(train_in_turns, WORLD) == [(3.0, 1)] * WORLD


# -- modules with ways of their own


class OldFashioned(Pair):
    """Its methods were written when torch's took fewer arguments."""

    def named_parameters(self, prefix="", recurse=True):
        yield from super().named_parameters(prefix, recurse)

    def named_buffers(self, prefix="", recurse=True):
        yield from super().named_buffers(prefix, recurse)


class Selective(Pair):
    """An optimizer is to be given a part of its parameters, and whoever saves it only some of its buffers."""

    def named_parameters(self, *args, **kwargs):
        yield from ((name, each) for name, each in super().named_parameters(*args, **kwargs) if "second" in name)

    def named_buffers(self, *args, **kwargs):
        yield from ((name, each) for name, each in super().named_buffers(*args, **kwargs) if name != "calls")


def train_other_names(rank, world, kind):
    module = kind()
    module.register_buffer("calls", torch.tensor([float(rank)]))
    model = DistributedDataParallel(module)
    for _ in range(3):
        model.zero_grad()
        module.first.weight.grad = None
        trained(model, rank)
    return [module.first.weight.grad.item(), module.second.weight.grad.item(), module.calls.item()]


@pytest.mark.parametrize("kind", [OldFashioned, Selective])
def test_all_parameters_are_averaged_whatever_the_module_answers_when_it_is_asked_for_them(kind):
    assert run_on_ranks(train_other_names, WORLD, kind) == [[3.0, 6.0, 0.0]] * WORLD


class CopiesItself(nn.Linear):
    def __deepcopy__(self, memo):
        return CopiesItself(self.in_features, self.out_features)


def test_a_copy_of_a_wrapper_is_one_whatever_its_module_does_when_it_is_copied(alone):
    model = DistributedDataParallel(CopiesItself(1, 1))
    twin = copy.deepcopy(model)
    assert isinstance(twin, DistributedDataParallel)
    assert isinstance(twin.module, CopiesItself)
    assert not hasattr(DistributedDataParallel(nn.Sequential(nn.Linear(1, 1))), "__len__")


def test_a_copy_of_a_compiled_wrapper_runs_its_own_forward(alone):
    model = DistributedDataParallel(nn.Linear(1, 1))
    model.compile(backend="eager")
    twin = copy.deepcopy(model)
    twin(torch.ones(1, 1)).sum().backward()
    assert twin.module.weight.grad is not None
    assert model.module.weight.grad is None


def test_the_older_name_of_the_switch_for_buffers_is_the_same_switch(alone):
    model = DistributedDataParallel(nn.BatchNorm1d(1))
    assert model.broadcast_buffers
    model.broadcast_buffers = False
    assert (model.forward_sync_buffers, model.will_sync_module_buffers()) == (False, False)
    twin = copy.deepcopy(model)
    assert (twin.broadcast_buffers, twin.forward_sync_buffers) == (False, False)


def test_a_sparse_buffer_is_refused_by_its_name_unless_it_is_left_out(alone):
    module = nn.Linear(1, 1)
    module.register_buffer("neighbours", torch.eye(2).to_sparse())
    with pytest.raises(RuntimeError, match="Buffer neighbours is a sparse tensor"):
        DistributedDataParallel(module)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["neighbours"])
    DistributedDataParallel(module)(torch.ones(1, 1)).sum().backward()
