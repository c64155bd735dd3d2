"""The record, the page and the paragraph of a run; made anew after every part."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..records import Writer, identity
from .parts import Here
from .results import KIND, Outcome, Row
from .summary import sentences_of

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Pages:
    """Where a run's files are."""

    record: Path
    page: Path
    paragraph: Path


def write(here: Here, rows: Sequence[Row], *, interrupted: bool) -> Pages:
    """Write all three; each replaces the one before when it is whole."""
    places = Pages(here.out / "gpu.jsonl", here.out / "index.html", here.out / "gpu.md")
    here.out.mkdir(parents=True, exist_ok=True)
    header = {**identity(KIND), "facts": asdict(here.facts), "rehearsed": here.rehearsed}
    with Writer(places.record, header) as writer:
        for one in rows:
            writer.write(one)
        writer.close(interrupted=interrupted)
    said = sentences_of(here.facts, rows, rehearsed=here.rehearsed)
    _put(places.paragraph, f"{' '.join(said)}\n")
    _put(places.page, _page(here, rows, said, str(header["commit"]), str(header["time"])))
    return places


def _put(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.part")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def _page(here: Here, rows: Sequence[Row], said: Sequence[str], commit: str, time: str) -> str:
    counts = {outcome: sum(one["outcome"] == outcome.value for one in rows) for outcome in Outcome}
    return _environment().get_template("gpu.html.j2").render(
        facts=here.facts, rows=rows, sentences=said, rehearsed=here.rehearsed, commit=commit, time=time,
        counts={outcome.value: count for outcome, count in counts.items() if count},
        timelines=[path.relative_to(here.out) for path in sorted(here.out.glob("trace/**/timeline.*"))
                   if path.suffix != ".png"],  # the same as the SVG
    )  # fmt: skip


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {"typed": _typed, "number": _number, "shown_as": _shown_as}
    made.filters["slug"] = lambda text: str(text).replace(" ", "-")
    return made


def _shown_as(outcome: str, rehearsed: bool) -> str:
    """A rehearsal proves nothing."""
    return {"proved": "worked", "disproved": "found something broken"}.get(outcome, outcome) if rehearsed else outcome


def _typed(command: Sequence[str]) -> str:
    """A command as one would type it."""
    words = list(command)
    return shlex.join(["python", *words[1:]] if words and "python" in Path(words[0]).name else words)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
