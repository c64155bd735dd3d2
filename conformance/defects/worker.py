"""A process that trials one defect after the other: ids on its standard input, one JSON line for each on its output.

``python -m conformance.defects.worker DEFECTS CHECKS`` (two folders). It ends when its input closes, in the middle of a
trial too, and its ranks with it.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from ..engine import inventory
from ..ranks import Cluster
from ..ranks.fork_server_client import PRELOAD
from ..workers import asked
from . import catalogue, planted
from .catalogue import Defect
from .trial import Library, trial
from .trial_result import TrialResult


def main(defects: str, checks: str) -> None:
    """Serve until the input closes."""
    questions, say = asked()
    os.environ[planted.FOLDER] = defects
    known = {defect.id: defect for defect in catalogue.load(Path(defects))}
    library = Library.read(Path(checks))
    with Cluster("gloo", preload=_modules(Path(checks))) as cluster:
        for name in PRELOAD:  # while the ranks' own process loads the same
            importlib.import_module(name)
        for question in questions:
            defect = known[question]
            trouble = _trouble(defect)
            trial_result = TrialResult(defect.id, (), 0.0, trouble) if trouble else trial(defect, library, cluster)
            planted.clear()
            say(trial_result.row())


def _modules(checks: Path) -> list[str]:
    if checks != inventory.CHECKS:
        return []
    return [f"conformance.checks.{path.stem}" for path in sorted(checks.glob("test_*.py"))]


def _trouble(defect: Defect) -> str:
    """Why the defect cannot be planted; empty if it can."""
    try:
        planted.subject(defect.attribute)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        planted.clear()
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
