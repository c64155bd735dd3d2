"""The table of targets on a terminal and as Markdown: a row for each line, its figures below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from ..intervals import Interval
from ..signs import correlation
from .evidence import Evidence, Part, corrected
from .lines import LINES, Line
from .verdicts import CANNOT_TELL, MISSED, NOT_MEASURED, REACHED, worst

_COLOURS = {REACHED: "green", MISSED: "red", CANNOT_TELL: "yellow", NOT_MEASURED: "dim"}
_HEADINGS = ("what", "target", "median ratio of rounds, 95 %", "lag 1", "theirs", "noise", "which is")
_NOTE = (
    "Ratios are {} / {}. Intervals by order statistics, wider where rounds take after each other (lag 1: their "
    "correlation, from 12 rounds on). Verdicts are corrected for how many they are (Benjamini and Hochberg)."
)


@dataclass(frozen=True)
class Judged:
    """A line with its figures."""

    line: Line
    parts: list[Part]

    @property
    def verdict(self) -> str:
        return worst([part.verdict for part in self.parts])

    @property
    def counted(self) -> str:
        """What the line comes to, and how many figures say what where they differ."""
        if self.reasons:
            return f"{self.verdict}: {'; '.join(self.reasons)}"
        counts = Counter(part.verdict for part in self.parts)
        if len(counts) < 2:
            return self.verdict
        return f"{self.verdict} ({', '.join(f'{counts[each]} {each}' for each in _COLOURS if counts[each])})"

    @property
    def reasons(self) -> list[str]:
        """Why no figure at all was measured; empty if any was."""
        missing = all(part.found is None for part in self.parts)
        return list(dict.fromkeys(part.why for part in self.parts)) if missing else []

    @property
    def rows(self) -> list[tuple[Part, tuple[str, ...]]]:
        """The figures as words; none where the line says it all."""
        return [] if self.reasons else [(part, _cells(part)) for part in self.parts]

    @property
    def span(self) -> str:
        """From the least to the largest figure, where they are ratios."""
        points = [part.found.point for part in self.parts if part.found and not part.target.unit]
        if not points:
            return ""
        low, high = (_digits(end) for end in (min(points), max(points)))
        return low if low == high else f"{low} to {high}"


def judged(evidence: Evidence) -> list[Judged]:
    """All lines; their verdicts are told together."""
    parts = [list(line.parts(evidence)) for line in LINES]
    every = iter(corrected([part for mine in parts for part in mine]))
    return [Judged(line, [next(every) for _ in mine]) for line, mine in zip(LINES, parts, strict=True)]


def as_text(lines: list[Judged], ours: str, theirs: str) -> Text:
    """For a terminal: the figures in columns that all lines share."""
    rows = [(f"  {name}", *words) for line in lines for _, (name, *words, _) in line.rows]
    widths = [max([len(heading), *(len(row[at]) for row in rows)]) for at, heading in enumerate(_HEADINGS[:-1])]
    text = Text(f"{_columns(_HEADINGS[:-1], widths)}  {_HEADINGS[-1]}\n", style="dim")
    text.append(f"{_NOTE.format(ours, theirs)}\n")
    for line in lines:
        text.append(f"{line.line.what}: {line.line.target}", style="bold")
        text.append(f"  {line.counted}\n", style=f"bold {_COLOURS[line.verdict]}")
        for part, (name, *words, said) in line.rows:
            text.append(f"{_columns((f'  {name}', *words), widths)}  ")
            text.append(f"{said}\n", style=_COLOURS[part.verdict])
    return text


def _columns(words: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{word:<{width}}" for word, width in zip(words, widths, strict=True))


def as_markdown(lines: list[Judged], ours: str, theirs: str) -> str:
    """The same; a figure that was not measured keeps its row, with the reason."""
    rows = [f"| {' | '.join(_HEADINGS)} |", f"|{' --- |' * len(_HEADINGS)}"]
    for line in lines:
        words = (f"**{line.line.what}**", line.line.target, line.span, "", "", "", f"**{line.counted}**")
        rows.append(f"| {' | '.join(words)} |")
        rows += [f"| {' | '.join(words)} |" for _, words in line.rows]
    return "\n".join([_NOTE.format(ours, theirs), "", *rows, ""])


def _cells(part: Part) -> tuple[str, ...]:
    said = part.verdict if part.found is not None else f"{part.verdict}: {part.why}"
    noise = "" if part.noise is None else f"±{100 * part.noise:.0f} %"
    lag = correlation(part.found.sample) if part.found is not None else ""
    return part.name, str(part.target), _figure(part), lag, part.beside, noise, said


def _figure(part: Part) -> str:
    found = part.found
    if found is None:
        return ""
    unit = f" {part.target.unit}" if part.target.unit else ""
    if not found.known:
        why = "rounds too much alike" if found.sample.correlation > 0 else "too few rounds"
        return f"{_digits(found.point)}{unit} ({why})"
    if found.low == found.high:
        return f"{_digits(found.point)}{unit}"
    return f"{_digits(found.point)}{unit} {_ends(found)}"


def _ends(found: Interval) -> str:
    return f"[{_digits(found.low)}, {_digits(found.high)}]"


def _digits(value: float) -> str:
    """Two decimals, more for what is small, none for what is large."""
    if abs(value) == float("inf"):
        return "∞" if value > 0 else "−∞"
    return f"{value:.3f}" if abs(value) < 0.095 else f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
