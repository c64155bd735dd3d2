"""The logging data are empty until the first iteration."""

from impl.ddp.log import DDPLogger

from ..planting import edit

CLAUSES = ("DDP-144",)


def plant() -> None:
    edit(
        DDPLogger,
        "_get_ddp_logging_data",
        "return dict(self._data)",
        "return dict(self._data) if self._iterations else {}",
    )
