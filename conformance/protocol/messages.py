"""What simulated ranks share: one process group's collectives and a store, in memory."""

# The methods of group and store have the signatures that torch calls them with, which its stubs do not all tell.
# mypy: disable-error-code="override,assignment"

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import scheduling
from .scheduling import GO, LOOK, Simulation, Step

_GROUP_TIMEOUT_S = 1800.0
_TIMED_OUT = "gloo/transport (simulated): timed out waiting 1800000ms for recv operation to complete"
_BROKEN = "gloo/transport (simulated): Connection closed by peer"


class Round:
    """The k-th collective of the group: what each rank has started as its k-th."""

    def __init__(self, place: int, act: str) -> None:
        self.place = place
        self.act = act
        self.parts: dict[int, torch.Tensor] = {}  # copies, from the moment of starting
        self.op: Any = None
        self._result: torch.Tensor | None = None

    def result(self) -> torch.Tensor:
        """What every rank is given."""
        if self._result is None:
            parts = [self.parts[rank] for rank in sorted(self.parts)]
            self._result = _reduced(parts, self.op)
        return self._result


def _reduced(parts: Sequence[torch.Tensor], op: Any) -> torch.Tensor:
    if op == "gather":
        return torch.cat([part.reshape(-1) for part in parts])
    if isinstance(op, int):
        return parts[op]
    whole = torch.stack(list(parts))
    if op == dist.ReduceOp.MAX:
        return whole.amax(0)
    if op == dist.ReduceOp.MIN:
        return whole.amin(0)
    return whole.sum(0, dtype=whole.dtype)


class Network:
    """The messages of one run."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rounds: list[Round] = []
        self.started = [0] * size
        self.waited = [0] * size  # the collectives whose end this rank has seen: the place after the last
        self.unwaited: list[set[int]] = [set() for _ in range(size)]
        self.store: dict[str, bytes] = {}
        self._version = 0
        self._key: tuple[int, Hashable] = (-1, None)  # of the store, at a version
        #: how many collectives can still complete, once a rank has died
        self.reach: float = math.inf
        #: which one it is
        self.dead: int | None = None
        self.simulation: Simulation  # set by whoever makes it

    # what the simulation asks

    def key(self) -> Hashable:
        """What lies in the store, and how far the group reaches."""
        if self._key[0] != self._version:
            self._key = self._version, tuple(sorted(self.store.items()))
        return self._key[1], self.reach

    def version(self) -> int:
        """Changes with each word in the store."""
        return self._version

    def lost(self, rank: int, sent: int) -> None:
        """This rank has died; of what it started, only the first ``sent`` got out."""
        self.reach, self.dead = sent, rank

    def may_have_sent(self, rank: int) -> range:
        """From what somebody has seen the end of, to what the rank has started."""
        return range(max(self.waited), self.started[rank] + 1)

    def started_by(self, rank: int) -> int:
        """How many collectives this rank has started."""
        return self.started[rank]

    # collectives

    def is_over(self, place: int) -> bool:
        """Whether a collective has ended, well or not."""
        return self.has_failed(place) or len(self.rounds[place].parts) == self.size

    def has_failed(self, place: int) -> bool:
        """Whether it cannot complete, since a rank has died."""
        return place >= self.reach

    def start(self, rank: int, act: str, op: Any, part: torch.Tensor) -> Round:
        """Start this rank's next collective; the first difference between two ranks is a violation."""
        place = self.started[rank]
        self.simulation.step(Step("start", f"start of {act} (collective {place})"))
        if place == len(self.rounds):
            self.rounds.append(Round(place, act))
        entry = self.rounds[place]
        if entry.act != act:
            others = ", ".join(map(str, sorted(entry.parts)))
            self.simulation.violated(
                f"collective {place} differs: rank {rank} starts {act}, rank {others} started {entry.act}"
            )
        entry.op = op
        entry.parts[rank] = part.detach().clone()
        self.started[rank] += 1
        self.unwaited[rank].add(place)
        return entry

    def seen(self, rank: int, place: int) -> None:
        """This rank has seen the end of a collective."""
        self.waited[rank] = max(self.waited[rank], place + 1)
        self.unwaited[rank].discard(place)

    # the store

    def word(self, key: str) -> bytes | None:
        """What lies under a key."""
        return self.store.get(key)

    def write(self, key: str, value: bytes) -> None:
        """Put a word into the store."""
        if self.store.get(key) != value:
            self.store[key] = value
            self._version += 1

    def erase(self, key: str) -> bool:
        """Take a word out of the store; whether it was there."""
        there = self.store.pop(key, None) is not None
        self._version += there
        return there


class SimulatedWork(dist.Work):
    """The handle of a started collective. Its result comes into the buffer where somebody waits for it."""

    def __init__(self, network: Network, entry: Round, target: torch.Tensor) -> None:
        super().__init__()
        self._network = network
        self._entry = entry
        self._target = target
        self._rank = scheduling.current().number

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end; RuntimeError where it does not come in time, or cannot."""
        network, place = self._network, self._entry.place
        limit = timeout.total_seconds() if timeout else 0.0
        what = f"wait for {self._entry.act} (collective {place})"
        how = network.simulation.step(
            Step("wait", what, lambda: network.is_over(place), sliced=bool(limit), limit_s=limit or _GROUP_TIMEOUT_S)
        )
        if how == LOOK:
            raise RuntimeError("the slice has run out")
        if how != GO:
            raise RuntimeError(_TIMED_OUT)
        self._end()
        return True

    def _end(self) -> None:
        network, place = self._network, self._entry.place
        if network.has_failed(place):
            network.simulation.saw((place, "failed"))
            raise RuntimeError(_BROKEN)
        network.seen(self._rank, place)
        with torch.no_grad():
            result = self._entry.result()
            self._target.copy_(result.view_as(self._target))

    def is_completed(self) -> bool:
        over = self._network.is_over(self._entry.place)
        self._network.simulation.saw(over)
        return over

    def get_future(self) -> torch.futures.Future:
        """A completed future of the buffer: whoever asks has waited."""
        future: torch.futures.Future = torch.futures.Future()
        future.set_result([self._target])
        return future


class SimulatedGroup(dist.ProcessGroup):
    """One rank's view of the group."""

    def __init__(self, network: Network, rank: int) -> None:
        super().__init__(rank, network.size)  # type: ignore[call-arg]
        self._network = network
        self._number = rank

    @property
    def group_name(self) -> str:
        return "simulated"

    def getBackendName(self) -> str:
        return "simulated"

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> SimulatedWork:
        op = dist.ReduceOp.SUM if options is None else options.reduceOp
        named = next((name for name in ("SUM", "MAX", "MIN") if op == getattr(dist.ReduceOp, name)), "another")
        return self._start(f"all-reduce {named}", getattr(dist.ReduceOp, named, None), tensors[0], tensors[0])

    def broadcast(self, tensors: list[torch.Tensor], options: Any = None) -> SimulatedWork:
        root = 0 if options is None else int(options.rootRank)
        return self._start(f"broadcast of rank {root}", root, tensors[0], tensors[0])

    def all_gather_single(self, whole: torch.Tensor, part: torch.Tensor, *_: Any, **__: Any) -> SimulatedWork:
        return self._start("all-gather", "gather", part, whole)

    _allgather_base = all_gather_single

    def _start(self, name: str, op: Any, part: torch.Tensor, target: torch.Tensor) -> SimulatedWork:
        kind = str(part.dtype).removeprefix("torch.")
        act = f"{name} of {part.numel()} {kind}"
        return SimulatedWork(self._network, self._network.start(self._number, act, op, part), target)


class SimulatedStore(dist.Store):
    """One rank's view of the store beside the group."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network

    def set(self, key: str, value: bytes) -> None:
        self._step(f"set {key}", key, writes=True)
        self._network.write(key, value)

    def get(self, key: str) -> bytes:
        self._step(f"get {key}", key)
        word = self._network.store[key]
        self._network.simulation.saw(word)
        return word

    def compare_set(self, key: str, expected: bytes, word: bytes) -> bytes:
        self._step(f"compare_set {key}", key, writes=True)
        found = self._network.store.get(key, expected)
        if found == expected:
            self._network.write(key, found := word)
        self._network.simulation.saw(found)
        return found

    def check(self, keys: list[str]) -> bool:
        self._step(f"check {' '.join(keys)}", *keys)
        there = self._all_there(keys)
        self._network.simulation.saw(there)
        return there

    def wait(self, keys: list[str], limit: timedelta | None = None) -> None:
        seconds = 300.0 if limit is None else limit.total_seconds()
        what, words = f"wait for words {' '.join(keys)}", frozenset(keys)
        step = Step("store", what, lambda: self._all_there(keys), limit_s=seconds, words=words)
        if self._network.simulation.step(step) != GO:
            raise RuntimeError("wait timeout: the words did not come")

    def deleteKey(self, key: str) -> bool:
        self._step(f"delete {key}", key, writes=True)
        return self._network.erase(key)

    def _all_there(self, keys: Sequence[str]) -> bool:
        return all(key in self._network.store for key in keys)

    def _step(self, what: str, *words: str, writes: bool = False) -> None:
        self._network.simulation.step(Step("store", what, words=frozenset(words), writes=writes))
        looked = scheduling.current().looked
        if looked is not None and not writes:
            looked.update({key: self._network.word(key) for key in words})
