"""The factors of the last iteration are taken up again although the user turned that off."""

from impl.ddp.hooks.powerSGD_hook import _Exchange

from ..planting import edit

CLAUSES = ("COMM-026",)


def plant() -> None:
    edit(_Exchange, "_start_factors", " if self.state.warm_start else None", "")
    edit(_Exchange, "decompress", "if self.state.warm_start:", "if True:")
