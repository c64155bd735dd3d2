"""What a network is: how many hosts, how fast and how long their links are, and how they are connected."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..bad_input import BadInput

_RATES = {"kbit": 1_000, "mbit": 1_000_000, "gbit": 1_000_000_000}
_DELAYS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_MOST_HOSTS = 64  # a host costs a process or two; more than that is no test of anything on one machine
_SLOWEST_BPS = 8_000  # below that the first packet of a connection takes longer than the backend's patience


def rate(text: str) -> int:
    """``200mbit`` in bits a second; BadInput without a number or a unit."""
    return int(_measure(text, _RATES, "rate"))


def delay(text: str) -> float:
    """``200us`` in seconds; BadInput without a number or a unit."""
    return _measure(text, _DELAYS, "delay")


def _measure(text: str, units: dict[str, float] | dict[str, int], what: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text.strip().lower())
    if found is None or found[2] not in units:
        examples = " or ".join(f"100{unit}" for unit in units)
        raise BadInput(f"{what} {text!r} is not a number with a unit: write it like {examples}")
    return float(found[1]) * units[found[2]]


@dataclass(frozen=True)
class Network:
    """Hosts 0, 1, … of one switch, or of ``racks`` switches with an uplink each to a switch in the middle."""

    hosts: int
    rate_bps: int  # of each host's link, in each direction
    delay_s: float = 0.0  # of each host's link, in each direction
    racks: int = 1
    uplink_bps: int = 0  # of each rack's link to the middle; 0: as fast as a host's

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= _MOST_HOSTS:
            raise BadInput(f"{self.hosts} hosts: from 1 to {_MOST_HOSTS} can be had on one machine")
        if not 1 <= self.racks <= self.hosts:
            raise BadInput(f"{self.racks} racks for {self.hosts} hosts: every rack needs a host")
        if self.rate_bps < _SLOWEST_BPS or (self.uplink_bps and self.uplink_bps < _SLOWEST_BPS):
            raise BadInput(f"a link of less than {_SLOWEST_BPS} bit/s would not carry a connection")
        if not 0 <= self.delay_s <= 10:
            raise BadInput(f"a delay of {self.delay_s:g} s: from 0 to 10 s make sense")

    @classmethod
    def of(cls, hosts: int, text: str) -> Network:
        """So many hosts with links as ``text`` says: ``1gbit``, or ``1gbit 200us`` with a delay."""
        first, *rest = text.split() or [""]
        if len(rest) > 1:
            raise BadInput(f"network {text!r} is not a rate and perhaps a delay: write it like '1gbit 200us'")
        return cls(hosts, rate(first), delay(rest[0]) if rest else 0.0)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The hosts' addresses, in one subnet whatever the topology."""
        return tuple(f"10.77.0.{host + 1}" for host in range(self.hosts))

    def rack_of(self, host: int) -> int:
        """Hosts are spread over racks in blocks of like size."""
        return host * self.racks // self.hosts

    def __str__(self) -> str:
        text = f"{self.hosts} hosts, {self.rate_bps / 1e6:g} Mbit/s a link"
        text += f", {self.delay_s * 1e6:g} us" if self.delay_s else ""
        if self.racks > 1:
            text += f", {self.racks} racks with uplinks of {(self.uplink_bps or self.rate_bps) / 1e6:g} Mbit/s"
        return text
