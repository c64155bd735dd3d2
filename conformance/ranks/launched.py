"""Under a launcher: what the first place and the others do, and a cluster whose ranks are spread over all of them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from .agent import Agent, DriverGone, Preparation
from .agent_group import AgentGroup, connect, gathered
from .backends import LOOPBACK, NotRunnable, spread
from .fork_server_client import NO_DNS
from .gather import judge
from .launch import Cluster
from .order import Order
from .outcomes import Run
from .place import Place, end_with_parent, forget


@contextlib.contextmanager
def led(place: Place) -> Iterator[AgentGroup]:
    """At the first place: the agents of all."""
    _enter(place)
    with gathered(place) as agent_group, spread(agent_group.here):
        yield agent_group


def serve(place: Place, name: str) -> bool:
    """At every other place: do what the driver of the command ``name`` says. False if it ends without saying so."""
    _enter(place)
    agent = Agent(place.rank, place.local_rank or 0, connect(place))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal's processes; it is the driver's
    try:
        agent.serve()
    except DriverGone:
        print(f"{name}: rank {place.rank} lost rank 0, which drives the run; it ends.", file=sys.stderr)
        return False
    return True


def _enter(place: Place) -> None:
    """Take the launcher's variables out of the environment, and end with it."""
    forget()
    if place.launcher == "torchrun":
        end_with_parent(signal.SIGTERM)


class SpreadCluster(Cluster):
    """Runs on the first ranks of a launched job; every run has fresh processes, forked by the agents there."""

    def __init__(
        self, agent_group: AgentGroup, backend: str = "gloo", deadline_s: float = 30.0, stall_s: float = 3.0,
        preload: Sequence[str] = (), poison: bool = False, placing: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(backend, deadline_s, stall_s, preload=preload, poison=poison, placing=placing)
        self._agent_group = agent_group
        # between machines neither the loopback nor a switched-off name service would do
        defaults = {**LOOPBACK, **NO_DNS} if agent_group.one_machine else {}
        agent_group.prepare(Preparation(list(sys.path), os.getcwd(), tuple(preload), defaults))

    def load(self) -> None:
        """The agents have been told to."""

    def close(self) -> None:
        """Nothing is ours: the agents go with their agent group."""

    def _meeting(self) -> dict[str, Any]:
        place, alone = self._agent_group.place, self._agent_group.one_machine
        return {"host": place.address, "port": place.port, "prefix": place.prefix, "one_machine": alone}

    def _environment(self, asked: dict[str, str]) -> dict[str, str]:
        """Only what is asked for: the rest is that of the place where a rank runs."""
        return asked

    def _ensure_runnable(self, world: int) -> None:
        have = self._agent_group.place.world
        if world > have:
            raise NotRunnable(f"{world} ranks were asked for, and the launcher gave {have}")
        super()._ensure_runnable(world)

    def _carry_out(self, order: Order, limit_s: float, stall_s: float, keep: str | None = None) -> Run:
        start = time.monotonic()
        outcomes = self._agent_group.carry_out(order, limit_s, stall_s)
        return judge(outcomes, order.trace, time.monotonic() - start)
