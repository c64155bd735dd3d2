"""Where ranks run: on this machine, on hosts of it with a network between them, or where a launcher has put them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from conformance.hosts import HostsFailed, Network, unavailable
from conformance.hosts.agents import agents_on
from conformance.ranks import Cluster, NotRunnable
from conformance.ranks.agent_group import AgentGroup
from conformance.ranks.launched import SpreadCluster

from ..plan.cells import Group

PRELOAD = (
    "perf.measure.on_ranks", "perf.measure.trainer", "perf.measure.verify", "perf.measure.memory",
    "perf.measure.trace", "conformance.fixtures.groups", "conformance.api.oracle",
)  # fmt: skip


class Clusters:
    """The clusters that groups are measured on. ``launched`` are the places of a launcher, ``hosts`` how many hosts
    each network gets; one network exists at a time."""

    def __init__(self, launched: AgentGroup | None = None, hosts: Mapping[str, int] | None = None) -> None:
        self._launched, self._hosts = launched, dict(hosts or {})
        self._clusters: dict[str, Cluster] = {}  # by backend
        self._network = ""  # whose hosts there are
        self._over_network: Cluster | None = None
        self._open = contextlib.ExitStack()  # the network

    def of(self, group: Group) -> Cluster:
        """The cluster for a group; ``NotRunnable`` if it cannot be had here."""
        if group.network:
            return self._on_hosts(group.network)
        if group.backend not in self._clusters:
            self._clusters[group.backend] = self._made(group.backend, self._launched)
        return self._clusters[group.backend]

    @staticmethod
    def _made(backend: str, agent_group: AgentGroup | None) -> Cluster:
        if agent_group is not None:
            return SpreadCluster(agent_group, backend, preload=PRELOAD, placing=False)
        # a budget is meant by the clock, however busy the machine is
        return Cluster(backend, preload=PRELOAD, most_times=1, placing=False)

    def _on_hosts(self, network: str) -> Cluster:
        if self._over_network is None or self._network != network:
            self.leave_hosts()
            why = unavailable()
            if why:
                raise NotRunnable(f"no hosts here: {why}")
            try:
                agent_group = self._open.enter_context(agents_on(Network.of(self._hosts[network], network)))
            except HostsFailed as error:
                raise NotRunnable(f"the hosts could not be had: {error}") from error
            self._network, self._over_network = network, self._made("gloo", agent_group)
        return self._over_network

    def leave_hosts(self) -> None:
        """Take the hosts down; the next group over a network gets new ones."""
        self._over_network = None
        self._open.close()

    def close(self) -> None:
        """End all that was started for these clusters."""
        self.leave_hosts()
        for cluster in self._clusters.values():
            cluster.close()
        self._clusters.clear()

    def __enter__(self) -> Clusters:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
