"""Worker processes that answer questions, one line of JSON for each, and a driver that hands the questions out.

A worker is ``python -m MODULE ARGUMENTS``, which takes its questions from ``asked``.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_WORDS = 400  # of what a dead worker said last
Row = dict[str, Any]


def asked() -> tuple[Iterator[str], Callable[[Row], None]]:
    """In a worker: the questions as they come, and what says an answer.

    The end of the input ends this process, whatever it is doing, and its ranks with it, who see their sockets close.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever pytest or a check prints must not get among the answers
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            waiting.put(line.strip())
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    return iter(waiting.get, None), lambda row: print(json.dumps(row), file=answers, flush=True)


@dataclass(frozen=True)
class Answered:
    """What a worker said to one question."""

    row: Row  # empty where it said nothing
    trouble: str = ""  # why not

    @staticmethod
    def of_error(error: Exception) -> Answered:
        return Answered({}, f"{type(error).__name__}: {error}")


class Worker:
    """One process of ``python -m MODULE ARGUMENTS``: questions on its input, answers on its output, a line each."""

    def __init__(self, command: Sequence[str], limit_s: float) -> None:
        self._limit_s = limit_s
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            start_new_session=True,  # Ctrl-C is the driver's to handle
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip

    def ask(self, question: str) -> Answered:
        """Have one question answered; a worker that dies or does not answer in time is trouble."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        guard = threading.Timer(self._limit_s, self._process.kill)
        guard.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                print(question, file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        finally:
            guard.cancel()
        if line:
            return Answered(json.loads(line))
        status = self._process.wait()
        self._log.seek(0)
        said = " ".join(self._log.read()[-_WORDS:].split())
        return Answered({}, f"its worker ended with status {status} (limit {self._limit_s:g} s): {said}")

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
    """Asks ``jobs`` workers. Use it in a ``with``: leaving it ends every process."""

    def __init__(self, jobs: int, command: Sequence[str], limit_s: float) -> None:
        self._jobs, self._command, self._limit_s = jobs, tuple(command), limit_s
        self._workers: list[Worker] = []
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        self._over = False

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over = True
            for worker in self._workers:
                worker.end()

    def ask(self, questions: Sequence[str]) -> Iterator[Answered]:
        """All of them; yields the answers in order, each as soon as it and those before it are there."""
        answers = self.as_answered(questions)
        found: dict[int, Answered] = {}
        for place in range(len(questions)):
            while place not in found:
                at, answered = next(answers)
                found[at] = answered
            yield found.pop(place)

    def as_answered(self, questions: Sequence[str]) -> Iterator[tuple[int, Answered]]:
        """All of them; yields each answer as it comes, with the place of its question."""
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[int, Answered]] = queue.SimpleQueue()
        for place in range(len(questions)):
            waiting.put(place)
        for _ in range(min(self._jobs, len(questions))):
            threading.Thread(target=self._work, args=(questions, waiting, done), daemon=True).start()
        left = len(questions)
        while left:
            with contextlib.suppress(queue.Empty):  # in slices, so that Ctrl-C gets through everywhere
                yield done.get(timeout=0.5)
                left -= 1

    def _work(
        self,
        questions: Sequence[str],
        waiting: queue.SimpleQueue[int],
        done: queue.SimpleQueue[tuple[int, Answered]],
    ) -> None:
        worker: Worker | None = None
        while not self._over:
            try:
                place = waiting.get_nowait()
            except queue.Empty:
                break
            try:
                if worker is None or not worker.alive:
                    worker = self._free()
                done.put((place, worker.ask(questions[place])))
            except Exception as error:
                done.put((place, Answered.of_error(error)))
        if worker is not None:
            self._idle.append(worker)

    def _free(self) -> Worker:
        """An idle worker, or a new one."""
        with self._lock:
            if self._over:
                raise RuntimeError("the workers were ended")
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    return worker
            self._workers.append(Worker(self._command, self._limit_s))
            return self._workers[-1]
