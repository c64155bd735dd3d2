"""The join module exports its private config beside the three public names."""

import impl.join

from ..planting import swap

CLAUSES = ("JOIN-001",)
WORLDS = (1,)


def plant() -> None:
    swap(impl.join, "__all__", ["Join", "JoinHook", "Joinable", "_JoinConfig"])
