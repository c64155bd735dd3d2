"""In overlap mode a joined rank steps with the settings that it had when it ran out of inputs."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("ZERO-031",)


def plant() -> None:
    edit(OverlapSession, "_begin", "if ddp._join_session is not None:", "if False:")
