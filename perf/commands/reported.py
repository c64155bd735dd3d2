"""The table that a sweep asks for, printed where its run ends."""

from __future__ import annotations

import os
from pathlib import Path

from ..analyse.growth.costs import series
from ..analyse.table import wide_console
from ..analyse.targets.evidence import gathered
from ..analyse.targets.printing import as_text, judged
from .laws import show
from .table import of_perf


def reported(which: str, path: Path) -> None:
    """``targets`` or ``laws``, from the record that has just been closed."""
    records = of_perf([str(path)])
    console = wide_console()
    if which == "laws":
        show(records, series(records))
    elif (evidence := gathered(records)).made.subjects:
        console.print(as_text(judged(evidence), evidence.ours, evidence.theirs), soft_wrap=True)
    command = {"targets": "table"}.get(which, which)
    console.print(f"again: python -m perf {command} {os.path.relpath(path)}\n", markup=False, soft_wrap=True)
