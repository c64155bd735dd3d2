"""How one subject stands on several releases of torch: what each repaired or broke, since when and until when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from packaging.version import Version

from ..engine.judgement import Standing
from ..pages.record_book import Source
from ..results import BROKEN, Outcome

KEPT, BAD = str(Standing.KEPT), "broken"


@dataclass(frozen=True)
class Answer:
    """What a release of torch shows: a word for each clause, and for each check of it whether it was broken."""

    release: str
    clauses: Mapping[str, str]
    checks: Mapping[tuple[str, str, str], bool]  # by clause, check, scenario; those that passed or broke


@dataclass(frozen=True)
class Change:
    """What became of a clause in a release: of all of it, or of some of its checks."""

    clause: str
    release: str
    what: str  # "repaired", "repaired in part", "broke", "broke in part"
    checks: tuple[str, ...]


def answer(source: Source, words: Mapping[str, str]) -> Answer:
    """The answer in a record; ``words`` are how the board calls its standings."""
    checks: dict[tuple[str, str, str], bool] = {}
    for each in source.results:
        if each.outcome in BROKEN or each.outcome is Outcome.PASSED:
            key = (each.clause, each.case.check, each.case.scenario)
            checks[key] = checks.get(key, False) or each.outcome in BROKEN
    return Answer(Version(str(source.header["versions"]["torch"])).public, dict(words), checks)


def changes(answers: Sequence[Answer]) -> list[Change]:
    """What each release changed against the one before it, in the order of releases."""
    order = _in_order(answers)
    return [
        change
        for before, after in pairwise(order)
        for clause in after.clauses
        if (change := _change(clause, before, after)) is not None
    ]


def _change(clause: str, before: Answer, after: Answer) -> Change | None:
    ways = {(KEPT, BAD): "broke", (BAD, KEPT): "repaired"}
    turned = {
        broken: tuple(sorted({
            key[1] for key, now in after.checks.items()
            if key[0] == clause and now is broken and before.checks.get(key, now) is not now
        }))
        for broken in (True, False)
    }  # fmt: skip
    what = ways.get((before.clauses.get(clause, ""), after.clauses[clause]), "")
    if what and turned[what == "broke"]:  # else a check decided it that the other release has not been asked
        return Change(clause, after.release, what, turned[what == "broke"])
    if before.clauses.get(clause) == after.clauses[clause] == BAD:
        for broken, part in ((False, "repaired in part"), (True, "broke in part")):
            if turned[broken] and not turned[not broken]:
                return Change(clause, after.release, part, turned[broken])
    return None


def spans(clause: str, answers: Sequence[Answer]) -> str:
    """Since when and until when a clause is broken: "2.13 to 2.15 and on", "2.11 alone", "all"; empty if never."""
    order = _in_order(answers)
    broken = [each.clauses.get(clause) == BAD for each in order]
    if all(broken):
        return "all"
    runs: list[list[int]] = []
    for place, bad in enumerate(broken):
        if bad and runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        elif bad:
            runs.append([place])
    return ", ".join(_span([order[place].release for place in run], run[-1] == len(order) - 1) for run in runs)


def _span(releases: Sequence[str], open_: bool) -> str:
    if open_:
        return f"since {releases[0]}"
    return f"{releases[0]} alone" if len(releases) == 1 else f"{releases[0]} until {releases[-1]}"


def table(answers: Sequence[Answer]) -> dict[str, Any]:
    """All that a page shows: releases, a row for each clause that some release does not keep, and what changed."""
    order = _in_order(answers)
    clauses = dict.fromkeys(clause for each in order for clause in each.clauses)
    rows = [
        {"clause": clause, "answers": [each.clauses.get(clause, "") for each in order], "broken": spans(clause, order)}
        for clause in clauses
        if any(each.clauses.get(clause, KEPT) != KEPT for each in order)
    ]
    made = [
        {"clause": each.clause, "release": each.release, "what": each.what, "checks": list(each.checks)}
        for each in changes(order)
    ]
    counts = [{word: list(each.clauses.values()).count(word) for word in (KEPT, BAD)} for each in order]
    return {"releases": [each.release for each in order], "counts": counts, "rows": rows, "changes": made}


def markdown(name: str, shown: Mapping[str, Any]) -> list[str]:
    """The same for a document: the changes, then the clauses that are not the same on all releases."""
    heads = shown["releases"]
    lines = [f"## {name}", "", "| release | change | clauses |", "|---|---|---|"]
    for release in heads[1:]:
        for what in ("repaired", "repaired in part", "broke", "broke in part"):
            found = [each["clause"] for each in shown["changes"] if (each["release"], each["what"]) == (release, what)]
            lines += [f"| {release} | {what} | {', '.join(found)} |"] if found else []
    lines += ["", f"| clause | {' | '.join(heads)} | broken |", "|---|" + "---|" * (len(heads) + 1)]
    for row in shown["rows"]:
        words = [word or "–" for word in row["answers"]]
        if len(set(words)) > 1:
            lines.append(f"| {row['clause']} | {' | '.join(words)} | {row['broken']} |")
    return [*lines, ""]


def _in_order(answers: Iterable[Answer]) -> list[Answer]:
    return sorted(answers, key=lambda each: Version(each.release))
