"""What a step costs a live rank while many ranks have joined: counted, not timed."""

from types import SimpleNamespace

import pytest
import torch

from impl import ZeroRedundancyOptimizer
from impl.zero import joining
from impl.zero.partition import ShardPlan

WORLD, PARAMETERS = 1000, 50


class Counted(tuple):
    """Owners that count how often they are gone through."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


@pytest.fixture
def zero(alone):
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(PARAMETERS)]
    return ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=1.0)


def test_a_step_goes_through_the_parameters_as_often_for_many_joined_ranks_as_for_one(zero, monkeypatch):
    found, session = [], SimpleNamespace(source=0, watch=None, shadowing=False)
    monkeypatch.setattr(joining, "exchange_gradients", lambda _team, members, *_: [None] * len(members))
    zero._joining._channel = SimpleNamespace(exchange=lambda *_: (SimpleNamespace(dense=[]), {}))
    for absent in (range(1, 2), range(1, WORLD)):
        owners = Counted(index * 7 % WORLD for index in range(PARAMETERS))
        zero.shard.plan = ShardPlan(WORLD, (1,) * PARAMETERS, owners)
        before = owners.passes
        zero._joining._pass_on(None, absent, session)
        found.append(owners.passes - before)
    assert found[0] == found[1]


def test_what_the_joined_ranks_own_is_found_wherever_it_stands(zero):
    zero.shard.plan = ShardPlan(5, (1,) * PARAMETERS, tuple(index % 5 for index in range(PARAMETERS)))
    expected = [p for index, p in enumerate(zero.shard.parameters()) if index % 5 in (1, 4)]
    assert list(map(id, zero.shard.owned_by(4, 1))) == list(map(id, expected))
