"""What can become of one rank in one run: it finished, raised, hung or died. Nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..subjects import Subject

_judged: Subject | None = None  # whose errors this process catches; set by ``judging`` alone


@dataclass(frozen=True)
class Event:
    """One collective, as the recording process group saw it on one rank."""

    op: str  # all_reduce, broadcast, all_gather, reduce_scatter, …
    reduce_op: str  # SUM, MAX, …; empty where the op reduces nothing
    dtype: str  # float32
    shape: tuple[int, ...]
    source: int  # group rank that sends; -1 where there is none
    group: str  # name of the process group
    thread: str  # name of the thread that started it
    done: bool = False  # whether the rank was seen to get past it
    target: int = -1  # group rank that receives (reduce, gather, send); -1 where there is none
    ranks: tuple[int, ...] = ()  # global ranks of the group's members

    def __str__(self) -> str:
        words = [self.op, self.reduce_op, self.dtype, str(self.shape) if self.dtype else ""]
        text = " ".join(word for word in words if word)
        text += "" if self.source < 0 else f" from {self.source}"
        return text if self.target < 0 else f"{text} to {self.target}"


@dataclass(frozen=True)
class Caught:
    """An exception that a rank caught and brought home: class names along its MRO, and its text."""

    kinds: tuple[str, ...]
    text: str

    def is_a(self, kind: type[BaseException]) -> bool:
        return kind.__name__ in self.kinds

    def __str__(self) -> str:
        return f"{self.kinds[0]}: {self.text}"


@contextlib.contextmanager
def judging(subject: Subject | None) -> Iterator[None]:
    """While this lasts, ``caught`` knows what ``subject`` declares to lack."""
    global _judged
    before, _judged = _judged, subject
    try:
        yield
    finally:
        _judged = before


def caught(act: Callable[..., Any], *args: Any, **kwargs: Any) -> Caught | None:
    """Call ``act``; return what it raised (picklable), or None if it returned.

    An error about something that the judged subject declares to lack is raised as ``Unsupported``: it is no refusal.
    """
    try:
        act(*args, **kwargs)
    except Exception as error:
        if _judged is not None and (lacking := _judged.excuse(error)):
            raise lacking from error
        return Caught(tuple(kind.__name__ for kind in type(error).__mro__), str(error))
    return None


@dataclass(frozen=True)
class Finished:
    """The rank's function returned."""

    value: Any
    trace: tuple[Event, ...] = ()


@dataclass(frozen=True)
class Raised:
    """The rank's function raised."""

    error: Caught
    traceback: str
    unsupported: bool = False  # the subject declared that it lacks a feature
    fell_over: bool = False  # the suite's own code raised it: see ``origin``
    trace: tuple[Event, ...] = ()

    @property
    def no_answer(self) -> bool:
        """The rank said on purpose that there is nothing to judge: a feature, or a device, is lacking."""
        return self.unsupported or self.error.kinds[0] in ("NotOffered", "NotRun", "NotRunnable")


@dataclass(frozen=True)
class Hung:
    """The deadline passed, or the whole run fell silent, while this rank was still inside its function."""

    stacks: str
    trace: tuple[Event, ...] = ()


@dataclass(frozen=True)
class Died:
    """The rank's process ended by itself. ``exit_code`` is negative for a signal, as in subprocess."""

    exit_code: int
    last_words: str  # the tail of its standard error
    trace: tuple[Event, ...] = ()


Outcome = Finished | Raised | Hung | Died


class RunFailed(AssertionError):
    """``Run.values`` was asked of a run in which some rank did not finish; carries the run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        super().__init__("\n".join([run.summary(), *run.details()]))


@dataclass(frozen=True)
class Run:
    """What became of every rank, by rank."""

    outcomes: tuple[Outcome, ...]
    seconds: float = 0.0
    witness: str = ""  # who waits on which collective and the first that differs, where something went wrong
    notes: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether every rank did."""
        return all(isinstance(outcome, Finished) for outcome in self.outcomes)

    def values(self) -> list[Any]:
        """The ranks' results, in rank order; ``RunFailed`` if any rank did not finish."""
        if not self.finished:
            raise RunFailed(self)
        return [outcome.value for outcome in self.outcomes if isinstance(outcome, Finished)]

    def traces(self) -> list[tuple[Event, ...]]:
        """The recorded collectives, in rank order (empty unless the run was recorded)."""
        return [outcome.trace for outcome in self.outcomes]

    def summary(self) -> str:
        """One line per rank, and the witness."""
        lines = [f"rank {rank} {_tell(outcome)}" for rank, outcome in enumerate(self.outcomes)]
        return "\n".join([*lines, *([self.witness] if self.witness else [])])

    def details(self) -> list[str]:
        """For every rank that did not finish: its traceback, its stacks or its last words."""
        evidence_of = [(rank, _evidence(outcome)) for rank, outcome in enumerate(self.outcomes)]
        return [f"--- rank {rank}\n{evidence}" for rank, evidence in evidence_of if evidence]


def _evidence(outcome: Outcome) -> str:
    match outcome:
        case Raised(traceback=text) | Hung(stacks=text) | Died(last_words=text):
            return text.strip()
        case _:
            return ""


def _tell(outcome: Outcome) -> str:
    match outcome:
        case Finished():
            return "finished"
        case Raised(error=error):
            return f"raised {error}"
        case Hung():
            return "hung"
        case Died(exit_code=code):
            return f"died by signal {-code}" if code < 0 else f"died with exit status {code}"
