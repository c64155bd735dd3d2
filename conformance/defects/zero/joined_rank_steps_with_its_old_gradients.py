"""A joined rank steps its shard with the gradients of its own last iteration."""

from impl.zero.joining import Joining

from ..planting import edit

CLAUSES = ("ZERO-020", "ZERO-022")


def plant() -> None:
    edit(Joining, "shadow_step", "with shown_gradients(gradients):", "with shown_gradients([]):")
