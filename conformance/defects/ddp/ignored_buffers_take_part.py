"""Buffers on the ignore list are synchronised like others."""

from impl.ddp import params

from ..planting import swap

CLAUSES = ("DDP-085", "DDP-149")


def plant() -> None:
    swap(params, "managed_buffers", lambda module, ignored: dict(module.named_buffers()))
