"""Sums of sparse tensors on real ranks: whatever the ranks hold, and however that changes from round to round."""

import pytest
import torch

from impl.comm.ranks import Team
from impl.comm.sparse import SparseCapacity, SparseRound, sum_sparse
from impl.tests.tracing import tracing

from .comm_hook_ranks import run_on_ranks

ROWS, WIDTH = 12, 3


def part(rank, count, *, width=(WIDTH,), dtype=torch.float32):
    """So many rows, some of them several times: multiples of the rank's number, so that sums are exact."""
    indices = torch.tensor([(rank + 5 * k) % ROWS for k in range(count)], dtype=torch.int64)
    values = (torch.arange(count, dtype=dtype) + 1).view(-1, *[1] * len(width)).expand(count, *width) * (rank + 1)
    return torch.sparse_coo_tensor(indices.unsqueeze(0), values.clone(), (ROWS, *width), check_invariants=True)


def expected(world, counts, **how):
    return sum(part(rank, counts[rank], **how).to_dense() for rank in range(world))


#: rows of each rank, round by round: none at all, on one rank only, more than before, fewer, the same
COUNTS = [(0, 0, 0), (4, 0, 2), (4, 0, 2), (3, 4, 1), (9, 4, 1), (9, 9, 9), (1, 0, 1), (1, 1, 1)]


def sum_rounds(rank, world):
    capacities, wrong, messages = SparseCapacity(), [], []
    for number, counts in enumerate(COUNTS):
        hows = [{}, {"width": (), "dtype": torch.float64}, {"dtype": torch.float16}]
        with tracing() as labels:
            together = SparseRound(capacities)
            for how in hows:
                together.add(part(rank, counts[rank], **how))
            together.send(Team.of(), "test")
            sums = [together.result(place) for place in range(len(hows))]
        messages.append(len(list(labels)))
        for how, total in zip(hows, sums, strict=True):
            right = expected(world, counts, **how)
            if not (total.is_coalesced() and total.dtype is right.dtype and torch.equal(total.to_dense(), right)):
                wrong.append((number, how, total))
    return wrong, messages


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_round_is_the_sum_and_takes_one_message_where_no_rank_has_more_rows_than_before(world):
    highest = [max(counts[:world]) for counts in COUNTS]
    expected_messages, capacity = [], 0
    for rows in highest:
        expected_messages.append(2 if rows > capacity else 1)
        if not rows <= capacity <= 2 * rows:
            capacity = rows + rows // 8 if 0 < capacity < rows else rows
    assert run_on_ranks(sum_rounds, world) == [([], expected_messages)] * world


def give_up_a_round(rank, world):
    """One rank sends its rows of the second round and never asks for the sum; then it goes on with the third."""
    capacities, team, told = SparseCapacity(), Team.of(), []
    for number, counts in enumerate([(2, 2), (5, 7), (6, 7)]):
        together = SparseRound(capacities)
        together.add(part(rank, counts[rank]))
        together.send(team, "test")
        if (rank, number) != (0, 1):
            told.append(torch.equal(together.result(0).to_dense(), expected(world, counts)))
    return told


def test_a_rank_that_gives_a_round_up_keeps_step_with_the_others():
    assert run_on_ranks(give_up_a_round, 2) == [[True, True], [True, True, True]]


def sum_many_rows(rank, world):
    indices = torch.arange(5000).remainder(7).unsqueeze(0)
    values = torch.full((5000, 2), rank + 1.0)
    total = sum_sparse(Team.of(), torch.sparse_coo_tensor(indices, values, (9, 2), check_invariants=True), "test")
    return total.is_coalesced(), total.values()[:, 0].tolist()


def test_many_double_rows_come_out_added_up():
    counts = [sum(1 for k in range(5000) if k % 7 == row) for row in range(7)]
    assert run_on_ranks(sum_many_rows, 2) == [(True, [3.0 * count for count in counts])] * 2
