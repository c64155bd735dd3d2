"""Agents on hosts of this machine, and their driver outside: each run of a ``SpreadCluster`` has one rank on each host.

    with agents_on(Network(hosts=4, rate_bps=rate("1gbit"))) as agent_group:
        SpreadCluster(agent_group).run(function, world=4, subject="torch")

torchrun starts the agents. They find the driver by a socket in a folder of its own, which has its way into every
namespace, unlike any address.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

from ..ranks.agent import Agent, DriverGone, hear, tell
from ..ranks.agent_group import AgentGroup, Member, about_here
from ..ranks.place import Place, end_with_parent, forget, placed
from .driver import Hosts, HostsFailed
from .network import Network

_MEET_LIMIT_S = 300.0  # torch is loaded on every host, and they share this machine's cores
_LOOK_EVERY_S = 1.0


@contextlib.contextmanager
def agents_on(network: Network) -> Iterator[AgentGroup]:
    """One agent on each host of a new network; ``HostsFailed`` if they cannot be had. All of it goes at the end."""
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder, Hosts(network) as hosts:  # nobody else's folder
        path = f"{folder}/driver"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(network.hosts)
            listener.settimeout(_LOOK_EVERY_S)
            place, members = _met(listener, hosts, hosts.launch(["-m", __name__, path]))
        agent_group = AgentGroup(place, members)
        try:
            yield agent_group
        finally:
            agent_group.end()


def _met(listener: socket.socket, hosts: Hosts, launched: list[int]) -> tuple[Place, list[Member]]:
    """The first rank's place, and all agents by rank."""
    deadline = time.monotonic() + _MEET_LIMIT_S
    found: dict[int, tuple[Place, Member]] = {}
    while len(found) < hosts.network.hosts:
        with contextlib.suppress(TimeoutError):
            agent = Connection(listener.accept()[0].detach())
            place, about = hear(agent)
            found[place.rank] = place, Member(place.rank, about, agent)
        ended = hosts.wait(launched, 0.0)
        if ended:
            raise HostsFailed(f"torchrun ended on a host with status {next(iter(ended.values()))} before its rank came")
        if time.monotonic() > deadline:
            raise HostsFailed(f"{len(found)} of {hosts.network.hosts} ranks came within {_MEET_LIMIT_S:g} s")
    return found[0][0], [found[rank][1] for rank in sorted(found)]


def main(path: str) -> int:
    """On a host, started by torchrun: serve the driver at ``path``."""
    place = placed()
    assert place is not None
    forget()
    end_with_parent(signal.SIGTERM)
    with socket.socket(socket.AF_UNIX) as way:
        way.connect(path)
        driver = Connection(way.detach())
    tell(driver, place, about_here())
    with contextlib.suppress(DriverGone):
        Agent(place.rank, 0, driver).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
