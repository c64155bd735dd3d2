"""What a network between hosts carries, measured before anything else on it, and compared with what was asked for."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.hosts import Network

from . import void

if TYPE_CHECKING:
    from conformance.ranks import RankContext

MOST_OFF = 0.05
PAYLOAD = 1448 / 1514  # of an Ethernet frame, after the headers of TCP, with its timestamps, and IP
_DEVICE = "eth0"  # of every host
_BURST_BYTES = 256 << 10  # what a link lets through at once after a pause: see conformance/hosts/switch.py
_REPEATS, _PINGS = 5, 15
_TURN_S = 0.25  # of bytes at the asked rate, in the longer of two transfers


@dataclass(frozen=True)
class Links:
    """The figures of one network between so many ranks; of none where there is no network."""

    network: str = ""
    world: int = 1
    wanted_bytes_per_s: float = 0.0  # what the rate that was asked for leaves for payload
    bytes_per_s: tuple[float, ...] = ()  # to each rank from the one before it, all at once
    latency_ns: tuple[float, ...] = ()  # to the next rank, there and back halved
    all_reduce_ns: Mapping[str, float] = field(default_factory=dict)  # by bytes
    missing: str = ""  # why there is no such network, and so no figure

    @property
    def trouble(self) -> str:
        """Why nothing that is measured over it counts; empty if it is what was asked for."""
        if self.missing or not self.bytes_per_s:
            return self.missing
        worst = max(self.bytes_per_s, key=lambda each: abs(each / self.wanted_bytes_per_s - 1))
        off = worst / self.wanted_bytes_per_s - 1
        if abs(off) > MOST_OFF:
            share = f"{100 * abs(off):.0f} % {'below' if off < 0 else 'above'} what {self.network} should carry"
            usual = "the usual cause is a machine too busy for so many hosts"
            rank = self.bytes_per_s.index(worst)
            return void.by_network(f"rank {rank} gets {worst / 1e6:.1f} MB/s of payload, {share}; {usual}")
        late, soonest = 2e9 * Network.of(1, self.network).delay_s, min(self.latency_ns)  # of the two links on the way
        if self.world > 1 and soonest < (1 - MOST_OFF) * late:
            rank = self.latency_ns.index(soonest)
            return void.by_network(f"rank {rank} reaches the next in {soonest / 1e3:.0f} us, not {late / 1e3:.0f} us")
        return ""

    def figures(self) -> dict[str, Any]:
        """For every row over this network."""
        if not self.bytes_per_s:
            return {}
        return {"link_bytes_per_s": min(self.bytes_per_s), "latency_ns": statistics.median(self.latency_ns)}


def wanted_bytes_per_s(network: str) -> float:
    return Network.of(1, network).rate_bps / 8 * PAYLOAD


def sent_bytes() -> int:
    """What this host has sent over its link so far; 0 where it has none."""
    lines = (line.partition(":") for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines())
    return next((int(figures.split()[8]) for name, _, figures in lines if name.strip() == _DEVICE), 0)


def on_rank(ctx: RankContext, network: str) -> Links:
    """Rank function: measure; every rank returns the figures of all."""
    import torch.distributed as dist

    bench = _Bench(ctx, wanted_bytes_per_s(network))
    mine = (bench.bytes_per_s(), bench.latency_ns())
    everybody: list[Any] = [None] * ctx.world
    dist.all_gather_object(everybody, mine)
    rates, latencies = zip(*everybody, strict=True)
    reduced = {str(size): bench.all_reduce_ns(size) for size in bench.sizes}
    return Links(network, ctx.world, bench.wanted, rates, latencies, reduced)


class _Bench:
    """The transfers of one rank, to the next in a ring."""

    def __init__(self, ctx: RankContext, wanted: float) -> None:
        self.rank, self.world, self.wanted = ctx.rank, ctx.world, wanted
        largest = int(min(max(wanted * _TURN_S, 2 * _BURST_BYTES), 8 << 20))
        self.sizes = (largest // 256, largest // 16, largest)

    def bytes_per_s(self) -> float:
        """Of two transfers the bytes by which they differ, over the time: what a pause has saved up cancels."""
        if self.world == 1:
            return self.wanted
        long, short = self.sizes[-1], self.sizes[-1] // 2
        times = [(self._timed(self._to_next(long)), self._timed(self._to_next(short))) for _ in range(_REPEATS)]
        # other work on this machine makes transfers longer, never shorter
        more_s = min(one for one, _ in times) - min(other for _, other in times)
        return (long - short) / max(more_s, 1e-9)

    def latency_ns(self) -> float:
        """Half of there and back, the pairs one after the other."""
        import torch
        import torch.distributed as dist

        found, one = 0.0, torch.zeros(1)
        for first in range(self.world if self.world > 1 else 0):
            second = (first + 1) % self.world
            dist.barrier()
            times = []
            for _ in range(_PINGS if self.rank in (first, second) else 0):
                start = time.perf_counter_ns()
                for sender, receiver in ((first, second), (second, first)):
                    if self.rank == sender:
                        dist.send(one, receiver)
                    else:
                        dist.recv(one, sender)
                times.append((time.perf_counter_ns() - start) / 2)
            if self.rank == first:
                found = statistics.median(times)
        return found

    def all_reduce_ns(self, size: int) -> float:
        """The median over a few, of this rank."""
        import torch
        import torch.distributed as dist

        data = torch.zeros(max(1, size // 4))
        return statistics.median(self._timed(lambda: dist.all_reduce(data)) for _ in range(_REPEATS)) * 1e9

    def _to_next(self, size: int) -> Callable[[], None]:
        """Send so many bytes to the next rank while as many come from the one before."""
        import torch
        import torch.distributed as dist

        out, into = torch.zeros(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
        after, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world

        def transfer() -> None:
            works = [dist.isend(out, after), dist.irecv(into, before)]
            for work in works:
                if work is not None:
                    work.wait()

        return transfer

    def _timed(self, act: Callable[[], Any]) -> float:
        """Seconds, after a pause in which every link has filled its bucket again."""
        import torch.distributed as dist

        dist.barrier()
        time.sleep(2 * _BURST_BYTES / self.wanted)
        start = time.perf_counter()
        act()
        return time.perf_counter() - start
