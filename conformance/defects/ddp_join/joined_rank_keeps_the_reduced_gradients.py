"""A joined rank takes the reduced gradients into its own .grad."""

from impl.ddp.reducer import Reducer

from ..planting import edit

CLAUSES = ("DDPJ-010",)


def plant() -> None:
    edit(
        Reducer, "shadow_finish",
        "self.traffic.result(bucket, flight)",
        "bucket.deliver(*(self.traffic.result(bucket, flight)[:1]), untouched)",
    )
