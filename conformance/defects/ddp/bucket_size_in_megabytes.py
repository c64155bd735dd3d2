"""The bucket size is taken in units of a million bytes."""

from impl.ddp.plan import BucketCaps

from ..planting import edit

CLAUSES = ("DDP-004",)


def plant() -> None:
    edit(BucketCaps, "of", "int(cap_mib * MIB)", "int(cap_mib * 1000 * 1000)")
