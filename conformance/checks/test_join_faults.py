"""A rank that is killed or freezes in a context: cells of the fault matrix (`make faults`), judged as the matrix does.

Every survivor has one process's parameters, or an error that names the lost rank; where it goes on without that rank,
one process's that lost it there. How soon an error came, and what it says of the stage, is left to the matrix.
"""

from functools import partial

from conformance.api.checking import check
from conformance.faults.cells import REGROUPING, Cell
from conformance.faults.running import tried
from conformance.faults.training import run_cell
from conformance.subjects import Unsupported

#: a rank ends itself before that, so that nothing that is silent for longer is to be waited for
DEADLINE_S = 60.0

CELLS = {
    "exits at the end of the block": "exit/at the end of the block/live/Join with ZeRO",
    "killed while it shadows": "SIGKILL/first bucket/shadowing/Join with ZeRO",
    "killed when it has joined": "SIGKILL/final synchronisation/live/Join",
    "killed while it builds its model": "SIGKILL/construction/live/Join",
    "frozen in its backward": "stopped for ever/gradient hook/live/Join with ZeRO",
    "frozen while it shadows": "stopped for ever/second bucket/shadowing/Join",
    "frozen between iterations": "stopped for ever/between iterations/alone/Join",
    "frozen for a second": "stopped for 1 s/first bucket/live/Join",
    "without the store": "store gone/gradient hook/live/Join",
    "the others go on": "SIGKILL/gradient hook/live/Join, regrouped",
    "the others go on with copies of its shard": "exit/published shard/live/Join with a mirror, regrouped",
    "the others go on without one that shadowed": "SIGKILL/copied shard/shadowing/Join with a mirror, regrouped",
}


@check(
    "JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S, scenarios=CELLS,
    at=lambda cell: (Cell.of(cell).world,),
)  # fmt: skip
def test_peers_of_a_rank_that_is_lost_in_a_context_are_told_which_one_and_where(ranks, scenario):
    cell = Cell.of(scenario)
    if cell.program in REGROUPING:
        assert ranks.subject.regroup
    run = partial(ranks.run, run_cell, init=False, stall_s=DEADLINE_S)
    found = tried(cell, ranks.subject.name, run)
    if found.verdict == "not run":
        raise Unsupported(found.why)
    assert found.good or found.verdict in ("late", "unnamed stage"), f"{cell.id}: {found.verdict}: {found.why}"
