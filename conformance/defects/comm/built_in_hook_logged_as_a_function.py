"""A built-in hook is logged by its function's name."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("COMM-011",)


def plant() -> None:
    edit(DistributedDataParallel, "_register_builtin_comm_hook", "str(kind)", "hook.__qualname__")
