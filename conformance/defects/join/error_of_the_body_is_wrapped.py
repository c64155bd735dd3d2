"""What the body raises comes out wrapped in a RuntimeError."""

from impl.join.passage import Passage

from ..planting import edit

CLAUSES = ("JOIN-023",)


def plant() -> None:
    edit(
        Passage, "report",
        "    if self._notes is None",
        "    if not isinstance(error, SharedError):\n"
        '        raise RuntimeError("the training loop has failed") from error\n'
        "    if self._notes is None",
    )
