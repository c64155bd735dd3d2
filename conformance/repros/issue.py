"""The text to file upstream: what is documented, what happens, the smallest case, and where it was seen."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import version

from ..clauses import Clause
from ..deviations import Deviation
from .search import Found

_ASKED = (
    "Your library does the same work under names of its own. If its documents say that it does not promise this, "
    "name the place: it is then listed as by design, and not as a fault."
)


def text(
    title: str, clause: Clause, deviations: Sequence[Deviation], found: Found, needs: Sequence[str] = ()
) -> str:
    """An issue in Markdown; ``found`` holds the script and what it printed, ``needs`` the releases beside torch."""
    parts = {
        "What torch documents" if needs else "What is documented": _documented(clause, found.shown.output),
        **({"Why it is asked of you": [_ASKED]} if needs else {}),
        "What happens": _happens(deviations, found.shown.output),
        "Smallest case": _case(found),
        "Versions": _versions(clause, deviations, needs),
        "Known as": _known(deviations),
    }
    sections = [f"## {name}\n\n" + "\n".join(lines) for name, lines in parts.items()]
    return "\n\n".join([f"# {title.rstrip('.')}", *sections]) + "\n"


def _documented(clause: Clause, output: str) -> Iterator[str]:
    promise = output.splitlines()[0].partition(": ")[2]
    yield f"{promise[:1].upper()}{promise[1:]}."
    yield ""
    yield f"- Where: {clause.source}"
    if clause.anchor:
        yield f"- In the documentation of `{clause.anchor_in}`: “{clause.anchor}”"
    yield f"- In full, as clause {clause.id} ({clause.level}, {clause.title}): {clause.statement}"


def _happens(deviations: Sequence[Deviation], output: str) -> Iterator[str]:
    for reason in dict.fromkeys(deviation.reason for deviation in deviations):
        said = reason.removeprefix("fault: ")
        yield f"{said[:1].upper()}{said[1:]}."
    yield from ["", "The script below prints:", "", "```", output.rstrip(), "```"]


def _case(found: Found) -> Iterator[str]:
    if found.inputs is not None:
        ranks = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(found.inputs))
        tried = ", ".join(map(str, found.without)) or "there is none"
        yield f"Inputs of each rank: {ranks}. Smaller schedules, which do not show it: {tried}."
        yield ""
    yield "Run it with plain `python`; it starts its ranks itself."
    yield from ["", "```python", found.shown.text.rstrip(), "```"]


def _versions(clause: Clause, deviations: Sequence[Deviation], needs: Sequence[str]) -> Iterator[str]:
    seen = [*needs, f"torch {version('torch')}", f"Python {platform.python_version()}", platform.platform(), "Gloo"]
    yield f"- Seen with: {', '.join(seen)}"
    conditions = ", ".join(dict.fromkeys(deviation.torch for deviation in deviations if deviation.torch))
    if conditions:
        yield f"- Expected, by our list, with torch {conditions}; versions before that were not tried"
    if clause.since:
        yield f"- Documented since torch {clause.since}"


def _known(deviations: Sequence[Deviation]) -> Iterator[str]:
    links = list(dict.fromkeys(deviation.link for deviation in deviations if deviation.link))
    yield from links or ["No issue about it is known to us."]
