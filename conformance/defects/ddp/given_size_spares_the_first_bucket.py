"""A bucket size given by the user does not apply to the first bucket."""

from impl.ddp.plan import BucketCaps

from ..planting import edit

CLAUSES = ("DDP-004",)


def plant() -> None:
    edit(BucketCaps, "of", "BucketCaps((_bytes_of(cap_mib),))", "BucketCaps((MIB, _bytes_of(cap_mib)))")
