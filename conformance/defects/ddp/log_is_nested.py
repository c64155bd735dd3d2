"""The logging data keep what was built apart from what was run."""

from impl.ddp.log import DDPLogger

from ..planting import edit

CLAUSES = ("DDP-144",)


def plant() -> None:
    edit(
        DDPLogger,
        "_get_ddp_logging_data",
        "return dict(self._data)",
        'return {**self._data, "environment": dict(os.environ)}',
    )
