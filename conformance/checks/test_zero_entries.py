"""Everything that can be asked of a sharded optimizer between two steps, in several orders, beside the ordinary one."""

import copy

import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures.sharding import OPTIMIZERS, first_gap, give, some_parameters
from conformance.ranks import caught
from conformance.ranks.placing import moved


class Side:
    """One of two optimizers that are asked the same: parameters in three groups, one of which is empty."""

    def __init__(self, ctx, name, *, sharded):
        self.world, self.rank, self.sharded, self.heard = ctx.world, ctx.rank, sharded, []
        *params, self.later = (nn.Parameter(one.detach().clone()) for one in some_parameters(ctx, 6))
        groups = [{"params": params[:3]}, {"params": []}, {"params": params[3:], "lr": 0.03125}]
        kind, settings = OPTIMIZERS[name]
        if sharded:
            self.optimizer = ctx.subject.ZeroRedundancyOptimizer(groups, kind, **settings)
        else:
            self.optimizer = kind(groups, **settings)

    @property
    def params(self):
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def whole(self):
        """The state of all parameters, on every rank."""
        for to in range(self.world if self.sharded else 0):
            self.optimizer.consolidate_state_dict(to)
            if to == self.rank:
                found = copy.deepcopy(self.optimizer.state_dict())
        return found if self.sharded else copy.deepcopy(self.optimizer.state_dict())


def nothing(side):
    """A step after a step."""


def add_a_group(side):
    if side.later is not None:
        side.optimizer.add_param_group({"params": side.later, "lr": 0.5})  # a bare one is a group of one
        side.later = None


def add_an_empty_group(side):
    side.optimizer.add_param_group({"params": [], "lr": 0.25})


def add_a_duplicate(side):
    """Refused, and nothing is different afterwards."""
    error = caught(side.optimizer.add_param_group, {"params": [side.params[0]]})
    side.heard.append(error is not None and error.is_a(ValueError))


def load_an_older_state(side):
    saved = side.whole()
    move_on(side, 30)
    side.optimizer.load_state_dict(saved)


def save_and_go_on(side):
    """What was saved stays as it was."""
    saved = side.whole()
    kept = copy.deepcopy(saved)
    move_on(side, 31)
    side.heard.append(str(saved) == str(kept))


def change_rates(side):
    for place, group in enumerate(side.optimizer.param_groups):
        group["lr"] = 0.5 / (place + 1)


def zero_gradients(side):
    side.optimizer.zero_grad()
    side.heard.append([parameter.grad is None for parameter in side.params])
    side.optimizer.step()


def step_with_a_closure(side):
    def closure():
        give(side.params, 32)
        return 7.0

    side.heard.append(side.optimizer.step(closure))


def hook_a_step(side):
    """A hook of the user's hears of each step until it is removed."""
    handle = side.optimizer.register_step_post_hook(lambda *_: side.heard.append("stepped"))
    move_on(side, 33)
    handle.remove()


def schedule(side):
    torch.optim.lr_scheduler.StepLR(side.optimizer, 1, 0.5).step()


def freeze(side):
    side.params[2].requires_grad_(False)
    side.params[2].grad = None


def thaw(side):
    side.params[2].requires_grad_(True)


ENTRIES = (
    add_an_empty_group, zero_gradients, load_an_older_state, add_a_group, save_and_go_on, add_a_duplicate,
    step_with_a_closure, change_rates, hook_a_step, freeze, nothing, thaw, schedule,
)  # fmt: skip
ORDERS = {
    "SGD with momentum and decay": (ENTRIES, ENTRIES[::-1]),
    "Adam": ([*ENTRIES[5:], *ENTRIES[:5]], [*ENTRIES[::2], *ENTRIES[1::2]]),
}


def move_on(side, iteration):
    give(side.params, iteration)
    side.optimizer.step()


def ask_in_turn(ctx):
    """By optimizer and order: after which entry something is not as in the ordinary optimizer."""
    wrong = {}
    for name, orders in ORDERS.items():
        for number, entries in enumerate(orders):
            sides = [Side(ctx, name, sharded=sharded) for sharded in (True, False)]
            found = [told for place, entry in enumerate(entries) if (told := ask(sides, entry, place))]
            if found:
                wrong[f"{name}, order {number}"] = found[0]
    return wrong


def ask(sides, entry, place):
    for side in sides:
        move_on(side, place)
        entry(side)
        move_on(side, place + 15)
    ours, theirs = sides
    gap = first_gap(ours.params, theirs.params)
    if gap or ours.heard != theirs.heard:
        return f"{entry.__name__}: {gap or (ours.heard, theirs.heard)}"
    mine, right = (settings(side.optimizer) for side in sides)
    if mine != right:
        return f"{entry.__name__}: groups {mine}, expected {right}"
    mine, right = (str(sorted(moved(side.whole()["state"], torch.device("cpu")).items())) for side in sides)
    return None if mine == right else f"{entry.__name__}: state {mine}, expected {right}"


def settings(optimizer):
    return [(group["lr"], len(group["params"])) for group in optimizer.param_groups]


@check("ZERO-008", "ZERO-014", "ZERO-016", "ZERO-017", worlds=MANY, deadline_s=15)
def test_whatever_is_asked_between_two_steps_is_answered_as_by_the_ordinary_optimizer(ranks):
    assert ranks(ask_in_turn) == [{}] * ranks.world


def number_from_100(saved):
    """As one of several optimizers may be numbered in a file."""
    for group in saved["param_groups"]:
        group["params"] = [100 + key for key in group["params"]]
    saved["state"] = {100 + key: state for key, state in saved["state"].items()}


def forget_two(saved):
    """As some programs write that a parameter has no state, and torch's own sharded optimizer that others have it."""
    saved["state"].update({0: None, 3: None})


def load_what_was_changed(ctx, change):
    """A state that a program has changed, and a step from there; without what it has forgotten."""
    sides = [Side(ctx, "Adam", sharded=sharded) for sharded in (True, False)]
    move_on(sides[1], 0)
    saved = copy.deepcopy(sides[1].optimizer.state_dict())
    change(saved)
    known = {key: state for key, state in saved["state"].items() if state is not None}
    sides[1].optimizer.load_state_dict(copy.deepcopy({**saved, "state": known}))
    for parameter, other in zip(*(side.params for side in sides), strict=True):
        parameter.data.copy_(other.data)
    refusals = torch.tensor(float(caught(sides[0].optimizer.load_state_dict, saved) is not None), device=ctx.device)
    dist.all_reduce(refusals)  # of some ranks perhaps, and then nobody goes on
    if refusals:
        return "refused"
    for side in sides:
        move_on(side, 1)
    return first_gap(*(side.params for side in sides))


def right_or_refused(ranks, change, limit):
    found = ranks(load_what_was_changed, change)
    assert found in ([None] * ranks.world, ["refused"] * ranks.world)
    if found[0]:
        ranks.at_limit(limit)


@check("ZERO-017", worlds=MANY)
def test_a_state_under_other_keys_is_loaded_by_the_order_of_the_groups_or_refused(ranks):
    right_or_refused(ranks, number_from_100, "a state whose keys are no places is refused")


@check("ZERO-017", worlds=MANY)
def test_a_parameter_whose_state_is_none_begins_anew_or_is_refused(ranks):
    right_or_refused(ranks, forget_two, "a state of which a part is None is refused")
