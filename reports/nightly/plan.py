"""What a nightly run is asked to do: the commands as templates, and how the time is divided."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from ..history import HistoryError

CONFORMANCE = "{python} -m conformance run --tier quick --jobs 2 --subject {subject} --select {select} --out {out}"
PERF = "{python} -m perf run --sweep nightly --world {world} --subject {subject} --budget {budget_s}s --out {out}"

_UNITS = {"s": 1, "m": 60, "h": 3600}
_FOR_CONFORMANCE = 0.5  # the most of the budget that the clauses may take
_FOR_FIRST = 0.5  # of what is left then, for measuring once; the rest is for measuring again
_LATE = 1.5  # a command that was given a budget is stopped when it has taken so many times as long


@dataclass(frozen=True)
class Asked:
    """One nightly run, checked."""

    history: Path
    out: Path
    machine: str
    budget_s: float
    subject: str
    world: int  # ranks, for what is measured
    conformance: str  # templates; empty: this part is not wanted
    perf: str

    def command(self, part: str, out: Path, budget_s: float, select: str = "*") -> list[str]:
        """The words of a part's command."""
        values = {
            "python": sys.executable, "out": str(out), "budget_s": f"{max(1, round(budget_s))}", "select": select,
            "subject": self.subject, "world": f"{self.world}",
        }  # fmt: skip
        template = self.conformance if part == "conformance" else self.perf
        return [word.format(**values) for word in shlex.split(template)]

    def limit_s(self, part: str, spent_s: float) -> float:
        """How long the first run of a part may take."""
        left = max(1.0, self.budget_s - spent_s)
        return left * (_FOR_CONFORMANCE if part == "conformance" else _FOR_FIRST)

    def stop_s(self, budget_s: float) -> float:
        """When a command with this budget is stopped: late enough for one that starts ranks on a busy machine."""
        return budget_s * _LATE + 60

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(part for part, template in (("conformance", self.conformance), ("perf", self.perf)) if template)


def seconds(text: str) -> float:
    """Seconds from ``90s``, ``30m``, ``1.5h``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if found is None or not float(found[1]):
        raise HistoryError(f"{text!r} is no budget: say, for example, 90s, 30m or 1.5h")
    return float(found[1]) * _UNITS[found[2]]


def checked(template: str, name: str) -> str:
    """A template that can be filled in."""
    if not template:
        return ""
    try:
        words = shlex.split(template)
        filled = [word.format(python="", out="\0", budget_s="", select="", subject="", world="") for word in words]
    except (KeyError, IndexError, ValueError) as error:
        known = "{python} {out} {budget_s} {select} {subject} {world}"
        raise HistoryError(f"the {name} command cannot be filled in ({error!r}); it may use {known}") from error
    if not any("\0" in word for word in filled):
        raise HistoryError(f"the {name} command does not say {{out}}: its record would not be found")
    return template
