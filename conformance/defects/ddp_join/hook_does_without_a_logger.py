"""The join hook of a model that has lost its logger fails with an AttributeError."""

from impl.ddp.join_hook import _DDPJoinHook

from ..planting import edit

CLAUSES = ("DDPJ-005",)
WORLDS = (1,)


def plant() -> None:
    edit(_DDPJoinHook, "__init__", "assert ddp.logger is not None,", "assert ddp is not None,")
