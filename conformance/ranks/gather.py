"""Watches a run until it ends or hangs, and gathers what became of every rank, with a witness where it went wrong."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from . import ledger as ledgers
from . import silence
from .crew import Crew
from .files import Folder, size_of
from .outcomes import Caught, Died, Finished, Hung, Outcome, Raised, Run
from .witness import first_difference, witness

_NO_LEDGER = "No ledger was kept: run it again with ledger=True to see at which collective the ranks part."


def watch(
    crew: Crew, folder: Folder, limit_s: float, silence_s: float, most_times: float, when_idle: Callable[[bool], None]
) -> None:
    """Wait until every rank has reported or ended, the time allowed is over, or the run has fallen silent.

    ``when_idle`` is told at every look whether nothing has happened since the last one, and False at the end.
    """
    try:
        _watch(crew, folder, limit_s, silence_s, most_times, when_idle)
    finally:
        when_idle(False)


def _watch(
    crew: Crew, folder: Folder, limit_s: float, silence_s: float, most_times: float, when_idle: Callable[[bool], None]
) -> None:
    start = time.monotonic()
    quiet, allowed = silence.Silence(silence_s), silence.Allowance(start, limit_s, most_times)
    next_look = start + silence.LOOK_EVERY_S if silence.available() else allowed.deadline
    while True:
        unfinished = [rank for rank in range(crew.world) if not crew.reported(rank) and rank not in crew.ended]
        now = time.monotonic()
        if not unfinished:
            return
        if now >= min(next_look, allowed.deadline) and silence.available():
            written = sum(size_of(folder.ledger(rank)) for rank in unfinished)
            look = silence.look({crew.pids[rank] for rank in unfinished}, now)
            quiet.add(look, (len(unfinished), written))
            allowed.add(look)
            when_idle(quiet.resting)
            if quiet.fallen:
                return
            next_look = time.monotonic() + silence.LOOK_EVERY_S
        if now >= allowed.deadline:
            return
        crew.listen(min(allowed.deadline, next_look) - now)


def gather(crew: Crew, folder: Folder, ledger: bool) -> list[Outcome]:
    """What became of every rank; those that did neither report nor end by now hang."""
    hung = [rank for rank in range(crew.world) if not crew.reported(rank) and rank not in crew.ended]
    stacks = crew.stacks(hung) if hung else {}
    if hung:
        crew.listen(0.0)  # a rank that reports while it is asked where it is was slow, and does not hang
    outcomes: list[Outcome] = []
    for rank in range(crew.world):
        if rank in stacks and not crew.reported(rank):
            outcomes.append(Hung(stacks[rank]))
        elif folder.outcome(rank).exists():
            outcomes.append(_read(folder.outcome(rank)))
        else:
            outcomes.append(Died(crew.ended[rank], crew.last_words(rank)))
    if ledger:
        crew.bring_ledgers_up_to_date([rank for rank in range(crew.world) if rank not in crew.ended])
        outcomes = [replace(one, ledger=ledgers.read(folder.ledger(rank))) for rank, one in enumerate(outcomes)]
    return outcomes


def _read(path: Path) -> Outcome:
    try:
        outcome: Outcome = pickle.loads(path.read_bytes())
    except Exception as error:
        text = f"the rank's result cannot be read by the driver: {type(error).__name__}: {error}"
        return Raised(Caught(("Unpicklable", "TypeError", "Exception"), text), "", fell_over=True)
    return outcome


def judge(outcomes: list[Outcome], ledger: bool, seconds: float) -> Run:
    """The run, with a witness where something went wrong, and a note where ranks that finished did not agree."""
    if all(isinstance(outcome, Finished) for outcome in outcomes):
        parted = first_difference([outcome.ledger for outcome in outcomes], outcomes) if ledger else ""
        notes = (f"All ranks finished, but their collectives differ: {parted}",) if parted else ()
        return Run(tuple(outcomes), seconds, notes=notes)
    seen = witness(outcomes) if ledger else ""
    if not ledger and any(isinstance(outcome, Hung) for outcome in outcomes):
        seen = _NO_LEDGER
    return Run(tuple(outcomes), seconds, seen)


def puzzling(run: Run) -> bool:
    """Whether a ledger could tell more: some rank hung or died, or some raised while others did not."""
    ends = {type(outcome) for outcome in run.outcomes}
    declined = any(isinstance(end, Raised) and (end.unsupported or "NotRun" in end.error.kinds) for end in run.outcomes)
    return not declined and (Hung in ends or Died in ends or ends == {Raised, Finished})


def explained(run: Run, again: Run) -> Run:
    """The run, with the witness from a second, recorded one."""
    if not puzzling(again):
        return replace(run, witness="Run once more with a ledger, it did not go wrong in this way.")
    seen = again.witness or "the recorded collectives do not differ."
    return replace(run, witness=f"{seen} (Seen when it was run once more with a ledger.)")
