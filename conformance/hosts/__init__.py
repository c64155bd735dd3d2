"""Hosts on one machine: network namespaces with addresses of their own, and links of a chosen rate between them.

    with Hosts(Network(hosts=4, rate_bps=rate("200mbit"))) as hosts:
        status = hosts.torchrun(["train.py", "--epochs", "2"])       one rank on each host
        hosts.cut(2), hosts.heal(2), hosts.limit(2, rate("2mbit"))   while something runs
        hosts.signal(3, signal.SIGSTOP)

The packets are real and so is what the backend does with them; only the wire is made up. Needs Linux, iproute2, and
either root or user namespaces: ``unavailable()`` says what is missing.
"""

from .driver import Hosts, HostsFailed, unavailable
from .network import Network, delay, rate

__all__ = ["Hosts", "HostsFailed", "Network", "delay", "rate", "unavailable"]
