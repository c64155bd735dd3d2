"""Where the parameters live, and what may change while training: bucket views, freezing, added groups."""

import copy
import itertools

import torch
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.observing import assert_refused, logged
from conformance.fixtures.sharding import (
    Reference,
    first_gap,
    give,
    in_two_groups,
    one_by_one,
    owners,
    sharded,
    some_parameters,
)
from conformance.fixtures.training import private
from conformance.ranks import caught

NAMES = ("SGD with momentum and decay", "Adam")


def storages(parameters):
    return [parameter.untyped_storage().data_ptr() for parameter in parameters]


def live_in_views(ctx, grouped):
    """Per optimizer: where it differs from its reference; owner and storage of every parameter at several moments."""
    found = []
    for name in NAMES:
        parameters = some_parameters(ctx)
        reference = Reference(parameters, name, grouped)
        zero = sharded(ctx, grouped(parameters), name, parameters_as_bucket_view=True)
        gaps, places = [reference.gap(parameters)], [storages(parameters)]
        for iteration in range(3):
            give(parameters, iteration, sparsely=True)
            give(reference.parameters, iteration, sparsely=True)
            zero.step()
            reference.optimizer.step()
            gaps.append(reference.gap(parameters))
            places.append(storages(parameters))
        for group in zero.param_groups:  # from here on plain SGD, to find out who owns what
            group.update(momentum=0.0, weight_decay=0.0, lr=0.5)
        owned = owners(zero, parameters, 0.5, ctx.rank) if name.startswith("SGD") else None
        dense = all(parameter.is_contiguous() for parameter in parameters)
        found.append((gaps, places, owned, dense))
    return found


@check("ZERO-012")
def test_as_views_each_owners_parameters_share_one_flat_tensor_and_results_are_unchanged(ranks):
    for _, told in ranks.each(live_in_views, (list, in_two_groups)):
        for results in told:
            owned = results[0][2]  # ownership is by sizes alone: the same for both optimizers
            for gaps, places, _, dense in results:
                assert gaps == [None] * 4
                assert dense, "some parameter is no contiguous tensor any more"
                assert places == places[:1] * 4, "a step has moved parameters"
                for storage_by_parameter in places:
                    shared = {
                        owner: {place for place, own in zip(storage_by_parameter, owned, strict=True) if own == owner}
                        for owner in owned
                    }
                    assert all(len(each) == 1 for each in shared.values()), "an owner's parameters lie apart"
                    assert len(set.union(*shared.values())) == len(shared), "two owners share one tensor"


def keep_places(ctx):
    told = []
    for name in NAMES:
        parameters = some_parameters(ctx)
        parameters[0].data = parameters[0].data.t().contiguous().t()  # not in row order
        strides = [parameter.stride() for parameter in parameters]
        before = [parameter.data_ptr() for parameter in parameters]
        zero = sharded(ctx, parameters, name)
        for iteration in range(2):
            give(parameters, iteration)
            zero.step()
        stayed = before == [parameter.data_ptr() for parameter in parameters]
        told.append((stayed, strides == [parameter.stride() for parameter in parameters]))
    return told


@check("ZERO-012")
def test_without_views_every_parameter_keeps_its_storage(ranks):
    assert ranks(keep_places) == [[(True, True)] * 2] * ranks.world


LARGE = (513, 512)  # more than a mebibyte, so that it may travel in place


def turned(tensor, _rank):
    """The same numbers, laid out column by column."""
    return tensor.t().contiguous().t() if tensor.dim() == 2 else spaced(tensor, _rank)


def spaced(tensor, _rank):
    """The same numbers in every second place of a larger tensor."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def turned_on_odd_ranks(tensor, rank):
    return turned(tensor, rank) if rank % 2 else tensor


LAYOUTS = (turned, spaced, turned_on_odd_ranks)


def step_what_lies_otherwise(ctx, lay, views):
    """The gaps after two steps of as many parameters as ranks: each is sent alone, and one of them is large.

    With views of two more, so that some owner has several, of which not all lie in row order.
    """
    gaps = []
    for name in NAMES:
        parameters = some_parameters(ctx, max(1, ctx.world - 1) + 2 * views)
        parameters.append(nn.Parameter(models.integers(*LARGE, seed=9).to(ctx.device)))
        reference = Reference(parameters, name)
        for parameter in parameters:
            parameter.data = lay(parameter.data, ctx.rank)
        zero = sharded(ctx, parameters, name, parameters_as_bucket_view=views)
        for iteration in range(2):
            for targets, optimizer in ((parameters, zero), (reference.parameters, reference.optimizer)):
                give(targets, iteration)
                optimizer.step()
        gaps.append(reference.gap(parameters))
    return gaps


@check("ZERO-033", worlds=MANY, beyond=False)
def test_parameters_that_do_not_lie_in_row_order_are_stepped_and_sent(ranks):
    several = itertools.product(LAYOUTS, (False, True))
    for (lay, views), gaps in ranks.each(step_what_lies_otherwise, several, spread=True):
        assert gaps == [[None] * len(NAMES)] * ranks.world, f"{lay.__name__}, views {views}"


def step_from_end_to_end(ctx, views, resumed, in_rows=False):
    """The gap after steps of a fused optimizer, whose parameters, gradients and states lie column by column.

    ``in_rows``: but for the states that it is given when it is resumed.
    """
    parameters = some_parameters(ctx)
    for parameter in parameters:
        parameter.data = turned(parameter.data, ctx.rank) if parameter.dim() == 2 else parameter.data
    reference = Reference(parameters, "Adam", fused=True)
    if resumed:
        give_alike(reference.parameters, 0)
        reference.optimizer.step()
        state = copy.deepcopy(reference.optimizer.state_dict())
        if in_rows:
            state["state"] = {
                place: {name: value.contiguous() for name, value in values.items()}
                for place, values in state["state"].items()
            }
        parameters = [nn.Parameter(parameter.detach().clone()) for parameter in reference.parameters]
    else:
        give_alike(parameters, 0)  # gradients that are there before the optimizer
    zero = sharded(ctx, parameters, "Adam", fused=True, parameters_as_bucket_view=views)
    if resumed:
        zero.load_state_dict(state)
    for iteration in range(3):
        if iteration or resumed:
            give_alike(parameters, iteration)
        give_alike(reference.parameters, iteration)
        zero.step()
        reference.optimizer.step()
    return reference.gap(parameters)


def give_alike(parameters, iteration):
    """Gradients that lie as their parameters do."""
    give(parameters, iteration)
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)


@check("ZERO-033", worlds=MANY, beyond=False)
def test_a_fused_optimizer_meets_parameters_gradients_and_states_that_lie_alike(ranks):
    several = ((False, False), (False, True), (True, False), (True, True))
    for (views, resumed), told in ranks.each(step_from_end_to_end, several, spread=True):
        assert told == [None] * ranks.world, f"{views=}, {resumed=}"
    for views, told in ranks.each(step_from_end_to_end, (False, True), True, True):
        assert told == [None] * ranks.world, f"{views=}, states in rows"


def step_conjugates(ctx):
    """The gap after two steps of as many complex parameters as ranks, each the conjugate of what lies in its memory."""
    parameters = [nn.Parameter(each.detach() * (1 + 2j)) for each in some_parameters(ctx, ctx.world)]
    reference = Reference(parameters)
    for parameter, other in zip(parameters, reference.parameters, strict=True):
        parameter.data = parameter.data.conj()
        other.data = other.data.conj().resolve_conj()
    zero = sharded(ctx, parameters)
    for iteration in range(2):
        for targets, optimizer in ((parameters, zero), (reference.parameters, reference.optimizer)):
            give(targets, iteration)
            optimizer.step()
    return reference.gap([parameter.resolve_conj() for parameter in parameters])


@check("ZERO-033", worlds=MANY)
def test_parameters_that_are_conjugates_of_their_memory_are_stepped_and_sent(ranks):
    assert ranks(step_conjugates) == [None] * ranks.world


def freeze(ctx, views):
    """Train while trainability changes; after every step what differs, what was logged and who has moved."""
    told = []
    for name in NAMES:
        parameters = some_parameters(ctx)
        parameters[3].requires_grad_(False)
        reference = Reference(parameters, name)
        zero = sharded(ctx, parameters, name, parameters_as_bucket_view=views)
        found = []
        for iteration, changes in enumerate([{}, {0: False}, {}, {0: True}, {3: True, 1: False}, {}]):
            for place, flag in changes.items():
                parameters[place].requires_grad_(flag)
                reference.parameters[place].requires_grad_(flag)
            frozen = [parameter.requires_grad is False for parameter in parameters]
            before = [parameter.detach().clone() for parameter in parameters]
            give(parameters, iteration)
            give(reference.parameters, iteration)
            with logged() as texts:
                zero.step()
            reference.optimizer.step()
            kept = [torch.equal(p, b) for p, b, f in zip(parameters, before, frozen, strict=True) if f]
            found.append((reference.gap(parameters), all(kept), noticed(texts), bool(changes)))
        told.append(found)
    return told


def noticed(texts):
    """Whether somebody logged that trainability has changed."""
    return any("trainable" in text or "requires_grad" in text for text in texts)


PLACES = {"in place": False, "as bucket views": True}


@check("ZERO-013", "ZERO-012")
def test_freezing_and_thawing_trains_as_the_ordinary_optimizer_does(ranks):
    for _, told in ranks.each(freeze, (False, True)):
        trained_as_ordinary(told)


def trained_as_ordinary(results):
    for rank, told in enumerate(results):
        for found in told:
            for iteration, (gap, kept, _, _) in enumerate(found):
                assert gap is None, f"rank {rank}, iteration {iteration}: {gap}"
                assert kept, f"rank {rank}, iteration {iteration}: a frozen parameter has moved"


def freeze_with_gradients(ctx, views):
    """The gap after steps in which a frozen parameter keeps a gradient, with which momentum goes on."""
    name = NAMES[0]
    parameters = some_parameters(ctx)
    reference = Reference(parameters, name)
    zero = sharded(ctx, parameters, name, parameters_as_bucket_view=views)
    for iteration in range(3):
        for side, optimizer in ((parameters, zero), (reference.parameters, reference.optimizer)):
            if iteration:
                side[0].requires_grad_(False)
            give(side, iteration)
            if iteration:
                side[0].grad = torch.zeros_like(side[0])
            optimizer.step()
    return reference.gap(parameters)


@check("ZERO-013", beyond=False)
def test_a_frozen_parameter_that_keeps_a_gradient_is_stepped_as_by_the_ordinary_optimizer(ranks):
    for views, told in ranks.each(freeze_with_gradients, (False, True)):
        assert told == [None] * ranks.world, f"{views=}"


@check("ZERO-013")
def test_freezing_and_thawing_is_logged_at_the_next_step_and_only_then(ranks):
    for rank, told in enumerate(ranks(freeze, False)):
        for found in told:
            changes, heard = [changed for *_, changed in found], [heard for *_, heard, _ in found]
            assert heard == changes, f"rank {rank}"


def added_parameters(ctx):
    return [nn.Parameter(models.integers(*shape, seed=9).to(ctx.device)) for shape in ((4, 5), (2, 2), (3,))]


SIZES, ADDED = (12, 5, 12, 1, 12), (20, 4, 3)  # elements of what ``add_group`` begins with and of what it adds


def loads_of(sizes, owned, world):
    """Elements that each rank owns."""
    return [sum(size for size, owner in zip(sizes, owned, strict=True) if owner == rank) for rank in range(world)]


def add_group(ctx, views):
    """Owners before and after a group is added; and training across the addition against the reference."""
    parameters, more = some_parameters(ctx), added_parameters(ctx)
    zero = sharded(ctx, parameters, lr=0.5, parameters_as_bucket_view=views)
    before = owners(zero, parameters, 0.5, ctx.rank)
    zero.add_param_group({"params": more, "lr": 0.5})
    after = owners(zero, [*parameters, *more], 0.5, ctx.rank)

    gaps = []
    for name in NAMES:
        parameters, more = some_parameters(ctx), added_parameters(ctx)
        reference = Reference(parameters, name)
        zero = sharded(ctx, parameters, name, parameters_as_bucket_view=views)
        for iteration in range(4):
            if iteration == 2:
                copies = [nn.Parameter(parameter.detach().clone()) for parameter in more]
                zero.add_param_group({"params": iter(more), "lr": 0.0078125})
                reference.optimizer.add_param_group({"params": copies, "lr": 0.0078125})
                parameters, reference.parameters = [*parameters, *more], [*reference.parameters, *copies]
            give(parameters, iteration)
            give(reference.parameters, iteration)
            zero.step()
            reference.optimizer.step()
            gaps.append(reference.gap(parameters))
        shown = [group["lr"] for group in zero.param_groups]
        gaps.append(None if shown == [group["lr"] for group in reference.optimizer.param_groups] else f"shown {shown}")
    return before, after, gaps


@check("ZERO-014", scenarios=PLACES)
def test_an_added_group_moves_no_earlier_parameter_and_trains_with_its_own_settings(ranks, scenario):
    results = ranks(add_group, scenario)
    for before, after, gaps in results:
        assert after == results[0][1], "the ranks disagree"
        assert after[: len(before)] == before
        assert set(after) <= set(range(ranks.world))
        assert gaps == [None] * 10
        loads = loads_of(SIZES, before, ranks.world)
        for size in ADDED:
            loads[loads.index(min(loads))] += size
        assert sorted(loads_of(SIZES + ADDED, after, ranks.world)) == sorted(loads), f"owners {before}, then {after}"


def lie(parameters, mine):
    """For every parameter its storage and address, whether this rank owns it, and whether it is trained."""
    return [
        (parameter.untyped_storage().data_ptr(), parameter.data_ptr(), place in mine, parameter.requires_grad)
        for place, parameter in enumerate(parameters)
    ]


def change_and_look(ctx, views, name):
    """Freeze, load values and states, and add a group between steps; gaps, and where the parameters lie after each."""
    parameters, more = some_parameters(ctx), added_parameters(ctx)
    reference = Reference(parameters, name)
    zero = sharded(ctx, parameters, name, parameters_as_bucket_view=views)
    copies = [nn.Parameter(parameter.detach().clone()) for parameter in more]
    gaps, places = [], []

    def freeze_some():
        for targets in (parameters, reference.parameters):
            targets[0].requires_grad_(False)
            targets[3].requires_grad_(False)

    def load_values():
        with torch.no_grad():
            for targets in (parameters, reference.parameters):
                for place, target in enumerate(targets):
                    target.copy_(models.integers(*target.shape, seed=170 + place))

    def load_states():
        saved = copy.deepcopy(reference.optimizer.state_dict())
        zero.load_state_dict(saved)

    def thaw_one():
        for targets in (parameters, reference.parameters):
            targets[0].requires_grad_(True)

    def add_a_group():
        zero.add_param_group({"params": more, "lr": 0.0078125})
        reference.optimizer.add_param_group({"params": copies, "lr": 0.0078125})
        parameters.extend(more)
        reference.parameters.extend(copies)

    acts = (lambda: None, freeze_some, load_values, load_states, thaw_one, add_a_group, load_values, load_states)
    for iteration, act in enumerate(acts):
        act()
        for targets, optimizer in ((parameters, zero), (reference.parameters, reference.optimizer)):
            give(targets, iteration)
            optimizer.step()
        gaps.append(reference.gap(parameters))
        own = {id(parameter) for group in private(zero, "optim").param_groups for parameter in group["params"]}
        places.append(lie(parameters, [place for place, one in enumerate(parameters) if id(one) in own]))
    return gaps, places


@check("ZERO-012", "ZERO-008", "ZERO-017", worlds=MANY, deadline_s=8)
def test_wherever_parameters_lie_freezing_loading_and_adding_leave_them_there(ranks):
    several = itertools.product((False, True), NAMES)
    for (views, name), results in ranks.each(change_and_look, several, spread=True):
        for rank, (gaps, places) in enumerate(results):
            assert gaps == [None] * 8, f"rank {rank}, {views=}, {name}"
            if not views:
                last = [address for _, address, *_ in places[-1]]
                for each in places:
                    assert [address for _, address, *_ in each] == last[: len(each)], f"rank {rank}: moved"
                continue
            for moment, each in enumerate(places):
                for owner in range(ranks.world):
                    owned = [own for *_, own, _ in results[owner][1][moment]]
                    shared = {
                        storage for (storage, *_, trained), is_owned in zip(each, owned, strict=True)
                        if is_owned and trained
                    }  # fmt: skip
                    assert len(shared) <= 1, f"rank {rank}, moment {moment}: owner {owner}'s parameters lie apart"


def give_other_storage(ctx, views, name):
    """A user gives parameters other tensors (``.data =``) between steps, at last of a finer dtype: the gaps."""
    parameters = [nn.Parameter(parameter.detach().bfloat16()) for parameter in some_parameters(ctx)]
    reference = Reference(parameters, name, **one_by_one(ctx))
    zero = sharded(ctx, parameters, name, parameters_as_bucket_view=views, **one_by_one(ctx))
    gaps = []
    for iteration in range(6):
        for place, (parameter, other) in enumerate(zip(parameters, reference.parameters, strict=True)):
            if iteration == 1 + place % 2:
                parameter.data = parameter.data.clone()
            if iteration == 3 + place % 2:
                parameter.data, other.data = parameter.data.float(), other.data.float()
        for targets, optimizer in ((parameters, zero), (reference.parameters, reference.optimizer)):
            give(targets, iteration)
            optimizer.step()
        gaps.append(reference.gap(parameters))
    return gaps


@check("ZERO-012", worlds=MANY, deadline_s=8)
def test_parameters_that_were_given_other_storage_are_stepped_and_sent_as_before(ranks):
    for views, told in ranks.each(give_other_storage, (False, True), NAMES[0]):
        assert told == [[None] * 6] * ranks.world, f"{views=}"


def turn_between_steps(ctx):
    """Matrices are turned between two steps, which leaves their sizes as they are: the gaps."""
    parameters = some_parameters(ctx, 6)
    reference = Reference(parameters)
    zero = sharded(ctx, parameters)
    gaps = []
    for iteration in range(4):
        for targets, optimizer in ((parameters, zero), (reference.parameters, reference.optimizer)):
            for target in targets if iteration == 2 else ():
                target.grad, target.data = None, target.data.transpose(0, -1).contiguous()
            give(targets, iteration)
            optimizer.step()
        gaps.append(reference.gap(parameters))
    return gaps


@check("ZERO-008", worlds=MANY)
def test_parameters_that_are_turned_are_sent_in_their_new_shapes(ranks):
    assert ranks(turn_between_steps) == [[None] * 4] * ranks.world


def step_under_inference_mode(ctx, views):
    """The first step is taken under inference mode, the others are not: the gaps."""
    parameters = some_parameters(ctx)
    reference = Reference(parameters)
    zero = sharded(ctx, parameters, parameters_as_bucket_view=views)
    gaps = []
    for iteration in range(3):
        for targets, optimizer in ((parameters, zero), (reference.parameters, reference.optimizer)):
            give(targets, iteration)
            with torch.inference_mode(iteration == 0):
                optimizer.step()
        gaps.append(reference.gap(parameters))
    return gaps


@check("ZERO-008", worlds=MANY)
def test_a_step_under_inference_mode_leaves_later_ones_as_they_are(ranks):
    for views, told in ranks.each(step_under_inference_mode, (False, True)):
        assert told == [[None] * 3] * ranks.world, f"{views=}"


def replace_values(ctx, views):
    """A user loads other values into the parameters, in place, between two steps."""
    parameters = some_parameters(ctx)
    reference = Reference(parameters, "Adam")
    zero = sharded(ctx, parameters, "Adam", parameters_as_bucket_view=views)
    for iteration in range(3):
        for targets in (parameters, reference.parameters):
            if iteration == 1:
                with torch.no_grad():
                    for place, target in enumerate(targets):
                        target.copy_(models.integers(*target.shape, seed=70 + place))
            give(targets, iteration)
        zero.step()
        reference.optimizer.step()
    return first_gap(parameters, reference.parameters)


@check("ZERO-012", "ZERO-008", worlds=MANY)
def test_values_loaded_into_the_parameters_are_what_the_next_step_starts_from(ranks):
    for views, told in ranks.each(replace_values, (False, True)):
        assert told == [None] * ranks.world, f"{views=}"


def add_a_finer_group(ctx):
    """A group of another dtype joins a sharded optimizer: why that is refused, and what differs after steps."""
    parameters = some_parameters(ctx)
    finer = [nn.Parameter(1 + models.integers(3, seed=place).double().to(ctx.device) / 2**40) for place in range(4)]
    reference = Reference([*parameters, *finer])
    zero = sharded(ctx, parameters)
    refused = caught(zero.add_param_group, {"params": finer})
    for iteration in range(2):
        for targets in ([*parameters, *finer], reference.parameters):
            for place, target in enumerate(targets):
                values = models.integers(*target.shape, seed=80 + 50 * iteration + place) / 2
                target.grad = values.to(target.device, target.dtype)
        zero.step()
        reference.optimizer.step()
    if refused is not None:
        return refused, first_gap(parameters, reference.parameters[: len(parameters)])
    return None, first_gap([*parameters, *finer], reference.parameters)


@check("ZERO-014", worlds=MANY)
def test_an_added_group_of_another_dtype_is_refused_or_loses_no_bit(ranks):
    errors, gaps = zip(*ranks(add_a_finer_group), strict=True)
    assert gaps == (None,) * ranks.world
    if any(errors):
        assert_refused(errors, ValueError)
        ranks.at_limit("an added group of another dtype is refused")


class Cautious(torch.optim.SGD):
    """A user's optimizer that refuses a group whose rate is above one, and gives each group a setting of its own."""

    def add_param_group(self, param_group):
        if param_group.get("lr", 0) > 1:
            raise LookupError("too fast")
        super().add_param_group({"until": 4.0, **param_group})


def settings_shown(optimizer):
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def add_what_is_refused(ctx, views):
    """What adding a group raises that the local optimizer refuses, how many there are then, and what differs after a
    step without it and after one with it, when it is added once more with a smaller rate, and shows its settings."""
    parameters, more = some_parameters(ctx), added_parameters(ctx)
    copies = [nn.Parameter(parameter.detach().clone()) for parameter in [*parameters, *more]]
    options = {"parameters_as_bucket_view": True} if views else {}
    zero = ctx.subject.ZeroRedundancyOptimizer(parameters, Cautious, lr=0.5, **options)
    ordinary = Cautious(copies[: len(parameters)], lr=0.5)
    refused = caught(zero.add_param_group, {"params": more, "lr": 2.0})
    told = [len(zero.param_groups)]
    for iteration in range(2):
        if iteration:
            told.append(caught(zero.add_param_group, {"params": more, "lr": 0.25}))
            ordinary.add_param_group({"params": copies[len(parameters) :], "lr": 0.25})
            told.append(settings_shown(zero) == settings_shown(ordinary))
        give([*parameters, *more], iteration)
        give(copies, iteration)
        zero.step()
        ordinary.step()
        told.append(first_gap([*parameters, *more], copies))
    return refused, told


@check("ZERO-014", worlds=(1, 2, 3), beyond=False)
def test_after_a_group_that_the_local_optimizer_refuses_all_is_as_before(ranks):
    for views in (False, True):
        for rank, (refused, told) in enumerate(ranks(add_what_is_refused, views)):
            assert refused is not None, f"rank {rank} has heard of no refusal"
            assert "too fast" in refused.text, f"rank {rank}: {refused}"
            assert told == [1, None, None, True, None], f"rank {rank}, {views=}: {told}"


# -- ZERO-012, ZERO-008: parameters that were made under inference mode


def step_what_was_made_under_inference_mode(ctx, views):
    """What differs from the ordinary optimizer after two steps, of gradients that nobody has computed; some parameters
    are so large that they may be sent from where they lie."""
    options = {"parameters_as_bucket_view": True} if views else {}
    with torch.inference_mode():
        sizes = (2**19, 5, 2**19, 3)
        parameters = [nn.Parameter(torch.ones(size, device=ctx.device)) for size in sizes]
        copies = [nn.Parameter(parameter.clone()) for parameter in parameters]
        zero = ctx.subject.ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.5, **options)
        ordinary = torch.optim.SGD(copies, lr=0.5)
        for iteration in range(2):
            for parameter in [*parameters, *copies]:
                parameter.grad = torch.full_like(parameter, 1.0 + iteration)
            zero.step()
            ordinary.step()
        return [torch.equal(one.view(-1), other.view(-1)) for one, other in zip(parameters, copies, strict=True)]


@check("ZERO-012", "ZERO-008", worlds=(1, 2, 3), beyond=False)
def test_parameters_of_inference_mode_are_stepped_there(ranks):
    for views, told in ranks.each(step_what_was_made_under_inference_mode, (False, True)):
        for rank, equal in enumerate(told):
            assert equal == [True] * 4, f"rank {rank}, {views=}"


# -- ZERO-017: a state that is one tensor


class Summing(torch.optim.Optimizer):
    """Keeps the sum of a parameter's gradients as its whole state."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter not in self.state:
                    self.state[parameter] = torch.zeros_like(parameter)
                self.state[parameter] += parameter.grad
                parameter.sub_(self.state[parameter], alpha=group["lr"])


def load_single_tensors(ctx):
    """What differs from the ordinary optimizer after steps, and after a step behind a load; or the load's error."""
    parameters = some_parameters(ctx)
    copies = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    zero, ordinary = ctx.subject.ZeroRedundancyOptimizer(parameters, Summing, lr=0.5), Summing(copies, lr=0.5)
    gaps = []
    for iteration in range(3):
        if iteration == 2:
            held = None
            for to in range(ctx.world):
                zero.consolidate_state_dict(to)
                held = copy.deepcopy(zero.state_dict()) if to == ctx.rank else held
            zero = ctx.subject.ZeroRedundancyOptimizer(parameters, Summing, lr=0.5)
            error = caught(zero.load_state_dict, held)
            if error is not None:
                return gaps, error
        give(parameters, iteration)
        give(copies, iteration)
        zero.step()
        ordinary.step()
        gaps.append(first_gap(parameters, copies))
    return gaps, None


@check("ZERO-017", worlds=(1, 2, 3), beyond=False)
def test_a_state_that_is_one_tensor_is_loaded_or_refused(ranks):
    for rank, (gaps, error) in enumerate(ranks(load_single_tensors)):
        assert gaps == [None] * len(gaps), f"rank {rank}: {gaps}"
        if error is None:
            assert len(gaps) == 3, f"rank {rank}"
        else:
            ranks.at_limit("a state that is no dict cannot be loaded")
