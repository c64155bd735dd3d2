"""Watches a run until it ends or hangs, and gathers what became of every rank, with a witness where it went wrong."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from . import collective_trace as traces
from . import stall
from .files import Folder
from .outcomes import Caught, Died, Finished, Hung, Outcome, Raised, Run
from .rank_pool import RankPool
from .witness import first_difference, witness

_NO_TRACE = "No collective trace was kept: run it again with trace=True to see where the ranks part."


def watch(
    pool: RankPool, folder: Folder, limit_s: float, stall_s: float, most_times: float, when_idle: Callable[[bool], None]
) -> None:
    """Wait until every rank has reported or ended, the time allowed is over, or the run has fallen silent.

    ``when_idle`` is told at every look whether nothing has happened since the last one, and False at the end.
    """
    start = time.monotonic()
    quiet, allowed = stall.StallDetector(stall_s), stall.Allowance(start, limit_s, most_times)
    next_look = start + stall.LOOK_EVERY_S if stall.available() else allowed.deadline
    try:
        while unfinished := pool.unfinished():
            now = time.monotonic()
            if now >= min(next_look, allowed.deadline) and stall.available():
                written = sum(map(folder.written, unfinished))
                look = stall.look({pool.pids[rank] for rank in unfinished}, now)
                quiet.add(look, (len(unfinished), written))
                allowed.add(look)
                when_idle(quiet.resting)
                if quiet.fallen:
                    return
                next_look = time.monotonic() + stall.LOOK_EVERY_S
            if now >= allowed.deadline:
                return
            pool.listen(min(allowed.deadline, next_look) - now)
    finally:
        when_idle(False)


def gather(pool: RankPool, folder: Folder, trace: bool) -> list[Outcome]:
    """What became of every rank; those that did neither report nor end by now hang."""
    hung = pool.unfinished()
    stacks = pool.stacks(hung) if hung else {}
    if hung:
        pool.listen(0.0)  # a rank that reports while it is asked where it is was slow, and does not hang
    outcomes: list[Outcome] = []
    for rank in range(pool.world):
        if rank in stacks and not pool.reported(rank):
            outcomes.append(Hung(stacks[rank]))
        elif folder.outcome(rank).exists():
            outcomes.append(_read(folder.outcome(rank)))
        else:
            outcomes.append(Died(pool.ended[rank], pool.last_words(rank)))
    if trace:
        pool.bring_traces_up_to_date([rank for rank in range(pool.world) if rank not in pool.ended])
        outcomes = [replace(one, trace=traces.read(folder.trace(rank))) for rank, one in enumerate(outcomes)]
    return outcomes


def _read(path: Path) -> Outcome:
    try:
        outcome: Outcome = pickle.loads(path.read_bytes())
    except Exception as error:
        text = f"the rank's result cannot be read by the driver: {type(error).__name__}: {error}"
        return Raised(Caught(("Unpicklable", "TypeError", "Exception"), text), "", fell_over=True)
    return outcome


def judge(outcomes: list[Outcome], trace: bool, seconds: float) -> Run:
    """The run, with a witness where something went wrong, and a note where ranks that finished did not agree."""
    if all(isinstance(outcome, Finished) for outcome in outcomes):
        parted = first_difference(outcomes) if trace else ""
        notes = (f"All ranks finished, but their collectives differ: {parted}",) if parted else ()
        return Run(tuple(outcomes), seconds, notes=notes)
    seen = witness(outcomes) if trace else ""
    if not trace and any(isinstance(outcome, Hung) for outcome in outcomes):
        seen = _NO_TRACE
    return Run(tuple(outcomes), seconds, seen)
