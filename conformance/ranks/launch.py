"""Starts fresh ranks for each run from a forkserver that has torch loaded, and gathers their outcomes. (First cut.)"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ..subjects import Subject
from .outcomes import Died, Hung, Outcome, Run
from .worker import work


class NotRunnable(Exception):
    """This backend or this many ranks cannot be had on this machine; the text says why."""


class Cluster:
    """Runs functions on ranks of one backend. Close it (or use it in a ``with``) to end its helpers."""

    def __init__(self, backend: str = "gloo", deadline_s: float = 30.0) -> None:
        self.backend = backend
        self.deadline_s = deadline_s
        self._spawning = multiprocessing.get_context("forkserver")
        self._spawning.set_forkserver_preload(["conformance.ranks.worker", "pytest", "hypothesis"])
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._numbers = itertools.count()

    def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        *,
        world: int,
        subject: Subject | str,
        deadline_s: float | None = None,
        ledger: bool = False,
        init: bool = True,
        env: dict[str, str] | None = None,
    ) -> Run:
        """Run ``function(ctx, *args)`` on ``world`` fresh ranks and return what became of each."""
        start = time.monotonic()
        deadline = start + (deadline_s or self.deadline_s)
        number = next(self._numbers)
        pipes, processes = [], []
        for rank in range(world):
            ours, theirs = self._spawning.Pipe()
            job = (number, self._store.port, rank, world, self.backend, subject, function, tuple(args), init, env or {})
            process = self._spawning.Process(target=work, args=(theirs, job), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        outcomes: list[Outcome | None] = [None] * world
        while None in outcomes and time.monotonic() < deadline:
            waiting = {pipes[r]: r for r in range(world) if outcomes[r] is None}
            for pipe in multiprocessing.connection.wait(list(waiting), timeout=deadline - time.monotonic()):
                rank = waiting[pipe]  # type: ignore[index]
                try:
                    outcomes[rank] = pipes[rank].recv()
                except EOFError:
                    processes[rank].join()
                    outcomes[rank] = Died(processes[rank].exitcode or 0, "")
        for rank in range(world):
            if outcomes[rank] is None:
                outcomes[rank] = Hung("")
                processes[rank].kill()
            with contextlib.suppress(OSError):
                pipes[rank].send("fin")
        for process in processes:
            process.join(2)
        return Run(tuple(outcomes), time.monotonic() - start)  # type: ignore[arg-type]

    def close(self) -> None:
        pass


__all__ = ["Cluster", "NotRunnable", "timedelta"]
