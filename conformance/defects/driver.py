"""The driver's side: worker processes that trial, one defect each at a time, and answers in the order of asking."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from .catalogue import Defect
from .trial_result import TrialResult

LIMIT_S = 600.0  # for one defect with all its checks, each of which has deadlines of its own
_WORDS = 400  # of what a dead worker said last


class Worker:
    """One process of ``conformance.defects.worker``."""

    def __init__(self, defects: Path, checks: Path) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker", str(defects), str(checks)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            start_new_session=True,  # Ctrl-C is the driver's to handle
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip

    def trial(self, defect: Defect) -> TrialResult:
        """Have one defect trial result; a worker that dies or does not answer is trouble, never a kill."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        guard = threading.Timer(LIMIT_S, self._process.kill)
        guard.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                print(defect.id, file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        finally:
            guard.cancel()
        if line:
            return TrialResult.of_row(json.loads(line))
        status = self._process.wait()
        self._log.seek(0)
        said = " ".join(self._log.read()[-_WORDS:].split())
        trouble = f"its worker ended with status {status} (limit {LIMIT_S:g} s): {said}"
        return TrialResult(defect.id, (), LIMIT_S, trouble)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """End it, and with it its ranks."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Driver:
    """Hunts defects with ``jobs`` workers. Use it in a ``with``: leaving it ends every process."""

    def __init__(self, jobs: int, defects: Path, checks: Path) -> None:
        self._jobs, self._folders = jobs, (defects, checks)
        self._workers: list[Worker] = []
        self._lock = threading.Lock()
        self._over = False

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over = True
            for worker in self._workers:
                worker.end()

    def trial(self, wanted: Sequence[Defect]) -> Iterator[tuple[Defect, TrialResult]]:
        """Trial all of them; yields them in order, each as soon as it and those before it are done."""
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[int, TrialResult]] = queue.SimpleQueue()
        for place in range(len(wanted)):
            waiting.put(place)
        for _ in range(min(self._jobs, len(wanted))):
            threading.Thread(target=self._work, args=(wanted, waiting, done), daemon=True).start()
        found: dict[int, TrialResult] = {}
        for place, defect in enumerate(wanted):
            while place not in found:
                with contextlib.suppress(queue.Empty):  # in slices, so that Ctrl-C gets through everywhere
                    at, trial_result = done.get(timeout=0.5)
                    found[at] = trial_result
            yield defect, found.pop(place)

    def _work(
        self,
        wanted: Sequence[Defect],
        waiting: queue.SimpleQueue[int],
        done: queue.SimpleQueue[tuple[int, TrialResult]],
    ) -> None:
        worker: Worker | None = None
        while not self._over:
            try:
                place = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                if worker is None or not worker.alive:
                    worker = self._new()
                done.put((place, worker.trial(wanted[place])))
            except Exception as error:
                done.put((place, TrialResult(wanted[place].id, (), 0.0, f"{type(error).__name__}: {error}")))

    def _new(self) -> Worker:
        with self._lock:
            if self._over:
                raise RuntimeError("the trial was ended")
            self._workers.append(Worker(*self._folders))
            return self._workers[-1]
