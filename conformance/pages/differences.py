"""A comparison as text for a terminal, as Markdown, and as a page."""

from __future__ import annotations

from collections.abc import Iterator

from . import view
from .compare import Change, Comparison, Difference
from .markdown import code, table, text
from .record_book import Source
from .render import fill


def verdict(found: Comparison) -> str:
    """One sentence: what changed, counted in cases' groups."""
    counts = [f"{len(found.of(change))} {change}" for change in Change if found.of(change)]
    return f"{', '.join(counts) or 'nothing changed'}; {found.same} cases are as they were"


def lines(found: Comparison) -> Iterator[str]:
    """For a terminal."""
    yield f"A  {_named(found.first)}"
    yield f"B  {_named(found.second)}"
    for change in Change:
        mine = found.of(change)
        if mine:
            yield f"\n{str(change).capitalize()} ({len(mine)})"
        for each in mine:
            yield f"  {each.clause} · {each.subject} · {each.backend} · {each.worlds}: {_step(each)} · {_check(each)}"
            if each.witness:
                yield f"      {each.witness}"
            if each.again and change is Change.BROKEN:
                yield f"      again: {each.again}"
    yield f"\n{verdict(found)}"


def markdown(found: Comparison) -> str:
    """For a job's page."""
    said = [f"# Conformance compared: {text(verdict(found))}", ""]
    said += [f"- A: {text(_named(found.first))}", f"- B: {text(_named(found.second))}", ""]
    for change in Change:
        mine = found.of(change)
        if mine:
            said += [f"## {str(change).capitalize()} ({len(mine)})", "", *table(
                ["clause", "what is promised", "subject", "where", "before → after", "check", "seen"],
                ([f"**{text(e.clause)}**", text(e.title), text(e.subject), text(f"{e.backend}, {e.worlds}"),
                  text(_step(e)), text(_check(e)), text(e.witness)] for e in mine),
            ), ""]  # fmt: skip
        if change is Change.BROKEN:
            said += [f"- again: {code(each.again)}" for each in mine] + ([""] if mine else [])
    return "\n".join(said)


def page(found: Comparison) -> str:
    """A whole page."""
    groups = [(str(change), [(each, _step(each), _check(each)) for each in found.of(change)]) for change in Change]
    return fill(
        "compare.html.j2", verdict=verdict(found), groups=[group for group in groups if group[1]],
        records=[(letter, _named(each), view.facts(each)) for letter, each in zip("AB", _both(found), strict=True)],
    )  # fmt: skip


def _both(found: Comparison) -> tuple[Source, Source]:
    return found.first, found.second


def _step(each: Difference) -> str:
    return f"{each.before or 'not there'} → {each.after or 'not there'}"


def _check(each: Difference) -> str:
    return f"{each.check}[{each.scenario}]" if each.scenario else each.check


def _named(source: Source) -> str:
    header = source.header
    commit = f"commit {str(header['commit'])[:8]}" if header["commit"] else ""
    parts = [
        view.moment(str(header["time"])), str(header["machine"].get("host", "")),
        f"torch {header['versions'].get('torch', '')}", commit, str(source.path),
    ]  # fmt: skip
    return " · ".join(part for part in parts if part)
