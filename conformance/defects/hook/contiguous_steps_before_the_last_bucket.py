"""The contiguous hook begins to step in the hook of the last bucket but one."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-030", "HOOK-048")


def plant() -> None:
    edit(
        OverlapSession, "_advance",
        "due = due if last else 0",
        "due = due if last else due - 1 if due >= len(self._layout.parts) - 1 else 0",
    )
