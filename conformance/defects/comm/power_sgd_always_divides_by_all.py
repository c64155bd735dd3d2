"""PowerSGD divides by the number of all ranks where the active ones were asked for."""

from impl.ddp.hooks.powerSGD_hook import _Exchange

from ..planting import edit

CLAUSES = ("DDPJ-014",)


def plant() -> None:
    edit(_Exchange, "__init__", "divisor_of(self.team, bucket)", "self.team.size")
