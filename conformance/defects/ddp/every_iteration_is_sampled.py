"""Run-time statistics are refreshed in every iteration, whatever the rate."""

from impl.ddp.log import DDPLogger

from ..planting import edit

CLAUSES = ("DDP-143",)


def plant() -> None:
    edit(DDPLogger, "step_done", "iteration > _EARLY_ITERATIONS and iteration % self.sample_rate != 0", "iteration < 0")
