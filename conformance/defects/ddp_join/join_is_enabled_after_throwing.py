"""join() hands enable and throw_on_early_termination on in the wrong order."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-003",)


def plant() -> None:
    edit(
        UnevenInputs, "join",
        "[self], enable, throw_on_early_termination,",
        "[self], throw_on_early_termination, enable,",
    )
