"""A process that trials one defect after the other: ids on its standard input, one JSON line for each on its output.

``python -m conformance.defects.worker DEFECTS CHECKS`` (two folders). It ends when its input closes, in the middle of a
trial too, and its ranks with it.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
from pathlib import Path

from ..engine import inventory
from ..ranks import Cluster
from ..ranks.fork_server_client import PRELOAD
from . import catalogue, planted
from .catalogue import Defect
from .trial import Library, trial
from .trial_result import TrialResult


def main(defects: str, checks: str) -> None:
    """Serve until the input closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever pytest or a check prints must not get among the answers
    os.environ[planted.FOLDER] = defects
    asked = _asked()
    known = {defect.id: defect for defect in catalogue.load(Path(defects))}
    library = Library.read(Path(checks))
    with Cluster("gloo", preload=_modules(Path(checks))) as cluster:
        for name in PRELOAD:  # while the ranks' own process loads the same
            importlib.import_module(name)
        while (name := asked.get()) is not None:
            defect = known[name]
            trouble = _trouble(defect)
            trial_result = TrialResult(defect.id, (), 0.0, trouble) if trouble else trial(defect, library, cluster)
            planted.clear()
            print(json.dumps(trial_result.row()), file=answers, flush=True)


def _asked() -> queue.SimpleQueue[str | None]:
    """What is asked on the input. Its end ends this process, whatever it is doing."""
    asked: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            asked.put(line.strip())
        os._exit(0)  # the ranks' own process sees its socket close, and ends them

    threading.Thread(target=listen, daemon=True).start()
    return asked


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
