"""A joined rank contributes the gradients of its last iteration."""

from impl.ddp.reducer import Reducer

from ..planting import edit

CLAUSES = ("DDPJ-007", "DDPJ-009", "DDPJ-033")


def plant() -> None:
    edit(
        Reducer, "shadow_bucket",
        "zeros = bucket.zeros()",
        "zeros = bucket.collect(()).clone() if bucket.flat is not None else bucket.zeros()",
    )
