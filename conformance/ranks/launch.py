"""Runs a function on N ranks, each a process of its own with a fresh process group, and gathers what became of each."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ..subjects import Subject
from . import ledger as ledgers
from . import silence
from .backends import LOOPBACK, NotRunnable, ensure_runnable
from .crew import Crew
from .files import Folder, size_of, write_whole
from .nursery import ONE_THREAD, Nursery
from .order import Order, main_module, pack
from .outcomes import Caught, Died, Finished, Hung, Outcome, Raised, Run
from .witness import first_difference, witness

_GROUP_OUTLASTS_S = 60.0  # by so much the group's own timeout exceeds the deadline, so that a hang is seen as one
_NO_LEDGER = "No ledger was kept: run it again with ledger=True to see at which collective the ranks part."


class Cluster:
    """Runs functions on ranks of one backend. Close it (or use it in a ``with``) to end its helpers.

    ``deadline_s`` bounds every run; a run in which nothing has happened for ``silence_s`` counts as hung before that
    (see ``silence.py``). With ``persistent``, ranks stay alive from run to run: quicker, but what a run patches or
    imports stays with them; they are replaced after any run in which not every rank finished. ``preload`` names modules
    to load once before any rank is made; they must start no thread and touch no accelerator.
    """

    def __init__(
        self,
        backend: str = "gloo",
        deadline_s: float = 30.0,
        silence_s: float = 3.0,
        persistent: bool = False,
        preload: Sequence[str] = (),
    ) -> None:
        self.backend = backend
        self.deadline_s = deadline_s
        self.silence_s = silence_s
        self.persistent = persistent
        self._preload = tuple(preload)
        self._numbers = itertools.count()
        self._runnable: set[int] = set()  # world sizes known to be
        self._crews: dict[int, Crew] = {}  # idle, by world size (persistent only)
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._nursery = Nursery(self._preload)
        atexit.register(self.close)

    def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        *,
        world: int,
        subject: Subject | str,
        deadline_s: float | None = None,
        silence_s: float | None = None,
        ledger: bool = False,
        init: bool = True,
        env: dict[str, str] | None = None,
        group_timeout_s: float | None = None,
    ) -> Run:
        """Run ``function(ctx, *args)`` on ``world`` ranks and return what became of each.

        ``NotRunnable`` says why if so many ranks cannot have this backend here. ``env`` is set on the ranks before
        torch.distributed starts. ``group_timeout_s`` is the process group's own; by default longer than the deadline.
        """
        self._ensure_runnable(world)
        limit_s = deadline_s or self.deadline_s
        payload = pack(function, args, subject)
        order = Order(
            number=next(self._numbers),
            port=self._store.port,
            world=world,
            backend=self.backend,
            payload=payload,
            init=init,
            ledger=ledger,
            group_timeout_s=group_timeout_s or limit_s + _GROUP_OUTLASTS_S,
            environ={**LOOPBACK, **os.environ, **ONE_THREAD, **(env or {})},
            main=main_module(payload),
        )
        with self._crew(world) as crew, _folder_in(crew, order.number) as folder:
            start = time.monotonic()
            write_whole(folder.order, pickle.dumps(order))
            crew.start(folder)
            _watch(crew, folder, start + limit_s, silence_s or self.silence_s)
            outcomes = _outcomes(crew, folder, ledger)
            if self.persistent and all(isinstance(outcome, Finished) for outcome in outcomes) and crew.put_away():
                self._crews[world] = crew
            return _judged(outcomes, ledger, time.monotonic() - start)

    def close(self) -> None:
        """End every process that was started for this cluster. Idempotent; a closed cluster cannot run."""
        atexit.unregister(self.close)
        self._crews.clear()
        self._nursery.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ensure_runnable(self, world: int) -> None:
        if world not in self._runnable:
            ensure_runnable(self.backend, world)
            self._runnable.add(world)

    @contextlib.contextmanager
    def _crew(self, world: int) -> Iterator[Crew]:
        """A crew for one run. Whatever happens, it then is idle in ``_crews`` or gone."""
        crew = self._crews.pop(world, None)
        if crew is None:
            if not self._nursery.alive:
                self._crews.clear()
                self._nursery.close()
                self._nursery = Nursery(self._preload)
            crew = Crew(self._nursery, world)
        try:
            yield crew
        finally:
            if self._crews.get(world) is not crew:
                crew.dismiss()


@contextlib.contextmanager
def _folder_in(crew: Crew, number: int) -> Iterator[Folder]:
    path = crew.folder.path / f"run{number}"
    path.mkdir()
    try:
        yield Folder(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _watch(crew: Crew, folder: Folder, deadline: float, silence_s: float) -> None:
    """Wait until every rank has reported or ended, the deadline has passed, or the run has fallen silent."""
    quiet = silence.Silence(silence_s)
    next_look = time.monotonic() + silence.LOOK_EVERY_S if silence.available() else deadline
    while True:
        unfinished = [rank for rank in range(crew.world) if not crew.reported(rank) and rank not in crew.ended]
        now = time.monotonic()
        if not unfinished or now >= deadline:
            return
        if now >= next_look:
            written = sum(size_of(folder.ledger(rank)) for rank in unfinished)
            quiet.add(silence.look({crew.pids[rank] for rank in unfinished}, now), (len(unfinished), written))
            if quiet.fallen:
                return
            next_look = time.monotonic() + silence.LOOK_EVERY_S
        crew.listen(min(deadline, next_look) - now)


def _outcomes(crew: Crew, folder: Folder, ledger: bool) -> list[Outcome]:
    """What became of every rank; those that did neither report nor end by now hang."""
    hung = [rank for rank in range(crew.world) if not crew.reported(rank) and rank not in crew.ended]
    stacks = crew.stacks(hung) if hung else {}
    outcomes: list[Outcome] = []
    for rank in range(crew.world):
        if rank in stacks:
            outcomes.append(Hung(stacks[rank]))
        elif folder.outcome(rank).exists():
            outcomes.append(_read(folder.outcome(rank)))
        else:
            outcomes.append(Died(crew.ended[rank], crew.last_words(rank)))
    if ledger:
        crew.bring_ledgers_up_to_date([rank for rank in range(crew.world) if rank not in crew.ended])
        outcomes = [replace(one, ledger=ledgers.read(folder.ledger(rank))) for rank, one in enumerate(outcomes)]
    return outcomes


def _read(path: Path) -> Outcome:
    try:
        outcome: Outcome = pickle.loads(path.read_bytes())
    except Exception as error:
        text = f"the rank's result cannot be read by the driver: {type(error).__name__}: {error}"
        return Raised(Caught(("Unpicklable", "TypeError", "Exception"), text), "")
    return outcome


def _judged(outcomes: list[Outcome], ledger: bool, seconds: float) -> Run:
    """The run, with a witness where something went wrong, and a note where ranks that finished did not agree."""
    if all(isinstance(outcome, Finished) for outcome in outcomes):
        parted = first_difference([outcome.ledger for outcome in outcomes], outcomes) if ledger else ""
        notes = (f"All ranks finished, but their collectives differ: {parted}",) if parted else ()
        return Run(tuple(outcomes), seconds, notes=notes)
    seen = witness(outcomes) if ledger else ""
    if not ledger and any(isinstance(outcome, Hung) for outcome in outcomes):
        seen = _NO_LEDGER
    return Run(tuple(outcomes), seconds, seen)


__all__ = ["Cluster", "NotRunnable"]
