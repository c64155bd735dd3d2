"""The oracle's replicas: whose buffers each rank has, in a Join and outside one."""

import pytest
import torch

from conformance.api import oracle


class Total(torch.nn.Module):
    """Adds up its inputs in a buffer, and notes what was there before."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("total", torch.zeros(1))
        self.seen = []

    def forward(self, x):
        self.seen.append(self.total.item())
        self.total += x
        return self.weight * x


def trained(schedule, source):
    model = Total()
    replicas = oracle.Replicas(model, len(schedule), source)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def batch(rank, _iteration):
        return torch.tensor([10.0**rank])

    for _ in oracle.steps_alone(model, optimizer, schedule, batch, replicas=replicas):
        pass
    return model, replicas


def totals(replicas):
    return [held["total"].item() for held in replicas.held]


@pytest.mark.parametrize("schedule", [(3, 3, 3), (1, 3, 2), (0, 2, 3), (3, 2, 0), (2,)])
def test_in_a_join_every_forward_begins_with_the_highest_active_ranks_buffers(schedule):
    model, replicas = trained(schedule, max)
    own, _ = oracle.buffers_seen(schedule, [10.0**rank for rank in range(len(schedule))])
    by_iteration = [
        own[rank][iteration] for iteration in range(max(schedule)) for rank in oracle.active_ranks(schedule, iteration)
    ]
    assert model.seen == by_iteration
    last = oracle.active_ranks(schedule, max(schedule) - 1)
    replicas.take_over(last)
    assert set(totals(replicas)) == {own[last[-1]][-1] + 10.0 ** last[-1]}


def test_outside_a_join_rank_0s_buffers_count_and_the_last_forward_is_each_ranks_own():
    model, replicas = trained((2, 2, 2), min)
    assert model.seen == [0, 0, 0, 1, 1, 1]
    assert totals(replicas) == [2, 11, 101]


def test_replicas_change_nothing_about_the_parameters():
    plain, given = Total(), Total()

    def batch(rank, iteration):
        return torch.tensor([float(rank + iteration)])

    def train(model, replicas):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        return [step.parameters for step in oracle.steps_alone(model, optimizer, (1, 2), batch, replicas=replicas)]

    without, with_them = train(plain, None), train(given, oracle.Replicas(given, 2, min))
    assert [oracle.first_difference(*pair) for pair in zip(without, with_them, strict=True)] == [None, None]
