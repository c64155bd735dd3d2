"""Inside a context buffers come from rank 0, which may have joined long ago."""

from impl.ddp.uneven import UnevenInputs

from ..planting import swap

CLAUSES = ("DDPJ-024", "DDPJ-022")
WORLDS = (3,)


def plant() -> None:
    swap(UnevenInputs, "_source", lambda self: 0)
