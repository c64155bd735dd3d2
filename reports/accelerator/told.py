"""One paragraph that says what is proved on these GPUs, and what is not."""

from __future__ import annotations

from collections.abc import Sequence

from .facts import Facts
from .results import Outcome, Row

_REHEARSED = "This was a rehearsal on the CPU: it shows that the commands work, and proves nothing of a GPU."
_MOST_FIGURES = 6
_FIGURES = ("step", "host time", "launches", "synchronisations")


def paragraph(facts: Facts, rows: Sequence[Row], *, rehearsed: bool) -> str:
    """Which machine, what is proved, what is not so, what nobody knows, and the figures that matter most."""
    sentences = [_REHEARSED] if rehearsed else []
    sentences.append(f"On {facts.named} with torch {facts.torch}{_libraries(facts)}:")
    sentences += _listed("Proved", rows, Outcome.PROVED)
    sentences += _listed("Not so", rows, Outcome.DISPROVED, reasons=True)
    sentences += _listed("Not run", rows, Outcome.NOT_RUN, reasons=True)
    sentences += _listed("Failed on the way", rows, Outcome.FAILED, reasons=True)
    sentences += _listed("Not finished; the same command goes on", rows, Outcome.UNFINISHED)
    return " ".join([*sentences, *_figures(rows)])


def _libraries(facts: Facts) -> str:
    return "".join(f", {name} {version}" for name, version in (("CUDA", facts.cuda), ("NCCL", facts.nccl)) if version)


def _listed(word: str, rows: Sequence[Row], outcome: Outcome, *, reasons: bool = False) -> list[str]:
    mine = [one for one in rows if one["outcome"] == outcome.value]
    told = [one["proves"] + (f" ({one['why']})" if reasons else _number(one)) for one in mine]
    return [f"{word}: {'; '.join(told)}."] if told else []


def _number(one: Row) -> str:
    """How many cases that stands on."""
    cases = one["counts"].get("passed", 0)
    return f" ({cases} cases)" if cases else ""


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
