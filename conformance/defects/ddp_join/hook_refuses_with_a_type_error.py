"""The join hook refuses a foreign object with a TypeError."""

from impl.ddp.join_hook import _DDPJoinHook

from ..planting import edit

CLAUSES = ("DDPJ-005",)
WORLDS = (1,)


def plant() -> None:
    edit(
        _DDPJoinHook, "__init__",
        "    assert isinstance(ddp, DistributedDataParallel), (",
        "    if not isinstance(ddp, DistributedDataParallel):\n"
        '        raise TypeError("DDP join hook requires a DistributedDataParallel")\n'
        "    assert True, (",
    )
