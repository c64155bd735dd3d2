"""Leaving a context sets a filter for warnings, for the whole process and for good."""

from impl.join.passage import Passage

from ..planting import edit

CLAUSES = ("JOIN-037",)


def plant() -> None:
    edit(
        Passage, "end",
        "    self._move(Phase.ENDING)",
        '    warnings.simplefilter("once")\n    self._move(Phase.ENDING)',
    )
