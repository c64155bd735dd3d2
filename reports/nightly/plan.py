"""What a nightly run is asked to do: the commands as templates, and how the time is divided."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ..history import HistoryError

CONFORMANCE = "{python} -m conformance run --tier quick --jobs 2 --subject {subject} --select {select} --out {out}"
PERF = (
    "{python} -m perf run --sweep nightly --world {world} --subject {subject} --budget {budget_s}s {only} "
    "--judged {judged} --out {out}"
)
SUBJECTS = "{python} -m conformance run --dry-run --subject {subject}"  # whether they can be had
_SUBJECTS_S = 300.0  # for that, on a busy machine
ONLY = "{only}"  # becomes --only SERIES for each series that is measured again; nothing where all are measured

_UNITS = {"s": 1, "m": 60, "h": 3600}
_FOR_FIRST = 0.6  # of the budget, for measuring everything once; the rest is for measuring again
_FOR_AGAIN = 0.3  # of the budget is left for that even where the first run has taken all of it
_FOR_BESIDE = 0.5  # of the budget on top, where earlier code is measured in turns: twice the work, and rarely asked for
_LATE = 1.5  # a command that was given a budget is stopped when it has taken so many times as long


@dataclass(frozen=True)
class Asked:
    """One nightly run, checked."""

    history: Path
    out: Path
    machine: str
    budget_s: float  # for measuring, repetitions included
    clauses_s: float  # a run of the clauses that takes longer is stopped: half of them would judge nothing
    subject: str
    world: int  # ranks, for what is measured
    conformance: str  # templates; empty: this part is not wanted
    perf: str

    def command(
        self, part: str, out: Path, budget_s: float, *, select: str = "*", only: Sequence[str] = ()
    ) -> list[str]:
        """The words of a part's command. ``select``: patterns of clauses; ``only``: series, by default all.

        What the cells rely on is judged before all are measured, and not once more before some are measured again.
        """
        values = {
            "python": sys.executable, "out": str(out), "budget_s": f"{max(1, round(budget_s))}", "select": select,
            "subject": self.subject, "world": f"{self.world}", "judged": "no" if only else "",
        }  # fmt: skip
        template = self.conformance if part == "conformance" else self.perf
        named = [word for series in only for word in ("--only", series)]
        words = [[word.format(**values)] if word != ONLY else named for word in shlex.split(template)]
        return list(chain.from_iterable(words))

    @property
    def first_s(self) -> float:
        """For measuring everything once."""
        return self.budget_s * _FOR_FIRST

    def left_s(self, measured_s: float, *, beside: bool = False) -> float:
        """For measuring again, alone or beside earlier code, after so much has been spent on measuring."""
        left = max(self.budget_s - measured_s, self.budget_s * _FOR_AGAIN)
        return left + self.budget_s * _FOR_BESIDE * beside

    def stop_s(self, part: str, budget_s: float) -> float:
        """When a part's command is stopped: late enough for one that starts ranks on a busy machine."""
        return self.clauses_s if part == "conformance" else budget_s * _LATE + 60

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(part for part, template in (("conformance", self.conformance), ("perf", self.perf)) if template)


def seconds(text: str) -> float:
    """Seconds from ``90s``, ``30m``, ``1.5h``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if found is None or not float(found[1]):
        raise HistoryError(f"{text!r} is no budget: say, for example, 90s, 30m or 1.5h")
    return float(found[1]) * _UNITS[found[2]]


def ensure_subjects(subject: str, templates: Sequence[str]) -> None:
    """HistoryError unless the suite can load the subjects; a command of somebody's own may take others."""
    if not {CONFORMANCE, PERF}.intersection(templates):
        return
    command = [word.format(python=sys.executable, subject=subject) for word in shlex.split(SUBJECTS)]
    try:
        asked = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SUBJECTS_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HistoryError(f"--subject {subject}: nobody could say whether it can be had: {error}") from error
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or [f"the suite ended with status {asked.returncode}"])[-1]
        raise HistoryError(f"--subject {subject}: {last.removeprefix('conformance: ')}")


def checked(template: str, name: str) -> str:
    """A template that can be filled in."""
    if not template:
        return ""
    try:
        words = shlex.split(template)
        values = {"python": "", "out": "\0", "budget_s": "", "select": "", "subject": "", "world": "", "judged": ""}
        filled = [word.format(**values) for word in words if word != ONLY]
    except (KeyError, IndexError, ValueError) as error:
        known = "{python} {out} {budget_s} {select} {subject} {world} {judged}, and {only} as a word of its own"
        raise HistoryError(f"the {name} command cannot be filled in ({error!r}); it may use {known}") from error
    if not any("\0" in word for word in filled):
        raise HistoryError(f"the {name} command does not say {{out}}: its record would not be found")
    return template
