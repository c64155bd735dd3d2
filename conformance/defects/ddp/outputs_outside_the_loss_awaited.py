"""With detection on, parameters behind outputs that are not in the loss are waited for in vain."""

from typing import Any

from impl.ddp.readiness import Readiness
from impl.ddp.ticket import OutputSink, announce_backward

from ..planting import edit, swap

CLAUSES = ("DDP-101",)


def plant() -> None:
    def tie(begin: Any, ticket: Any, clone: bool, outputs: Any) -> Any:
        announce_backward(outputs, ticket, begin)
        return tuple(outputs)

    swap(OutputSink, "tie", tie)
    edit(Readiness, "backward_ended", "elif self._use.searched:", "elif self._use.searched and not self._order:")
