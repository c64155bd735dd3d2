"""The log has no entry about rebuilt buckets unless there are some."""

from impl.ddp.log import DDPLogger

from ..planting import edit

CLAUSES = ("DDP-144",)


def plant() -> None:
    edit(DDPLogger, "__init__", 'self._data["has_rebuilt_buckets"] = 0', "pass")
