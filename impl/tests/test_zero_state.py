"""The consolidated state over an optimizer's life: when it holds, when it is refused, when it is said to be old."""

import copy

import pytest
import torch

from conformance.ranks import caught

from .zero_training import give_gradients, parameters, what_is_logged


class Shared(torch.optim.Optimizer):
    """Keeps an object in each state, and an entry that belongs to no parameter; both change in place."""

    def __init__(self, params, lr=0.125):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        seen = self.state.setdefault("shared", {"calls": []})
        seen["calls"].append(len(seen["calls"]))
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    marks = self.state[parameter].setdefault("marks", set())
                    marks.add(len(marks))
                    parameter.sub_(parameter.grad, alpha=group["lr"] * len(seen["calls"]))


def stepped(ctx, kind=Shared, count=3):
    params = parameters(4)
    zero = ctx.subject.ZeroRedundancyOptimizer(params[:count], kind, lr=0.125)
    give_gradients(params, 0)
    zero.step()
    return params, zero


ACTS = ("a load", "an added group")


def change(ctx, name):
    params, zero = stepped(ctx, torch.optim.Adam)
    for to in range(ctx.world):
        zero.consolidate_state_dict(to)
        if ctx.rank == to:
            state = copy.deepcopy(zero.state_dict())
    zero.consolidate_state_dict(0)
    if name == "a load":
        zero.load_state_dict(state)
    else:
        zero.add_param_group({"params": [params[3]]})
    before = caught(zero.state_dict)
    zero.consolidate_state_dict(0)
    after = caught(zero.state_dict)
    return before is not None and before.is_a(RuntimeError), after is not None


@pytest.mark.parametrize("name", ACTS)
def test_the_state_of_before_is_refused_until_the_next_consolidation_after(run, name):
    assert run(change, name, world=2) == [(True, False), (True, True)]


def step_and_ask(ctx):
    _, zero = stepped(ctx, torch.optim.Adam)
    zero.step()
    zero.consolidate_state_dict(0)
    fresh = what_is_logged(zero.state_dict) if ctx.rank == 0 else []
    zero.step()
    zero.step()
    old = what_is_logged(zero.state_dict) if ctx.rank == 0 else []
    zero.consolidate_state_dict(0)
    again = what_is_logged(zero.state_dict) if ctx.rank == 0 else []
    return fresh, old, again


def test_the_state_is_said_to_be_old_by_as_many_steps_as_were_made_since(run):
    fresh, (old,), again = run(step_and_ask, world=2)[0]
    assert (fresh, again) == ([], [])
    assert "2 step(s) old" in old


def share(ctx):
    """Whether a saved state holds entries of no parameter, and stays as it was when the optimizer goes on."""
    _, zero = stepped(ctx)
    zero.consolidate_state_dict(0)
    saved = zero.state_dict() if ctx.rank == 0 else None
    states = {} if saved is None else {place: saved["state"][place] for place in range(3)}
    as_then = copy.deepcopy(states)
    shared = saved is None or "shared" in saved["state"]
    zero.step()
    return shared, states == as_then


def test_entries_of_no_parameter_are_saved_and_what_was_saved_stays_as_it_was(run):
    assert run(share, world=2) == [(True, True)] * 2


def load_without_some(ctx):
    """A state in which one parameter's is None, as some programs save it: that parameter starts anew."""
    params, zero = stepped(ctx, torch.optim.Adam)
    ordinary = torch.optim.Adam([p.detach().clone().requires_grad_() for p in params[:3]], lr=0.125)
    give_gradients(ordinary.param_groups[0]["params"], 0)
    ordinary.step()
    state = copy.deepcopy(ordinary.state_dict())
    state["state"][1] = None
    zero.load_state_dict(state)
    return caught(zero.step)


def test_a_state_that_is_none_is_no_state(run):
    assert run(load_without_some, world=2) == [None, None]


def step_what_is_frozen(ctx):
    """A parameter that never required a gradient has one all the same: the ordinary optimizer would step it."""
    params = parameters(3)
    params[1].requires_grad_(False)
    zero = ctx.subject.ZeroRedundancyOptimizer(params, torch.optim.SGD, lr=0.125)
    before = params[1].detach().clone()
    give_gradients(params, 0)
    gradient = params[1].grad
    zero.step()
    return torch.equal(params[1], before - 0.125 * gradient), params[1].grad is gradient


def test_what_never_required_a_gradient_but_has_one_is_stepped(run):
    assert run(step_what_is_frozen, world=2) == [(True, True)] * 2


def load_before_the_first_step(ctx):
    """The states that the optimizer shows, and those of its shard, behind the step after the load."""
    params = parameters(3)
    zero = ctx.subject.ZeroRedundancyOptimizer(params, torch.optim.Adam, lr=0.125)
    zero.load_state_dict(torch.optim.Adam(params, lr=0.125).state_dict())
    give_gradients(params, 0)
    zero.step()
    return len(zero.state), len(zero.optim.state)


def test_behind_the_load_of_an_empty_state_the_optimizer_shows_what_it_makes(run):
    shown = run(load_before_the_first_step, world=2)
    assert sum(mine for mine, _ in shown) == 3
    assert all(mine == held for mine, held in shown)


def fused_from_states_that_lie_row_by_row(ctx):
    """A fused optimizer goes on from a state that was saved row by row, over parameters that lie column by column."""
    made = []
    for sharded in (False, True):
        params = [torch.nn.Parameter(torch.arange(12.0).view(3, 4).t() / 8) for _ in range(3)]
        optimizer = torch.optim.Adam(params, lr=0.125, fused=True)
        for iteration in range(3):
            for param in params:
                param.grad = torch.empty_like(param).copy_(torch.arange(12.0).view(4, 3) % (5 + iteration) - 2)
            if sharded and iteration == 1:
                state = copy.deepcopy(optimizer.state_dict())
                for each in state["state"].values():
                    each.update(exp_avg=each["exp_avg"].contiguous(), exp_avg_sq=each["exp_avg_sq"].contiguous())
                optimizer = ctx.subject.ZeroRedundancyOptimizer(params, torch.optim.Adam, lr=0.125, fused=True)
                optimizer.load_state_dict(state)
            optimizer.step()
        made.append([param.detach() for param in params])
    return all(map(torch.equal, *made))


def test_a_fused_optimizer_goes_on_from_a_state_that_lies_otherwise(run):
    assert run(fused_from_states_that_lie_row_by_row, world=2) == [True, True]
