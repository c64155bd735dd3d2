"""Without a logger the logging data are empty instead of an assertion failure."""

from impl.ddp.compat import CompatibleNames

from ..planting import edit

CLAUSES = ("DDP-148",)


def plant() -> None:
    edit(
        CompatibleNames,
        "_get_ddp_logging_data",
        'assert self.logger is not None, "logging data require the logger"',
        "if self.logger is None: return {}",
    )
