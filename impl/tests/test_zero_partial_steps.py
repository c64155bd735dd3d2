"""Stepping a shard part by part: together the parts of an iteration are one step. No processes."""

import pytest
import torch
from torch import nn

from impl import ZeroRedundancyOptimizer
from impl.zero.partition import ShardPlan

pytestmark = pytest.mark.usefixtures("alone")
class Counting(torch.optim.Optimizer):
    """Counts its steps in every place where an optimizer might: attribute, group number, group tensor, state."""

    def __init__(self, params, lr=1.0):
        super().__init__(params, {"lr": lr, "count": 0, "total": torch.zeros(())})
        self.calls = 0
        for group in self.param_groups:
            group["total"] = torch.zeros(())

    @torch.no_grad()
    def step(self):
        self.calls += 1
        for group in self.param_groups:
            group["count"] += 1
            group["total"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["steps"] = state.get("steps", 0) + 1
                    weight = self.calls + group["count"] + group["total"] + state["steps"]
                    parameter.sub_(parameter.grad * weight * group["lr"])


def sharded(kind, **settings):
    """Four parameters in two groups, and an optimizer that owns all of them and overlaps."""
    params = [nn.Parameter(torch.full((2,), float(place))) for place in range(4)]
    groups = [{"params": params[:3]}, {"params": params[3:], "lr": 0.5}]
    zero = ZeroRedundancyOptimizer(groups, kind, overlap_with_ddp=True, **settings)
    zero.overlap.name_owners(zero.shard.team, ShardPlan(1, (2,) * 4, (0,) * 4))
    return params, zero


def gradient(place, iteration):
    return torch.full((2,), float(1 + place + 2 * iteration))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(Counting, {}), (torch.optim.Adam, {"lr": 0.1}), (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})],
)
def test_parts_amount_to_one_step(kind, settings):
    """One that is none of torch's own is given a single part, as the hooks' session does."""
    params, zero = sharded(kind, **settings)
    plain = [nn.Parameter(parameter.detach().clone()) for parameter in params]
    whole = kind([{"params": plain[:3]}, {"params": plain[3:], "lr": 0.5}], **settings)
    for iteration in range(3):
        zero.overlap.begin(None)
        for part in ([0, 1, 2, 3],) if kind is Counting else ([2, 3], [0], [1]):
            zero.overlap.step({params[place]: gradient(place, iteration) for place in part})
        zero.overlap.end()
        for place, parameter in enumerate(plain):
            parameter.grad = gradient(place, iteration)
        whole.step()
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(params, plain, strict=True))
    assert zero.shard.steps_since_consolidation == 3


def test_other_parameters_and_gradients_stay_as_they_are():
    params, zero = sharded(torch.optim.SGD, lr=0.1, momentum=0.9)
    held = torch.ones(2)
    params[0].grad = params[1].grad = held
    before = [parameter.detach().clone() for parameter in params]
    zero.overlap.begin(None)
    zero.overlap.step_own([gradient(0, 0), None, None, None])
    assert params[0].grad is held
    assert params[1].grad is held
    assert list(zero.optim.state) == [params[0]]
    assert [torch.equal(p, b) for p, b in zip(params, before, strict=True)] == [False, True, True, True]


def test_settings_are_read_in_every_iteration_and_changes_come_back():
    params, zero = sharded(Counting)
    for group in zero.param_groups:
        group["lr"] = 0.0
    before = [parameter.detach().clone() for parameter in params]
    zero.overlap.begin(None)
    zero.overlap.step_own([gradient(place, 0) for place in range(4)])
    zero.overlap.end()
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    assert [group["count"] for group in zero.param_groups] == [1, 1]


def test_a_list_of_gradients_of_the_wrong_length_is_refused():
    _, zero = sharded(Counting)
    with pytest.raises(AssertionError, match="3 gradients for a shard of 4"):
        zero.overlap.step_own([None] * 3)
