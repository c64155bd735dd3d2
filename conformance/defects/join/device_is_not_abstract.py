"""A joinable without a device can be made, and fails only in a context."""

from abc import update_abstractmethods

from impl.join.hooks import Joinable

from ..planting import swap

CLAUSES = ("JOIN-002",)
WORLDS = (1,)


def plant() -> None:
    swap(Joinable, "__abstractmethods__", Joinable.__abstractmethods__)  # so that it comes back
    swap(Joinable, "join_device", property(lambda self: None))
    update_abstractmethods(Joinable)
