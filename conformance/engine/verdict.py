"""From what a check raised, or did not raise, to one of the seven outcomes with a witness."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ..api.checking import NotRun
from ..ranks import Died, Finished, Hung, NotRunnable, Raised, Run, RunFailed
from ..ranks import Outcome as RankOutcome
from ..ranks.origin import Sides, fell_over
from ..results import BEHIND, Outcome
from ..subjects import NotOffered, Unsupported

WITNESS_CHARS = 300  # a witness is one line that fits a report
COMPARED_CHARS = 160  # of a comparison, if what differs follows; a label stays whole
PHRASE_CHARS = 140  # what one rank raised, within it; the detail has the rest
DETAIL_CHARS = 8000
NUMBERS = "in numbers: "  # begins the line that says what differs, below a failed comparison
_FRAME = re.compile(r'File "([^"]+)", line (\d+),? in (\S+)')  # as faulthandler writes it, and as traceback does
FELL_OVER = "the check itself fell over: "
# A group of errors is judged by its worst; what cannot be judged comes last.
_WORST_FIRST = [
    Outcome.CRASHED, Outcome.HUNG, Outcome.FAILED, Outcome.SUITE_ERROR, Outcome.UNSUPPORTED, Outcome.NOT_RUN,
    Outcome.PASSED,
]  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check with its witness (one line) and the detail behind it."""

    outcome: Outcome
    witness: str = ""
    detail: str = ""
    schedule: str = ""  # the smallest failing one, if it was looked for: "0,1"

    def at_schedule(self, schedule: Sequence[int]) -> Verdict:
        """The same, of a schedule that is known to be the smallest that ends so."""
        return replace(
            self, schedule=",".join(map(str, schedule)),
            witness=_line(f"smallest schedule: {tuple(schedule)}: {self.witness}"),
        )  # fmt: skip


def judge(error: BaseException | None, last_run: Run | None = None, sides: Sides | None = None) -> Verdict:
    """What a check's ending means. ``last_run`` is the last run that it made, for the detail.

    ``sides`` tell whose an error is that is no assertion; without them it is the suite's.
    """
    outcome = Outcome.FAILED
    if error is not None and sides and sides.subject:
        error = sides.subject.excuse(error) or error
    match error:
        case None:
            return Verdict(Outcome.PASSED)
        case NotOffered() | NotRun() | NotRunnable() | pytest.skip.Exception():
            return Verdict(Outcome.NOT_RUN, _line(str(error)))
        case Unsupported():
            return Verdict(Outcome.UNSUPPORTED, _line(str(error)))
        case RunFailed(run=run):
            return of_run(run)
        case BaseExceptionGroup(exceptions=errors):
            verdicts = [judge(each, last_run, sides) for each in errors]
            return min(verdicts, key=lambda verdict: _WORST_FIRST.index(verdict.outcome))
        case AssertionError() | pytest.fail.Exception():
            text = _with_numbers(str(error)) or "an assertion without a text"
        case _:
            text = f"{type(error).__name__}: {error}"
            if fell_over(error, sides or Sides(), on_rank=False):
                outcome, text = Outcome.SUITE_ERROR, f"{FELL_OVER}{text}"
            else:
                text = f"raised {text}"
    return Verdict(outcome, _line(text), _clip(_detail(error, text, last_run)))


def of_run(run: Run) -> Verdict:
    """What it means that some rank of a run did not finish."""
    outcome = _run_outcome(run.outcomes)
    if outcome in (Outcome.UNSUPPORTED, Outcome.NOT_RUN):
        reasons = [end.error.text for end in run.outcomes if isinstance(end, Raised) and _no_answer(end)]
        return Verdict(outcome, _line(reasons[0]))
    if outcome is Outcome.SUITE_ERROR:
        return Verdict(outcome, _line(FELL_OVER + _grouped(map(_fall, run.outcomes))), _clip("\n".join(_story(run))))
    ends = _grouped(map(_phrase, run.outcomes))
    first = _first_line(run.witness) if any(end.trace for end in run.outcomes) else ""
    witness = f"{first.rstrip('.')} ({ends})" if first else ends
    return Verdict(outcome, _line(witness), _clip("\n".join(_story(run))))


def _run_outcome(ends: Iterable[RankOutcome]) -> Outcome:
    ends = list(ends)
    no_answers = [answer for end in ends if isinstance(end, Raised) and (answer := _no_answer(end))]
    if no_answers:  # its peers may well have waited for it in vain: that says nothing about the subject
        return no_answers[0]
    if any(isinstance(end, Raised) and end.fell_over for end in ends):
        return Outcome.SUITE_ERROR
    if any(isinstance(end, Died) for end in ends):
        return Outcome.CRASHED
    return Outcome.HUNG if any(isinstance(end, Hung) for end in ends) else Outcome.FAILED


def _no_answer(end: Raised) -> Outcome | None:
    if end.unsupported:
        return Outcome.UNSUPPORTED
    return Outcome.NOT_RUN if end.no_answer else None


def _grouped(phrases: Iterable[str]) -> str:
    """Each way of ending once, with the ranks that ended so; ``phrases`` come by rank."""
    ranks: dict[str, list[int]] = {}
    for rank, phrase in enumerate(phrases):
        ranks.setdefault(phrase, []).append(rank)
    return "; ".join(
        f"{'rank' if len(who) == 1 else 'ranks'} {', '.join(map(str, who))} {phrase}"
        for phrase, who in ranks.items()
        if phrase
    )


def _fall(end: RankOutcome) -> str:
    """How the suite's own code fell over on a rank, and where; empty for its peers, whose ends say nothing."""
    if not isinstance(end, Raised) or not end.fell_over:
        return ""
    return f"{_phrase(end)} ({_last_place(end.traceback)})"


def _last_place(text: str) -> str:
    """The innermost frame of a printed traceback."""
    frames = _FRAME.findall(text)
    return f"{Path(frames[-1][0]).name}:{frames[-1][1]} in {frames[-1][2]}" if frames else "at an unknown place"


def _phrase(end: RankOutcome) -> str:
    match end:
        case Finished():
            return "finished"
        case Raised(error=error):
            text = _first_line(error.text) or f"at {_last_source_line(end.traceback)}"
            return f"raised {error.kinds[0]}: {_short(text, PHRASE_CHARS)}"
        case Hung(stacks=stacks):
            return f"hung{_innermost(stacks)}"
        case Died(exit_code=code) if code < 0:
            return f"died by signal {-code}"
        case Died(exit_code=code):
            return f"died with exit status {code}"


def _innermost(stacks: str) -> str:
    """Where the thread that works for the check stands, from a stack that begins at its innermost frame."""
    _, current, rest = stacks.partition("Current thread")
    frame = _FRAME.search(rest if current else stacks)
    return f" at {Path(frame[1]).name}:{frame[2]} in {frame[3]}" if frame else ""


def _story(run: Run) -> Iterable[str]:
    """Everything known about a run that went wrong, rank by rank."""
    if run.witness:
        yield run.witness.strip()
    yield from run.notes
    for rank, end in enumerate(run.outcomes):
        yield f"rank {rank} {_phrase(end)}"
        if end.trace:
            yield f"{BEHIND}last collectives of {len(end.trace)}: {' · '.join(map(str, end.trace[-4:]))}"
        match end:
            case Raised(traceback=text) | Died(last_words=text):
                yield from (f"{BEHIND}{line}" for line in text.strip().splitlines()[-16:])
            case Hung(stacks=text):
                yield from (f"{BEHIND}{line}" for line in text.strip().splitlines()[:40])


def _detail(error: BaseException, text: str, last_run: Run | None) -> str:
    """The whole text, where it was raised, hypothesis' falsifying example, and the last run if it went wrong."""
    parts = [text, _place(error), *getattr(error, "__notes__", ())]
    if last_run is not None and not last_run.finished:
        parts += ["the last run before this:", *_story(last_run)]
    return "\n".join(part for part in parts if part)


def _place(error: BaseException) -> str:
    """The innermost line of a check that the error passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).name.startswith("test_")] or list(frames)
    return f"at {Path(inside[-1].filename).name}:{inside[-1].lineno} in {inside[-1].name}" if inside else ""


def _last_source_line(text: str) -> str:
    """The source line of the innermost frame of a printed traceback."""
    lines = [line.strip() for line in text.strip().splitlines()]
    code = [line for line in lines[:-1] if line and not line.startswith(("File ", "^", "~", "Traceback"))]
    return code[-1] if code else "an unknown place"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _line(text: str) -> str:
    """One line, not too long. A rewritten assertion says the essential on its first line."""
    return _short(_first_line(text), WITNESS_CHARS)


def _with_numbers(text: str) -> str:
    """An assertion's text; its first line, where that does not show two single values, says what differs, too."""
    first = _first_line(text)
    told = re.search(rf"^\s*{NUMBERS}(.*)", text, re.MULTILINE)
    labelled = not first.startswith("assert ")
    if told is None or (not labelled and told[1].startswith("got ")):
        return text
    return text.replace(first, f"{first if labelled else _short(first, COMPARED_CHARS)}: {told[1]}", 1)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _clip(text: str) -> str:
    """Keep both ends of an overlong text: the beginning says what, the end says where."""
    if len(text) <= DETAIL_CHARS:
        return text
    half = DETAIL_CHARS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
