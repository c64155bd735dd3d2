"""The join hook does not look at what it is built around, and fails later with an AttributeError."""

from impl.ddp.join_hook import _DDPJoinHook

from ..planting import edit

CLAUSES = ("DDPJ-005",)
WORLDS = (1,)


def plant() -> None:
    edit(_DDPJoinHook, "__init__", "assert isinstance(ddp, DistributedDataParallel), (", "assert ddp is not None, (")
