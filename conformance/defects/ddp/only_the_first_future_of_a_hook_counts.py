"""Of the futures that a buffer hook returns only the first is waited for."""

from impl.ddp.buffers import _BufferCommHook

from ..planting import edit

CLAUSES = ("DDP-095",)


def plant() -> None:
    edit(_BufferCommHook, "call", "return list(futures) if", "return list(futures)[:1] if")
