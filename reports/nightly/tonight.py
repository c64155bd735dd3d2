"""One night while it is going on: what is asked, what was done so far, and how its commands are run."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..records.writer import PART
from . import child
from .plan import Asked


@dataclass
class Tonight:
    """What one run has done so far."""

    asked: Asked
    work: Path  # logs, and records until they are in the history; emptied by nobody but the user
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    measured_s: float = 0.0  # spent on measuring so far: what the budget is for


def run(
    tonight: Tonight, part: str, budget_s: float, out: Path, *,
    select: str = "*", only: Sequence[str] = (), code: Path | None = None,
) -> tuple[int, str]:  # fmt: skip
    """Run a part's command, with the code in ``code``; its exit status, and why it is not whole (empty if it is)."""
    command = tonight.asked.command(part, out, budget_s, select=select, only=only)
    limit_s = tonight.asked.stop_s(part, budget_s)
    log = tonight.work / f"{out.name}.log"
    about = f", about {budget_s:.0f} s" if part == "perf" else ""
    print(f"nightly: running {out.name}{about}; its output goes to {log}", file=sys.stderr, flush=True)
    try:
        ended = child.run(command, log, limit_s, code)
    except OSError as error:
        return 127, f"its command cannot be started: {error}"
    if part == "perf":
        tonight.measured_s += ended.seconds
    if ended.late:
        return ended.status, f"stopped after {ended.seconds:.0f} s, which is all that it was given"
    # 0 and 1 are verdicts; anything else is a run that did not get to its end
    why = "" if ended.status in (0, 1) else f"ended with status {ended.status}: {_last_words(log)}"
    return ended.status, why


def _last_words(log: Path) -> str:
    """The last line that a command said."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def collect(tonight: Tonight, part: str, out: Path) -> Path | None:
    """Find a part's record, whole or not, for the history."""
    found = [path for path in sorted(out.glob("*.jsonl")) + sorted(out.glob(f"*.jsonl{PART}")) if _is_of(part, path)]
    if found:
        tonight.files[f"{out.name}.jsonl"] = found[0]
    return found[0] if found else None


def _is_of(part: str, path: Path) -> bool:
    """Whether a file is a record of this part, by its first line: commands name their files as they like."""
    try:
        with path.open(encoding="utf-8") as file:
            header = json.loads(file.readline())
    except (OSError, ValueError):
        return False
    return isinstance(header, dict) and header.get("line") == "header" and header.get("of") == part
