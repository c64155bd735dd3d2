"""The join hook can be built around a model that has lost its logger."""

from impl.ddp.join_hook import _DDPJoinHook

from ..planting import edit

CLAUSES = ("DDPJ-005",)
WORLDS = (1,)


def plant() -> None:
    edit(
        _DDPJoinHook, "__init__",
        "    ddp.logger._set_uneven_input_join()\n",
        "    if ddp.logger is not None:\n        ddp.logger._set_uneven_input_join()\n",
    )
