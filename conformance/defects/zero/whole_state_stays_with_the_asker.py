"""Whoever asks for the whole state keeps all of it in the place of its own shard's."""

from impl.zero.sharded import Sharded

from ..planting import edit

CLAUSES = ("ZERO-009",)


def plant() -> None:
    edit(Sharded, "state_dict", "self.state = own\n", "pass\n")
