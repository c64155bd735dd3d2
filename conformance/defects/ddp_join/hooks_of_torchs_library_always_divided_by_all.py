"""In the overlapped step a hook of torch's library divides by all ranks where the active ones were asked for."""

from impl.overlap.reduction import WrappedReduction

from ..planting import edit

CLAUSES = ("DDPJ-014",)


def plant() -> None:
    edit(WrappedReduction, "__init__", "self.future = self.future.then(", "self.future.then(")
