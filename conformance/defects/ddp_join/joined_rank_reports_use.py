"""A joined rank reports all parameters as used, so nobody's unused ones keep what they had."""

from impl.ddp.reducer import Reducer

from ..planting import edit

CLAUSES = ("DDPJ-030",)


def plant() -> None:
    edit(Reducer, "shadow_finish", "[False] * len", "[True] * len")
