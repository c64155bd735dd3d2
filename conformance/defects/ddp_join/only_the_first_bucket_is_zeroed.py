"""A joined rank sends zeros for its first bucket only, and then what its buffers hold."""

from impl.ddp.reducer import Reducer

from ..planting import edit

CLAUSES = ("DDPJ-009", "DDPJ-033")


def plant() -> None:
    edit(
        Reducer, "shadow_bucket",
        "zeros = bucket.zeros()",
        "zeros = bucket.zeros() if bucket.flat is None or not self._shadow_flights else bucket.flat.clone()",
    )
