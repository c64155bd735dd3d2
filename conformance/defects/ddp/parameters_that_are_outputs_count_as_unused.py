"""The search for unused parameters does not see one that is itself an output."""

from impl.ddp import unused

from ..planting import edit

CLAUSES = ("DDP-099",)


def plant() -> None:
    edit(
        unused,
        "reachable_parameters",
        "found = {index_of[output] for output in outputs if output.grad_fn is None and output in index_of}",
        "found = set()",
    )
