"""The note of the buckets is made once and stays when DDP has rebuilt them."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-015",)


def plant() -> None:
    edit(
        OverlapSession, "_lay_out",
        "info.params_per_bucket = [list(",
        "info.params_per_bucket = info.params_per_bucket or [list(",
    )
