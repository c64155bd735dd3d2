"""The report on a terminal: a matrix of clauses by subjects, what broke with its witness, and a line per subject."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..clauses import Catalogue
from ..results import BEHIND, Outcome, Result
from .judgement import Judgement, Standing

# what a cell shows for each outcome, and in which colour; a listed deviation has a sign of its own
_SIGNS = {
    Outcome.PASSED: ("ok", "green"),
    Outcome.FAILED: ("FAILED", "bold red"),
    Outcome.HUNG: ("HUNG", "bold red"),
    Outcome.CRASHED: ("CRASHED", "bold red"),
    Outcome.UNSUPPORTED: ("unsupported", "yellow"),
    Outcome.NOT_RUN: ("not run", "dim"),
    Outcome.SUITE_ERROR: ("SUITE ERROR", "bold yellow"),
}
_LISTED = ("deviation", "magenta")
_STYLES = {
    Standing.KEPT: "green", Standing.LISTED: "magenta", Standing.UNLISTED: "bold red",
    Standing.SUITE_ERROR: "bold yellow", Standing.UNSUPPORTED: "yellow", Standing.NOT_RUN: "dim",
}  # fmt: skip
_FALLEN = "[bold yellow]Suite errors: checks that fell over by themselves, which says nothing about a subject[/]"
DETAIL_LINES = 6  # behind a witness
GAP = 2  # blanks between columns
MIN_TITLE, MOST_CELL = 10, 36  # widths of columns


def render(judgement: Judgement, catalogue: Catalogue, width: int = 120, colour: bool = False) -> str:
    """The whole report as text."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=colour, no_color=not colour, highlight=False)
    write(console, judgement, catalogue)
    return out.getvalue()


def write(console: Console, judgement: Judgement, catalogue: Catalogue) -> None:
    """Print the whole report."""
    console.print(_matrix(judgement, catalogue, console.width))
    _witnesses(console, judgement, "[bold red]Broken, and not listed as a deviation[/]", judgement.unlisted)
    _witnesses(console, judgement, _FALLEN, judgement.fallen)
    _listed(console, judgement)
    _reasons(console, judgement)
    _stale(console, judgement)
    _summary(console, judgement, catalogue)


# --- the matrix -------------------------------------------------------------------------------------------------------


def _matrix(judgement: Judgement, catalogue: Catalogue, width: int) -> Table:
    rows = [_row(clause, judgement, catalogue) for clause in judgement.clauses]
    columns = len(judgement.subjects)
    widest = [max([len(row[column]) for row in rows], default=0) for column in range(3 + columns)]
    named = zip(judgement.subjects, widest[3:], strict=True)
    cells = [min(max(len(name), needed), MOST_CELL) for name, needed in named]
    ids, levels = max(widest[0], len("clause")), max(widest[1], len("level"))
    title = max(MIN_TITLE, width - ids - levels - sum(cells) - GAP * (columns + 2))
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    table.add_column("clause", no_wrap=True, min_width=ids)
    table.add_column("level", no_wrap=True, min_width=levels)
    table.add_column("what is promised"[:title], no_wrap=True, overflow="ellipsis", max_width=title)
    for subject, needed in zip(judgement.subjects, cells, strict=True):
        table.add_column(subject, min_width=needed, max_width=needed)
    for area, group in groupby(zip(judgement.clauses, rows, strict=True), key=lambda pair: _area(pair[0], catalogue)):
        table.add_row(Text(area, style="bold cyan"))
        for _, row in group:
            table.add_row(*row)
    return table


def _row(clause: str, judgement: Judgement, catalogue: Catalogue) -> list[Text]:
    about = catalogue.get(clause)
    texts = [Text(clause), Text(about.kind if about else ""), Text(about.title if about else "")]
    who = judgement.subjects
    cells = (_cell(judgement.of(clause, s), in_part=judgement.is_in_part(clause, s)) for s in who)
    return [*texts, *cells]


def _area(clause: str, catalogue: Catalogue) -> str:
    about = catalogue.get(clause)
    return f"Area {about.area}" if about else "Other"


def _cell(results: Sequence[Result], *, in_part: bool = False) -> Text:
    """Counts per outcome over checks and worlds: ``ok 7, deviation 2``; and whether scenarios were left out."""
    if not results:
        return Text("not run", style="dim")
    counts = Counter(_LISTED if result.listed else _SIGNS[result.outcome] for result in results)
    cell = Text(", ").join(Text(f"{sign} {count}", style=style) for (sign, style), count in counts.items())
    said = ["at its limit"] if any(result.at_limit for result in results) else []
    said += ["part"] if in_part else []
    return cell + Text(f" ({', '.join(said)})", style="dim") if said else cell


# --- what broke -------------------------------------------------------------------------------------------------------


def _witnesses(console: Console, judgement: Judgement, title: str, shown: Sequence[Result]) -> None:
    """Every break, or fall of a check, that nobody expected: what was seen, and the command that runs it again."""
    groups = _grouped(shown)
    if groups:
        console.print(f"\n{title}")
    for results in groups:
        console.print(Text(_headline(results), style="bold"), soft_wrap=True)
        for result in _first_of_each_witness(results):
            for line in _seen(result):
                console.print(Text(f"    {line}"), soft_wrap=True)
        console.print(Text(f"    again: {judgement.again(results)}", style="cyan"), soft_wrap=True)


def _grouped(results: Iterable[Result]) -> list[list[Result]]:
    """The results of one check, scenario and subject together, whatever the clause and world; by clause."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in sorted(results, key=lambda each: (each.clause, each.case.subject, each.case.world)):
        groups.setdefault((result.case.check, result.case.scenario, result.case.subject), []).append(result)
    return list(groups.values())


def _headline(results: Sequence[Result]) -> str:
    case = results[0].case
    scenario = f" · {case.scenario}" if case.scenario else ""
    ends = ", ".join(_unique(str(result.outcome) for result in results))
    where = f"{case.subject} · {case.backend} · {_worlds(results)}"
    return f"{', '.join(_unique(r.clause for r in results))} · {where}: {ends} · {case.check}{scenario}"


def _worlds(results: Sequence[Result]) -> str:
    worlds = [str(world) for world in sorted({result.case.world for result in results})]
    return f"world{'s' if len(worlds) > 1 else ''} {', '.join(worlds)}"


def _first_of_each_witness(results: Sequence[Result]) -> list[Result]:
    """One clause's worth of each case; the same words are not said twice."""
    seen: dict[str, Result] = {}
    for result in results:
        seen.setdefault(result.witness, result)
    return list(seen.values())


def _seen(result: Result) -> list[str]:
    """The witness, and the first lines behind it that say more."""
    lines = [line for line in result.detail.partition("\n  Full diff:")[0].splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(BEHIND)]
    more = [f"  {line}" for line in lines if line.strip() not in result.witness]
    return [f"world {result.case.world}: {result.witness}", *more[:DETAIL_LINES]]


# --- the rest ---------------------------------------------------------------------------------------------------------


def _listed(console: Console, judgement: Judgement) -> None:
    if judgement.listed:
        console.print("\n[bold magenta]Listed deviations that showed[/]")
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in sorted(judgement.listed, key=lambda each: each.clause):
        groups.setdefault((result.case.subject, result.deviation), []).append(result)
    for (subject, reason), results in groups.items():
        ends = ", ".join(_unique(str(result.outcome) for result in results))
        clauses = _few(_unique(result.clause for result in results))
        console.print(Text(f"{clauses} · {subject}, {_worlds(results)}: {ends}: {reason}"), soft_wrap=True)


def _reasons(console: Console, judgement: Judgement) -> None:
    """Why there is no answer, and which weaknesses were shown: each reason once, with its clauses."""
    _by_reason(console, "Unsupported", judgement.results, Outcome.UNSUPPORTED)
    _by_reason(console, "Not run", judgement.results, Outcome.NOT_RUN)
    _no_case(console, judgement)
    notes = [(note, result) for result in judgement.results for note in result.notes]
    _by_text(console, "Kept at a documented limit", notes)


def _no_case(console: Console, judgement: Judgement) -> None:
    """Clauses for which there was nothing to run at the worlds and on the backend that were asked for."""
    met = {result.clause for result in judgement.results}
    unmet = [clause for clause in judgement.clauses if clause not in met]
    if unmet and not judgement.interrupted:
        console.print(Text(f"\nNo check runs here: {_few(unmet)}"), soft_wrap=True)


def _by_reason(console: Console, title: str, results: Sequence[Result], outcome: Outcome) -> None:
    _by_text(console, title, [(result.witness, result) for result in results if result.outcome is outcome])


def _by_text(console: Console, title: str, said: Sequence[tuple[str, Result]]) -> None:
    clauses: dict[tuple[str, str], list[str]] = {}
    for text, result in said:
        clauses.setdefault((result.case.subject, text), []).append(result.clause)
    if clauses:
        console.print(f"\n[bold]{title}[/]")
    for (subject, text), ids in clauses.items():
        console.print(Text(f"{subject}: {text} ({_few(_unique(ids))})"), soft_wrap=True)


def _stale(console: Console, judgement: Judgement) -> None:
    if judgement.stale:
        console.print("\n[bold red]Stale deviations: the list says what no longer is[/]")
    for sentence in judgement.stale:
        console.print(Text(sentence), soft_wrap=True)


def _summary(console: Console, judgement: Judgement, catalogue: Catalogue) -> None:
    console.print()
    if judgement.extent:
        console.print(judgement.extent)
    for subject in judgement.subjects:
        counts = Counter(judgement.standings(subject).values())
        shown = [each for each in Standing if counts[each] or each is not Standing.SUITE_ERROR]
        parts = [Text(f"{counts[each]} {each}", style=_STYLES[each] if counts[each] else "") for each in shown]
        limit = judgement.at_limit(subject)
        if limit:
            parts[0] += Text(f" ({limit} at a limit)")
        in_part = len(judgement.part.get(subject, ()))
        if in_part:
            parts.append(Text(f"{in_part} of these in part: the full tier runs all scenarios", style="dim"))
        total = sum(counts.values())
        head = f"{subject}: {total} clause{'' if total == 1 else 's'}: "
        console.print(Text(head, style="bold") + Text(", ").join(parts))
    undecidable = [clause.id for clause in catalogue if not clause.testable]
    if undecidable and {clause.id for clause in catalogue} <= {*judgement.clauses, *undecidable}:
        console.print(
            f"The catalogue has {len(list(catalogue))} clauses. No run can decide {' and '.join(undecidable)}: "
            "`make clauses` says why."
        )
    if not judgement.decided and not judgement.interrupted:
        console.print(
            "[bold red]Nothing was decided:[/] every case is unsupported or not run, for the reasons above, and no "
            "answer is no success. Ask where the checks can run: other worlds, another backend or machine."
        )
    if judgement.interrupted:
        console.print("[bold red]Interrupted: what was finished before is recorded.[/]")


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _few(ids: Sequence[str], most: int = 8) -> str:
    return ", ".join(ids) if len(ids) <= most else f"{', '.join(ids[:most])} and {len(ids) - most} more"
