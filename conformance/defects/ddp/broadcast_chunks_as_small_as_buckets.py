"""Model state is broadcast in chunks of the size of gradient buckets, 25 MiB."""

from impl.ddp import wrapper

from ..planting import swap

CLAUSES = ("DDP-005",)


def plant() -> None:
    swap(wrapper, "BROADCAST_CHUNK_BYTES", 25 * 1024 * 1024)
