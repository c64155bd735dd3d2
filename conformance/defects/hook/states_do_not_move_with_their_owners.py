"""When owners change with the rebuilt buckets, the states stay behind."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("HOOK-018",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "_move_to",
        "self._load_local({parameters[index]: held[index] for index in owned if index in held})",
        "pass",
    )
