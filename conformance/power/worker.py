"""A process that maps and trials: a question of JSON on each line of its input, an answer on each of its output.

``python -m conformance.power.worker CHECKS FOLDER``. Questions: ``{"list": true}`` (which cases there are),
``{"map": case}`` (which marks it makes on the sound implementation) and
``{"mutant": id, "file": …, "mutated": text, "cases": [in this order]}``. It ends when its input closes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..engine import inventory
from ..ranks import Cluster
from ..ranks.fork_server_client import PRELOAD
from ..workers import Row, asked
from . import altered, marks
from .cases import Cases
from .drawing import read

CASE_LIMIT_S = 240.0  # for one case, in this process too: its ranks have deadlines of their own
_LOAD = "conformance.power.altered:load_file"


class Worker:
    """One base cluster with the sound implementation; of it are forked the ones with a changed one."""

    def __init__(self, checks: Path, folder: Path, base: Cluster, say: Callable[[Row], None]) -> None:
        self._cases = Cases.collect(checks)
        self._folder, self._base, self._say = folder, base, say
        self._loaded: Any = None  # what this process holds: None (sound), "marks" or a mutant
        self._marked: tuple[Cluster, marks.Map] | None = None
        self._by_loading: set[int] = set()  # the marks that loading makes, and so every case

    def answer(self, question: Row) -> Row:
        if "list" in question:
            return {"cases": self._cases.names}
        if "map" in question:
            return self._map(question["map"])
        return self._trial(question["mutant"], question["file"], question["mutated"], question["cases"])

    # --- mapping ---

    def _map(self, case: str) -> Row:
        cluster, taken = self._marked or self._begin_to_mark(case)
        taken.taken()
        ended = self._cases.run(case, cluster)
        row = {"case": case, "outcome": str(ended.verdict.outcome), "witness": ended.verdict.witness}
        return {**row, "seconds": round(ended.seconds, 3), "marked": sorted({*taken.taken(), *self._by_loading})}

    def _begin_to_mark(self, case: str) -> tuple[Cluster, marks.Map]:
        sources = read()
        place, size = self._folder / "marks", len(marks.places(sources))
        taken = marks.Map(place, size, new=True)
        plan = {"sources": marks.marked(sources), "marks": [str(place), size]}
        cluster = self._altered(plan, "marks")
        self._by_loading = set(taken.taken())
        self._cases.run(case, cluster)  # what its ranks' own loading executes is marked before the first run has ended
        self._marked = cluster, taken
        return self._marked

    # --- trialling ---

    def _trial(self, mutant: str, file: str, mutated: str, cases: list[str]) -> Row:
        row: Row = {"mutant": mutant, "killed": False, "tried": 0, "seconds": 0.0, "unsteady": []}
        try:
            cluster = self._altered({"sources": {file: mutated}}, mutant)
        except altered.Stillborn as error:
            return {**row, "stillborn": str(error)}
        with cluster:
            for case in cases:
                row["tried"] += 1
                lost = {"killed": True, "by": case, "outcome": "hung", "witness": "never came back"}
                with self._guarded({**row, **lost}):
                    ended = self._cases.run(case, cluster)
                row["seconds"] = round(row["seconds"] + ended.seconds, 3)
                if ended.kills and self._is_steady(case):
                    found = {"by": case, "outcome": str(ended.verdict.outcome), "witness": ended.verdict.witness}
                    return {**row, "killed": True, **found}
                if ended.kills:
                    row["unsteady"].append(case)
                    self._load({"sources": {file: mutated}}, mutant)
        return row

    def _is_steady(self, case: str) -> bool:
        """Whether the case passes on the sound implementation, here and now."""
        self._load({"sources": {}}, None)
        return not self._cases.run(case, self._base).kills

    @contextlib.contextmanager
    def _guarded(self, row: Row) -> Iterator[None]:
        """If the body does not come to an end, answer with ``row`` in its place and end this process."""

        def give_up() -> None:
            self._say(row)
            os._exit(0)

        guard = threading.Timer(CASE_LIMIT_S, give_up)
        guard.daemon = True
        guard.start()
        try:
            yield
        finally:
            guard.cancel()

    # --- loading ---

    def _altered(self, plan: dict[str, Any], name: str) -> Cluster:
        """A cluster whose ranks have this implementation; this process has it too."""
        self._load(plan, name)
        path = self._folder / "plan.json"
        path.write_text(json.dumps(plan), encoding="utf-8")
        return Cluster("gloo", base=self._base, first=(_LOAD, str(path)))

    def _load(self, plan: dict[str, Any], name: str | None) -> None:
        if self._loaded != name:
            altered.load_plan(plan)
            self._loaded = name


def main(checks: str) -> None:
    """Serve until the input closes."""
    questions, say = asked()
    preload = [f"conformance.checks.{path.stem}" for path in sorted(inventory.CHECKS.glob("test_*.py"))]
    with tempfile.TemporaryDirectory(prefix="power-") as folder, Cluster("gloo", preload=preload) as base:
        base.load()
        for name in PRELOAD:  # while the ranks' own process loads the same
            importlib.import_module(name)
        worker = Worker(Path(checks), Path(folder), base, say)
        for question in questions:
            say(worker.answer(json.loads(question)))


if __name__ == "__main__":
    main(*sys.argv[1:])
