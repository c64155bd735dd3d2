"""What must hold at the end of every run; a breach is reported with the schedule that led to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .messages import Network
from .programs import Note
from .scheduling import DIE, Rank, Simulation

Expected = Sequence[tuple[list[Note], list[Note]]]


@dataclass(frozen=True)
class Report:
    """What a rank that came to the end of its block hands back."""

    log: list[Note]
    state: list[Note]


def judged(
    simulation: Simulation, network: Network, expected: Expected, logs: Sequence[list[Note]], *, throws: bool
) -> tuple[str, str]:
    """How a run has ended, in a word, and what is wrong with it; the latter is empty where nothing is."""
    if simulation.violation is not None:
        return "", str(simulation.violation)
    wrong = _wrong_logs(expected, logs)
    if wrong:
        return "", wrong
    if simulation.failed is not None:
        return _after_a_failure(simulation, expected, throws=throws)
    return _unharmed(simulation, network, expected, throws=throws)


def _wrong_logs(expected: Expected, logs: Sequence[list[Note]]) -> str:
    """What a rank has noted on its way is the beginning of what one process computes, however it ended."""
    for rank, ((promised, _), log) in enumerate(zip(expected, logs, strict=True)):
        for should, was in zip(promised, log, strict=False):
            if not _same(should, was):
                return f"rank {rank}: {was}, but one process computes {should}"
    return ""


def _same(one: Note, other: Note) -> bool:
    return repr(one) == repr(other)  # NaN stands for no gradient


def _unharmed(simulation: Simulation, network: Network, expected: Expected, *, throws: bool) -> tuple[str, str]:
    if len(set(network.started)) > 1:
        return "", f"the ranks have started unequal numbers of collectives: {network.started}"
    if throws:
        return _all_threw(simulation.ranks)
    for rank in simulation.ranks:
        wrong = _not_at_the_end(rank, expected)
        if wrong:
            return "", wrong
    pending = [sorted(left) for left in network.unwaited]
    if any(pending):
        return "", f"collectives are left that nobody has waited for, by rank: {pending}"
    return "trained", ""


def _not_at_the_end(rank: Rank, expected: Expected) -> str:
    if rank.error is not None:
        return f"rank {rank.number} raises {type(rank.error).__name__}: {rank.error}"
    log, state = expected[rank.number]
    report: Report = rank.result
    for promised, found in ((log, report.log), (state, report.state)):
        if len(promised) != len(found) or not all(map(_same, promised, found)):
            return f"rank {rank.number} ends with {found}, but one process computes {promised}"
    return ""


def _all_threw(ranks: Sequence[Rank]) -> tuple[str, str]:
    for rank in ranks:
        if not isinstance(rank.error, RuntimeError):
            return "", f"rank {rank.number} of a context that throws ends with {rank.error!r}"
        if "exhaust" not in str(rank.error):
            return "", f"rank {rank.number} raises about something else than exhausted inputs: {rank.error}"
    return "threw", ""


def _after_a_failure(simulation: Simulation, expected: Expected, *, throws: bool) -> tuple[str, str]:
    """Every survivor ends as if nothing had happened, for it needed that rank no more, or names it in its error."""
    assert simulation.failed is not None
    failed = simulation.failed.rank
    ended = "died" if simulation.failed.how == DIE else "raised"
    named = 0
    for rank in simulation.ranks:
        if rank.number == failed:
            continue
        if throws and "exhaust" in str(rank.error):
            continue  # that rank had run out before it failed, or tells so with its last message
        if rank.error is None:
            wrong = _not_at_the_end(rank, expected)
            if wrong:
                return "", wrong
        elif f"rank {failed}" not in text_of(rank.error):
            return "", f"rank {failed} has {ended}, but rank {rank.number} does not name it: {text_of(rank.error)}"
        else:
            named += 1
    return f"{ended}: named by {named}", ""


def text_of(error: BaseException) -> str:
    """An error's text with its notes."""
    return " | ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
