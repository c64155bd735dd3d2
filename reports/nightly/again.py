"""Measuring again, on the same night, before anything is believed: what looks changed, and what looks broken."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from ..history import add_file
from ..history.layout import BEFORE
from ..judging import ClauseState, JudgedHistory, Series, State
from .earlier import checked_out, commit_of
from .tonight import Tonight, collect, run


def again(tonight: Tonight, judged: JudgedHistory, night: Path) -> bool:
    """Measure again what looks changed, and ask again about clauses that look broken. True if anything was added."""
    machine = tonight.asked.machine
    broken = sorted(
        {
            one.clause
            for one in judged.clauses
            if one.machine == machine and one.states and one.states[-1] is ClauseState.BROKEN
        }
    )
    added = bool(broken) and _once_more(tonight, "conformance", 2, night, select=",".join(broken))
    mine = [one for one in judged.series if one.machine == machine and one.current]
    doubtful = [one for one in mine if one.doubtful]
    if doubtful:
        return _doubts(tonight, judged, doubtful, night) or added
    if any(one.state is State.LEARNING for one in mine):  # few nights: each should say as much as it can
        return _once_more(tonight, "perf", 2, night, tonight.asked.left_s(tonight.measured_s)) or added
    return added


def _doubts(tonight: Tonight, judged: JudgedHistory, doubtful: Sequence[Series], night: Path) -> bool:
    """Repeat the doubtful series; where nights are few, in turns with the code of an earlier one."""
    names = list(dict.fromkeys(one.record_series for one in doubtful))
    few = [one for one in doubtful if one.few_nights]
    theirs = list(dict.fromkeys(one.record_series for one in few))
    commit = commit_of(judged, tonight.asked.machine, few)
    if theirs and not commit:
        print("nightly: no earlier night tells a commit with other code to measure beside tonight's", file=sys.stderr)
    folder = (tonight.work / "code-before").resolve()
    added = False
    with checked_out(commit, folder) if commit else nullcontext(None) as code:
        times = judged.parameters.early_again if code else judged.parameters.again
        share_s = tonight.asked.left_s(tonight.measured_s, beside=code is not None) / times
        for number in range(2, 2 + times):
            added |= _once_more(tonight, "perf", number, night, share_s / 2 if code else share_s, only=names)
            if code:
                added |= _once_more(tonight, "perf", number, night, share_s / 2, only=theirs, code=code)
    return added


def _once_more(
    tonight: Tonight, part: str, number: int, night: Path, budget_s: float = 0.0, *,
    select: str = "*", only: Sequence[str] = (), code: Path | None = None,
) -> bool:  # fmt: skip
    name = f"{BEFORE if code else part}-{number}"
    out = tonight.work / name
    _, why = run(tonight, part, budget_s, out, select=select, only=only, code=code)
    record = collect(tonight, part, out)
    if why or record is None:
        print(f"nightly: {name}: {why or 'left no record'}", file=sys.stderr)
    if record is not None:
        add_file(night, f"{name}.jsonl", record)
    return record is not None
