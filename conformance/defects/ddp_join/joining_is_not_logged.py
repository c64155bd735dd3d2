"""Making the join hook is not noted in the model's log."""

from impl.ddp.join_hook import _DDPJoinHook

from ..planting import edit

CLAUSES = ("DDPJ-006",)


def plant() -> None:
    edit(_DDPJoinHook, "__init__", "    ddp.logger._set_uneven_input_join()\n", "")
