"""Runs a function on N ranks, each a process of its own with a fresh process group, and gathers what became of each."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..subjects import Subject
from .backends import LOOPBACK, ensure_runnable
from .fork_server_client import NO_DNS, ONE_THREAD, ForkServerClient
from .gather import gather, judge, watch
from .order import Order, main_module, pack
from .outcomes import Run
from .rank_pool import RankPool
from .stall import MOST_TIMES

ECHO = "CONFORMANCE_ECHO"  # an environment variable: set it to see what the ranks print
_IDLE_POOLS = 2  # of a cluster: so many that wait for another run, each of one world size and one subject
_MOST_RUNS = 25  # of a pool
_GROUP_OUTLASTS_S = 60.0  # by so much the group's own timeout exceeds the latest deadline: a hang is seen as one


class Cluster:
    """Runs functions on ranks of one backend. Close it (or use it in a ``with``) to end its helpers.

    ``deadline_s`` bounds every run, less the time in which its ranks wanted a processor and got none, but at most
    ``most_times`` as long (1: to the second); a run in which nothing has happened for ``stall_s`` counts as hung
    before that (see ``stall.py``). With ``persistent``, ranks stay alive from run to run of a subject: quicker, but
    what a run patches or imports stays with them; they are replaced after 25 runs, and after any in which not every
    rank finished. ``preload`` names modules to load once before any rank is made; they must start no thread and touch
    no accelerator. A cluster serves one thread; on top of a ``base`` it shares what that one has loaded, which
    ``first`` (a ``module:function`` and a text) may change before any rank is made. ``when_idle`` is told whether the
    ranks of the run at hand only wait. With ``placing``, what a function of the suite creates lies on its rank's device
    (see ``placing.py``), which on an accelerator slows every call of torch down; with ``poison``, buffers of
    collectives in flight hold NaN (see ``poison.py``). What ranks print goes to files, whose ends come with ``Died``;
    with CONFORMANCE_ECHO=1 in the environment it is printed here after each run.
    """

    def __init__(
        self,
        backend: str = "gloo",
        deadline_s: float = 30.0,
        stall_s: float = 3.0,
        persistent: bool = False,
        preload: Sequence[str] = (),
        most_times: float = MOST_TIMES,
        base: Cluster | None = None,
        first: tuple[str, str] | None = None,
        when_idle: Callable[[bool], None] = lambda _: None,
        placing: bool = True,
        poison: bool = False,
    ) -> None:
        self.backend = backend
        self.deadline_s = deadline_s
        self.stall_s = stall_s
        self.persistent = persistent
        self.most_times = most_times
        self._base = base
        self._first = first
        self._when_idle = when_idle
        self._placing = placing
        self._poison = poison
        self._preload = tuple(preload)
        self._numbers = itertools.count()
        self._runnable: set[int] = set()  # world sizes known to be
        self._idle: dict[tuple[int, str], RankPool] = {}  # by world size and subject; the last used comes last
        self._started: ForkServerClient | None = None  # from the first run on
        self._starting = threading.Lock()  # clusters that have this one as their base may start it

    def load(self) -> None:
        """Begin to load, in the background, what the ranks of the first run would have to wait for."""
        self._fork_server()

    def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        *,
        world: int,
        subject: Subject | str,
        deadline_s: float | None = None,
        stall_s: float | None = None,
        trace: bool = False,
        init: bool = True,
        env: dict[str, str] | None = None,
        group_timeout_s: float | None = None,
        reuse: bool | None = None,
    ) -> Run:
        """Run ``function(ctx, *args)`` on ``world`` ranks and return what became of each.

        ``NotRunnable`` says why if so many ranks cannot have this backend here. ``env`` is set on the ranks before
        torch.distributed starts. ``group_timeout_s`` is the process group's own; by default longer than the deadline.
        ``reuse`` says for this run whether its ranks may have served another, and may serve one more; by default they
        do in a cluster that is ``persistent``.
        """
        self._ensure_runnable(world)
        limit_s = deadline_s or self.deadline_s
        payload = pack(function, args, subject)
        order = Order(
            number=next(self._numbers),
            world=world,
            backend=self.backend,
            payload=payload,
            init=init,
            trace=trace,
            group_timeout_s=group_timeout_s or limit_s * self.most_times + _GROUP_OUTLASTS_S,
            environ=self._environment({**ONE_THREAD, **(env or {})}),
            main=main_module(payload),
            placing=self._placing,
            poison=self._poison,
            **self._meeting(),
        )
        keep = str(subject) if (self.persistent if reuse is None else reuse) else None
        return self._carry_out(order, limit_s, stall_s or self.stall_s, keep)

    def close(self) -> None:
        """End every process that was started for this cluster. Another run would start them anew."""
        atexit.unregister(self.close)
        self._idle.clear()
        ours, self._started = self._started, None
        if ours is not None:
            ours.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fork_server(self) -> ForkServerClient:
        """The process that ranks are forked from: started by the first run, and again if it was killed since."""
        with self._starting:
            if self._started is not None and not self._started.alive:
                self.close()
            if self._started is None:
                base = self._base._fork_server() if self._base else None
                self._started = ForkServerClient(self._preload, base, self._first)
                atexit.register(self.close)
            return self._started

    def _meeting(self) -> dict[str, Any]:
        """Where ranks meet, as fields of an order."""
        return {"port": self._fork_server().port}

    def _environment(self, asked: dict[str, str]) -> dict[str, str]:
        """The environment of the ranks."""
        return {**LOOPBACK, **NO_DNS, **_variables(), **asked}

    def _ensure_runnable(self, world: int) -> None:
        if world not in self._runnable:
            ensure_runnable(self.backend, world)
            self._runnable.add(world)

    def _carry_out(self, order: Order, limit_s: float, stall_s: float, keep: str | None = None) -> Run:
        """``keep``: for whose runs the ranks may be used again, if they may."""
        start = time.monotonic()
        with self._pool(order.world, keep) as pool, pool.started(order) as folder:
            watch(pool, folder, limit_s, stall_s, self.most_times, self._when_idle)
            run = judge(gather(pool, folder, order.trace), order.trace, time.monotonic() - start)
            if os.environ.get(ECHO):
                pool.echo()
            if keep is not None and run.finished and pool.runs < _MOST_RUNS and pool.put_away():
                self._idle[order.world, keep] = pool
        return run

    @contextlib.contextmanager
    def _pool(self, world: int, keep: str | None) -> Iterator[RankPool]:
        """A pool for one run. Whatever happens, it then is idle or gone."""
        pool = self._idle.pop((world, keep), None) if keep is not None else None
        if pool is not None and not pool.all_alive():
            pool.dismiss()
            pool = None
        pool = pool or RankPool(self._fork_server(), world)
        try:
            yield pool
        finally:
            if pool not in self._idle.values():
                pool.dismiss()
            while len(self._idle) > _IDLE_POOLS:
                self._idle.pop(next(iter(self._idle))).dismiss()


def _variables() -> dict[str, str]:
    """This process's variables. On another thread pytest takes one out and puts it back: then they are read again."""
    while True:
        with contextlib.suppress(KeyError):
            return dict(os.environ)

