"""Only the first piece of a sharded bucket is broadcast."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-026", "HOOK-028")


def plant() -> None:
    edit(OverlapSession, "_step_and_send", "for transfer in part.transfers:", "for transfer in part.transfers[:1]:")
