"""Which parameters have memory in common, and who owns them."""

import pytest
import torch
from torch import nn

from conformance.ranks import caught
from impl.zero.memory import first_in_memory, memory_of_its_own
from impl.zero.partition import ShardPlan

WHOLE = torch.zeros(4, 6)
FLAT = WHOLE.view(-1)
APART = torch.zeros(3)


@pytest.mark.parametrize(("parts", "first"), [
    ([WHOLE[:, :3], WHOLE[:, 3:]], [0, 1]),  # their spans meet, but no element is in both
    ([WHOLE[:, :4], WHOLE[:, 3:]], [0, 0]),
    ([WHOLE[:, :2], WHOLE[2:]], [0, 0]),  # where the second begins there are fewer elements in the first
    ([FLAT[::2], FLAT[1::2], FLAT[1:2]], [0, 1, 1]),
    ([FLAT[:3], APART, FLAT[5:9], FLAT[2:6], FLAT[20:]], [0, 1, 0, 0, 4]),  # two meet by way of a third
    ([FLAT[8:], FLAT[:8], APART, WHOLE], [0, 0, 2, 0]),
    ([FLAT[:1].expand(5), FLAT[:0], FLAT[1:], *torch.empty(2, 3, device="meta")], [0, 1, 2, 3, 4]),
    ([FLAT, torch.view_as_complex(FLAT.view(12, 2))], [0, 0]),
])  # fmt: skip
def test_parameters_that_share_an_element_are_told_by_the_first_of_them(parts, first):
    parameters = [nn.Parameter(part) for part in parts]
    assert first_in_memory(parameters) == first
    alone = [parameter for parameter, head in zip(parameters, first, strict=True) if first.count(head) == 1]
    assert memory_of_its_own(parameters) == set(map(id, alone))


def test_one_that_is_listed_twice_shares_with_itself():
    parameter = nn.Parameter(torch.zeros(0))
    assert first_in_memory([parameter, nn.Parameter(APART), parameter]) == [0, 1, 0]


def test_those_with_one_memory_go_to_one_owner_as_large_as_they_are_together():
    assert ShardPlan.greedy([4, 3, 3, 5], 2, [0, 1, 1, 3]).owners == (1, 0, 0, 1)
    assert ShardPlan.greedy([4, 3, 1, 9], 2, [0, 1, 0, 3], [0, 1, None, None]).owners == (0, 1, 0, 1)


def refuse_in_overlap(ctx):
    parts = [nn.Parameter(WHOLE), nn.Parameter(torch.zeros(2)), nn.Parameter(WHOLE[1])]
    error = caught(ctx.subject.ZeroRedundancyOptimizer, parts, torch.optim.SGD, lr=0.1, overlap_with_ddp=True)
    return error and (error.kinds[0], "0 and 2 share memory" in error.text)


def test_steps_in_backward_refuse_them(run):
    assert run(refuse_in_overlap, world=2) == [("ValueError", True)] * 2
