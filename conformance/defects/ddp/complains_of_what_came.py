"""The error about missing gradients lists the parameters that did receive one."""

from impl.ddp.reducer import Reducer

from ..planting import edit

CLAUSES = ("DDP-062",)


def plant() -> None:
    edit(
        Reducer,
        "check_finished",
        "missing, started = self.readiness.missing(),",
        "missing, started = [i for i, need in enumerate(self.readiness._need) if need <= 0],",
    )
