"""A location for a buffer hook is kept as it is given; one of torch's enumeration is none of ours, and nothing runs."""

from impl.ddp.buffers import _BufferCommHookLocation

from ..planting import swap

CLAUSES = ("DDP-094",)


def plant() -> None:
    swap(_BufferCommHookLocation, "of", lambda location: location)
