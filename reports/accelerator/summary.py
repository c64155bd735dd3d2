"""One paragraph that says what is proved on these GPUs, and what is not."""

from __future__ import annotations

from collections.abc import Sequence

from .facts import Facts
from .results import Outcome, Row

_REHEARSED = "This was a rehearsal on the CPU: it shows that the commands work, and proves nothing of a GPU."
_MOST_FIGURES = 6
_LONGEST_REASON = 120  # characters of why something could not be asked
_FIGURES = ("step", "host time", "launches", "synchronisations")


def paragraph(facts: Facts, rows: Sequence[Row], *, rehearsed: bool) -> str:
    return " ".join(sentences_of(facts, rows, rehearsed=rehearsed))


def sentences_of(facts: Facts, rows: Sequence[Row], *, rehearsed: bool) -> list[str]:
    """Which machine, what is proved, what is not so, what nobody knows, and the figures that matter most."""
    if rehearsed:
        return _rehearsal(facts, rows)
    sentences = [f"On {facts.named} with torch {facts.torch}{_libraries(facts)}:"]
    sentences += _listed("Proved", rows, Outcome.PROVED)
    sentences += _listed("Not so", rows, Outcome.DISPROVED, reasons=True)
    sentences += _listed("Cannot be told from what was measured", rows, Outcome.OPEN, reasons=True)
    sentences += _listed("Not run", rows, Outcome.NOT_RUN, reasons=True)
    sentences += _listed("Failed on the way", rows, Outcome.FAILED, reasons=True)
    sentences += _listed("Not finished; the same command goes on", rows, Outcome.UNFINISHED)
    return [*sentences, *_figures(rows)]


def _rehearsal(facts: Facts, rows: Sequence[Row]) -> list[str]:
    """Which parts' commands worked; what they would prove on a GPU has no place here."""
    named = [{**one, "proves": one["part"]} for one in rows]
    sentences = [_REHEARSED, f"With torch {facts.torch}:"]
    sentences += _listed("Worked", named, Outcome.PROVED)
    for word, outcome in (
        ("Found something broken", Outcome.DISPROVED), ("Could not tell", Outcome.OPEN),
        ("Could not be rehearsed", Outcome.NOT_RUN), ("Failed on the way", Outcome.FAILED),
        ("Not finished; the same command goes on", Outcome.UNFINISHED),
    ):  # fmt: skip
        sentences += _listed(word, named, outcome, reasons=True)
    return sentences


def _libraries(facts: Facts) -> str:
    return "".join(f", {name} {version}" for name, version in (("CUDA", facts.cuda), ("NCCL", facts.nccl)) if version)


def _listed(word: str, rows: Sequence[Row], outcome: Outcome, *, reasons: bool = False) -> list[str]:
    mine = [one for one in rows if one["outcome"] == outcome.value]
    shown = [one["proves"] + (f" ({one['why']})" if reasons else _extent(one)) for one in mine]
    return [f"{word}: {'; '.join(shown)}."] if shown else []


def _extent(one: Row) -> str:
    """How many cases that stands on, and what of it could not be asked here."""
    counted = [("passed", "cases"), ("skipped", "skipped"), ("not run", "not run")]
    cases = "passed" in one["counts"]
    words = [f"{one['counts'][state]} {word}" for state, word in counted if cases and one["counts"].get(state)]
    missing: dict[str, list[str]] = {}
    for each in one["findings"]:
        if each["state"] == "not run":
            missing.setdefault(each["why"][:_LONGEST_REASON], []).append(each["what"])
    words += [f"left out, because {why}: {'; '.join(whats)}" for why, whats in missing.items()]
    return f" ({', '.join(words)})" if words else ""


def _figures(rows: Sequence[Row]) -> list[str]:
    """Ours over torch's, for what the first record of perf holds."""
    found = [
        f"{one['what']} {one['value'] / one['theirs']:.2f}"
        for row in rows
        if row["part"] == "perf"
        for one in row["findings"]
        if one["state"] == "figure" and one["theirs"] and one["what"].rpartition(": ")[2] in _FIGURES
    ]
    return [f"Ours over torch's: {', '.join(found[:_MOST_FIGURES])}."] if found else []
