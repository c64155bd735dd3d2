"""A registered communication hook is told the group's size as the divisor, even where the active ranks count."""

from impl.ddp.traffic import Traffic

from ..planting import edit

CLAUSES = ("DDPJ-014",)


def plant() -> None:
    edit(Traffic, "_start_hook", "divisor = self.around.divisor()", "divisor = self.team.size")
