"""The small cap of the first bucket holds for every second one."""

from impl.ddp.plan import BucketCaps

from ..planting import edit

CLAUSES = ("DDP-004",)


def plant() -> None:
    edit(BucketCaps, "of_bucket", "min(position, len(self.sizes_bytes) - 1)", "position % len(self.sizes_bytes)")
