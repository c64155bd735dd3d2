"""What simulated ranks find where the real ones find torch.distributed's groups and the clock.

Each thread that is a rank has a default group, a store and a clock of its own; all other threads have the real ones.
Private names of torch stand in this file only.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch.distributed import distributed_c10d

from impl.comm import heartbeats
from impl.comm.losses import End, Loss

from . import scheduling
from .messages import Network, SimulatedGroup, SimulatedStore
from .scheduling import Step

_LONG_SLEEP_S = 2.0  # as long as a rank gives its peers to answer


@dataclass
class RanksWorld:
    """The registry of groups as one rank sees it, by torch's names."""

    default_pg: Any = None
    pg_map: dict[Any, Any] = field(default_factory=dict)
    pg_names: dict[Any, str] = field(default_factory=dict)
    pg_group_ranks: dict[Any, dict[int, int]] = field(default_factory=dict)
    pg_backend_config: dict[Any, str] = field(default_factory=dict)
    group_count: int = 1
    tags_to_pg: dict[str, list[Any]] = field(default_factory=dict)
    pg_to_tag: dict[Any, str] = field(default_factory=dict)
    pg_coalesce_state: dict[Any, list[Any]] = field(default_factory=dict)
    comms: list[Any] = field(default_factory=list)


_of_rank: dict[int, RanksWorld] = {}  # by the number of a simulated rank; one simulation runs at a time


class _Worlds:
    """Stands where torch keeps its registry: passes on to that of the rank whose thread asks."""

    def __init__(self, real: Any) -> None:
        self.__dict__["real"] = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._own(), name, value)

    def _own(self) -> Any:
        return _of_rank[scheduling.current().number] if scheduling.is_rank() else self.__dict__["real"]


class _Losses:
    """The losses that a simulated rank knows of: who has died, at once."""

    def __init__(self, network: Network, rank: int) -> None:
        self._network, self._rank = network, rank

    def causes(self, ranks: Collection[int], limit_s: float = 0.0) -> list[Loss]:
        dead = self._network.dead
        return [] if dead is None or dead not in ranks else [Loss(dead, End.CLOSED, "simulated", "", self._rank)]

    interrupting = causes

    def has(self, rank: int) -> bool:
        return rank == self._network.dead


class SimulatedHeartbeats:
    """What a rank's failure guard asks, without connections and signs of life."""

    detection_s = 5.0
    missing: frozenset[int] = frozenset()
    unheard: frozenset[int] = frozenset()

    def __init__(self, network: Network, rank: int) -> None:
        self.rank = rank
        self.losses = _Losses(network, rank)

    def mark_affected(self) -> None:
        """Nobody is blamed here but who has died."""


def set_up(network: Network) -> None:
    """Give every rank of a new run a default group over the network."""
    _of_rank.clear()
    for rank in range(network.size):
        group, store = SimulatedGroup(network, rank), SimulatedStore(network)
        world = RanksWorld(default_pg=group)
        world.pg_map[group] = ("gloo", store)
        world.pg_names[group] = "simulated"
        world.pg_group_ranks[group] = {each: each for each in range(network.size)}
        world.pg_backend_config[group] = "cpu:gloo"
        _of_rank[rank] = world


@contextmanager
def simulated() -> Iterator[None]:
    """While the block is open, threads that are ranks live on simulated groups and simulated time."""
    real, monotonic, sleep = distributed_c10d._world, time.monotonic, time.sleep
    real_heartbeats = heartbeats.heartbeats_of_world

    def ranks_monotonic() -> float:
        return scheduling.current().clock_s if scheduling.is_rank() else monotonic()

    def ranks_sleep(seconds: float) -> None:
        if scheduling.is_rank():
            _sleep(seconds)
        else:
            sleep(seconds)

    def ranks_heartbeats(detection_s: float, elsewhere_s: float) -> Any:
        if not scheduling.is_rank():
            return real_heartbeats(detection_s, elsewhere_s)
        rank = scheduling.current().number
        return SimulatedHeartbeats(_of_rank[rank].default_pg._network, rank)

    distributed_c10d._world = _Worlds(real)  # type: ignore[assignment]
    heartbeats.heartbeats_of_world = ranks_heartbeats
    time.monotonic, time.sleep = ranks_monotonic, ranks_sleep  # type: ignore[assignment]
    try:
        yield
    finally:
        distributed_c10d._world = real
        heartbeats.heartbeats_of_world = real_heartbeats
        time.monotonic, time.sleep = monotonic, sleep
        _of_rank.clear()


def _sleep(seconds: float) -> None:
    """Sleep until nobody else can do anything, and long: a sleep may last longer than asked, and others are quicker."""
    simulation = next(iter(_of_rank.values())).default_pg._network.simulation
    simulation.step(Step("sleep", f"sleep of {seconds:g} s", lambda: False, limit_s=max(seconds, _LONG_SLEEP_S)))
