"""A sampling rate of 0 is accepted."""

from impl.ddp.compat import CompatibleNames

from ..planting import edit

CLAUSES = ("DDP-142",)


def plant() -> None:
    edit(CompatibleNames, "_set_ddp_runtime_logging_sample_rate", "sample_rate < 1", "sample_rate < 0")
