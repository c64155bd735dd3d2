"""Measures groups on ranks, wherever these are: bounds their runs, and finds out which cell disturbed one."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.ranks import Died, ForkServerFailed, Hung, NotRunnable, Raised, RankContext, Run
from conformance.ranks.agent_group import AgentLost

from ..plan.cells import Cell, Group
from . import links, traffic
from .clusters import Clusters
from .rows import FAILED, HUNG, NOT_RUN, Row, assembled, blank

if TYPE_CHECKING:
    from .links import Links
    from .on_ranks import Order
    from .traffic import Counted

BUDGET_GONE = "the budget was used up"
_COUNTING_S = 60.0  # for counting what an iteration sends: nothing is lost if it is not known
SILENCE_S = 10.0  # nothing at all happens in any rank: a hang, long before the deadline
_LINKS_S = 120.0  # for measuring a network
_LINK_TRIES = 3
_WITNESS_CHARACTERS = 30_000  # the stacks of eight ranks


@dataclass(frozen=True)
class Limit:
    """How long a run may take, and whether a budget says so."""

    seconds: float
    by_budget: bool = False

    def passed(self, doing: str) -> tuple[str, str]:
        """What becomes of a run that takes longer: status and reason."""
        if self.by_budget:
            return NOT_RUN, BUDGET_GONE
        return HUNG, f"not done after {self.seconds:.0f} s, the limit for a group ({doing})"


class Runner:
    """Every run has fresh ranks. One that goes wrong is blamed on one cell and repeated without it."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._links: dict[tuple[str, int], Links] = {}

    def links(self, order: Order) -> Links:
        """What the network between an order's ranks carries, measured once."""
        group = order.group
        if not group.network:
            return links.Links()
        key = (group.network, group.world)
        for _ in range(_LINK_TRIES if key not in self._links else 0):  # what disturbs the machine for a while may pass
            found = self._links_now(order)
            if found.missing:
                return found
            self._links[key] = found
            if not found.trouble:
                break
        return self._links[key]

    def _links_now(self, order: Order) -> Links:
        group = order.group
        run = self._on_ranks(links.on_rank, (group.network,), order, _LINKS_S)
        if not isinstance(run, str) and run.finished:
            measured: Links = run.values()[0]
            return measured
        why = run if isinstance(run, str) else f"the network could not be measured: {run.summary().splitlines()[0]}"
        return links.Links(group.network, group.world, missing=why)

    def measured_links(self) -> list[dict[str, Any]]:
        """All that was measured of networks, for the record."""
        return [{**vars(each), "trouble": each.trouble} for each in self._links.values()]

    def measure(self, order: Order, limit: Callable[[], Limit]) -> Iterator[Row]:
        """The rows of a group's cells. ``limit`` says how long a run may take that starts now."""
        left = order.group
        while left.cells:
            with tempfile.TemporaryDirectory(prefix="perf-") as folder:
                allowed = limit()
                run = self._run(replace(order, group=left), allowed.seconds, folder)
                if isinstance(run, str):
                    yield from (blank(cell, order.group, NOT_RUN, run) for cell in left)
                    return
                if run.finished:
                    values = run.values()
                    for cell in left:
                        yield assembled(cell, order.group, [rank[cell.series] for rank in values])
                    return
                culprit, doing = _blamed(left, Path(folder), run.outcomes)
                status, reason = _status(run.outcomes, doing)
                if status == HUNG and run.seconds >= allowed.seconds:
                    status, reason = allowed.passed(doing)
                if status == NOT_RUN:
                    yield from (blank(cell, order.group, status, reason) for cell in left)
                    return
                for cell in culprit:
                    yield {**blank(cell, order.group, status, reason), "witness": _witness(run)}
                left = left.only({cell.series for cell in left} - {cell.series for cell in culprit})

    def traffic(self, order: Order, cells: Sequence[Cell]) -> dict[str, Counted]:
        """What an iteration of each of these cells sends, by series; nothing if it cannot be counted."""
        if not cells:
            return {}
        run = self._on_ranks(traffic.on_rank, (cells, order.specs), order, _COUNTING_S, trace=True)
        counted: dict[str, Counted] = run.values()[0] if not isinstance(run, str) and run.finished else {}
        return counted

    def _run(self, order: Order, deadline_s: float, folder: str) -> Any:
        return self._on_ranks(on_rank, (order, folder), order, deadline_s)

    def _on_ranks(
        self, function: Callable[..., Any], args: Any, order: Order, deadline_s: float, trace: bool = False
    ) -> Any:
        subject = next(iter(order.specs.values()))
        try:
            return self._clusters.of(order.group).run(
                function, args, world=order.group.world, subject=subject, deadline_s=deadline_s,
                stall_s=SILENCE_S, trace=trace,
            )  # fmt: skip
        except (NotRunnable, ForkServerFailed) as error:
            return str(error)
        except AgentLost as error:
            if not order.group.network:  # a launcher's, which nobody can replace
                raise
            self._clusters.leave_hosts()
            return str(error)


def on_rank(ctx: RankContext, order: Order, folder: str) -> Any:
    """Rank function: measure, noting in a file what is going on, for the case that this rank does not come back.

    On another machine than the driver's there is no such folder. All ranks do the same at a time, so it is no loss.
    """
    from .on_ranks import measure

    if not Path(folder).is_dir():
        return measure(ctx, order, lambda _: None)

    with Path(folder, f"rank{ctx.rank}").open("wb", buffering=0) as notes:

        def tell(doing: str) -> None:
            notes.seek(0)
            notes.truncate()
            notes.write(doing.encode())

        return measure(ctx, order, tell)


def _blamed(group: Group, folder: Path, outcomes: Sequence[Any]) -> tuple[list[Cell], str]:
    """The cell that disturbed a run, and what was being done with it; all cells if that cannot be said."""
    votes: Counter[str] = Counter()
    for rank, outcome in enumerate(outcomes):
        try:
            doing = (folder / f"rank{rank}").read_text(encoding="utf-8")
        except OSError:
            continue
        # who died began it, or who raised; the others may only have lost that one, or be waiting for it
        votes[doing] += (len(outcomes) + 1) ** (2 if isinstance(outcome, Died) else isinstance(outcome, Raised))
    doing = votes.most_common(1)[0][0] if votes else "starting"
    culprit = [cell for cell in group if doing.startswith(f"{cell.series}:")]
    return culprit or list(group.cells), doing.removeprefix(f"{culprit[0].series}: ") if culprit else doing


def _witness(run: Run) -> str:
    """What each rank was doing when a run was disturbed: tracebacks, stacks, last words."""
    return "\n".join([run.summary(), *run.details()])[:_WITNESS_CHARACTERS]


def _status(outcomes: Sequence[Any], doing: str) -> tuple[str, str]:
    """What a disturbed run came to: status and reason. A death comes first: those that lose a peer by it raise."""
    for rank, outcome in sorted(enumerate(outcomes), key=lambda each: not isinstance(each[1], Died)):
        if isinstance(outcome, Raised):
            return FAILED, f"{doing}: rank {rank} raised {outcome.error}".split("\n")[0][:500]
        if isinstance(outcome, Died):
            how = f"signal {-outcome.exit_code}" if outcome.exit_code < 0 else f"exit status {outcome.exit_code}"
            words = outcome.last_words.strip().split("\n")[0][:300]
            return FAILED, f"{doing}: rank {rank} died by {how}" + (f": {words}" if words else "")
    stuck = [rank for rank, outcome in enumerate(outcomes) if isinstance(outcome, Hung)]
    return HUNG, f"{doing}: nothing moved any more on rank{'s' if len(stuck) > 1 else ''} {', '.join(map(str, stuck))}"
