"""The factors of the last iteration are not taken up again."""

from impl.ddp.hooks.powerSGD_hook import _Exchange

from ..planting import edit

CLAUSES = ("COMM-026",)


def plant() -> None:
    edit(_Exchange, "_start_factors", "self.state.q_memory_dict.get(self.index) if self.state.warm_start else ", "")
