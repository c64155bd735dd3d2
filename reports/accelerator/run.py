"""Runs the parts in order, each with its deadline, and says after every one what is known by then."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..history import HistoryError, opened
from ..nightly import child
from ..nightly.lock import locked
from ..nightly.run import terminated_like_interrupted
from .facts import Facts, looked_up, question, standing_in
from .parts import PARTS, USUAL_MINUTES, Here, Part
from .results import Outcome, Row, found_by, judged_by_sanitizer, outcome_of, row
from .state import keep, kept
from .summary import paragraph
from .written import write

ALL_PROVED, DISPROVED, NOTHING, TO_GO_ON, INTERRUPTED = 0, 1, 2, 3, 130
_LEAST_S = 15.0  # what is begun with less time left would only be stopped


@dataclass(frozen=True)
class Asked:
    """One run, checked."""

    out: Path
    minutes: float
    rehearsed: bool = False
    only: tuple[str, ...] = ()  # parts by name; empty: all
    select: str = "*"  # clauses, in a rehearsal


def chosen(only: Sequence[str]) -> tuple[Part, ...]:
    """The parts of these names, in their own order."""
    names = [part.name for part in PARTS]
    for name in only:
        if name not in names:
            raise HistoryError(f"there is no part {name!r}; there are {', '.join(names)}")
    return tuple(part for part in PARTS if not only or part.name in only)


def gpu(asked: Asked) -> int:
    """Do it all; returns the exit status."""
    parts = chosen(asked.only)
    facts = looked_up()
    if asked.rehearsed:
        facts = standing_in(facts)
    if not facts.gpus:
        print(f"reports: there is no GPU here: {facts.why}; nothing was run", file=sys.stderr)
        return NOTHING
    out = opened(asked.out)
    name = question(facts, asked.select, "rehearsed" if asked.rehearsed else "")
    here = Here(facts, out / name, asked.minutes / USUAL_MINUTES, asked.rehearsed, asked.select)
    with locked(out / ".lock", "a run on the GPU"), terminated_like_interrupted():
        return _all(here, parts, time.monotonic() + 60 * asked.minutes)


def _all(here: Here, parts: Sequence[Part], end_s: float) -> int:
    """Every part that has not been finished earlier; record, page and paragraph are made anew after each."""
    rows = {part.name: kept(here.folder(part.name)) or _to_come(part) for part in parts}
    try:
        for part in parts:
            if not Outcome(rows[part.name]["outcome"]).final:
                rows[part.name] = _tried(part, here, end_s - time.monotonic())
                write(here, list(rows.values()), interrupted=True)
            here = _wiser(here, part, rows[part.name])
    except KeyboardInterrupt:
        print("reports: interrupted; what was finished is kept, and the same command goes on", file=sys.stderr)
        return INTERRUPTED
    finally:
        pages = write(here, list(rows.values()), interrupted=any(_open(one) for one in rows.values()))
    print(paragraph(here.facts, list(rows.values()), rehearsed=here.rehearsed))
    print(f"record: {pages.record}\npage: {pages.page}")
    return status_of(list(rows.values()))


def status_of(rows: Sequence[Row]) -> int:
    outcomes = [Outcome(one["outcome"]) for one in rows]
    if Outcome.DISPROVED in outcomes:
        return DISPROVED
    if not all(outcome.final for outcome in outcomes):
        return TO_GO_ON
    return ALL_PROVED if Outcome.PROVED in outcomes else NOTHING


def _open(one: Row) -> bool:
    return not Outcome(one["outcome"]).final


def _to_come(part: Part) -> Row:
    return row(part.name, part.proves, Outcome.UNFINISHED, "its turn has not come; the same command goes on")


def _tried(part: Part, here: Here, left_s: float) -> Row:
    """Run a part, unless something stands in its way."""
    why = part.obstacle(here)
    if why:
        return row(part.name, part.proves, Outcome.NOT_RUN, why)
    if left_s < _LEAST_S:
        return row(part.name, part.proves, Outcome.UNFINISHED, "no time was left for it; the same command goes on")
    return _run(part, here, min(left_s, part.deadline_s(here)))


def _run(part: Part, here: Here, limit_s: float) -> Row:
    folder = here.folder(part.name)
    folder.mkdir(parents=True, exist_ok=True)
    command, log = part.command(here, limit_s), folder / "log"
    print(f"gpu: {part.name}, stopped after {limit_s:.0f} s (output in {log})", file=sys.stderr, flush=True)
    before = log.stat().st_size if log.exists() else 0
    try:
        ended = child.run(command, log, limit_s)
    except OSError as error:
        return row(part.name, part.proves, Outcome.FAILED, f"its command cannot be started: {error}", command=command)
    outcome, why = outcome_of(ended, _last_words(log, before))
    counts, findings, record = found_by(part.kind, folder)
    if part.kind == "sanitized" and not ended.late:
        outcome, why = judged_by_sanitizer(outcome, why, log.read_text(encoding="utf-8", errors="replace")[before:])
    outcome, why = _doubted(part, outcome, why, counts, findings)
    found = row(
        part.name, part.proves, outcome, why, ended.seconds, command, f"{part.name}/{record}" if record else "", counts,
        findings,
    )  # fmt: skip
    if outcome.final:
        keep(folder, found)
    print(f"gpu: {part.name}: {outcome.value}{f': {why}' if why else ''}", file=sys.stderr, flush=True)
    return found


def _doubted(
    part: Part, outcome: Outcome, why: str, counts: dict[str, int], findings: Sequence[Row]
) -> tuple[Outcome, str]:
    """A proof needs evidence: nothing that ran proves nothing, and what is broken disproves."""
    broken = [one for one in findings if one["state"] == "broken"]
    if outcome is Outcome.DISPROVED and part.kind == "perf" and not broken:
        return Outcome.UNFINISHED, "its time was used up before a cell was measured; the same command goes on"
    if outcome is Outcome.DISPROVED or (outcome is Outcome.PROVED and broken):
        return Outcome.DISPROVED, _said_by(broken) or "its output says what"
    unsure = [one for one in findings if one["state"] == "open"]
    if outcome is Outcome.PROVED and unsure:
        return Outcome.OPEN, _said_by(unsure)
    evidence = sum(counts.get(state, 0) for state in ("passed", "held", "figure", "ok", "listed"))
    if outcome is Outcome.PROVED and part.kind != "said" and not evidence:
        missing = next((one["why"] for one in findings if one["why"]), "it left no result")
        return Outcome.NOT_RUN, str(missing)
    return outcome, why


def _said_by(findings: Sequence[Row]) -> str:
    return "; ".join(f"{one['what']}: {one['why']}" for one in findings[:3])


def _wiser(here: Here, part: Part, found: Row) -> Here:
    """What a part's result says for those that follow."""
    if part.name == "sharing":
        ways = [one["what"].rpartition(" ")[2] for one in found["findings"] if one["state"] == "held"]
        return replace(here, shared=ways[0] if ways else "")
    if part.name == "perf" and found["record"] and Outcome(found["outcome"]).final:
        return replace(here, measured=here.out / found["record"])
    return here


def _last_words(log: Path, start: int) -> str:
    """The last line that a command said in this run."""
    with log.open("rb") as file:
        file.seek(start)
        text = file.read().decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


__all__ = ["Asked", "Facts", "gpu", "status_of"]
