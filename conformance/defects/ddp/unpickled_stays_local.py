"""An unpickled model has no hooks on its parameters, so its gradients stay local."""

from typing import Any

from impl.ddp.renewal import Renewal

from ..planting import swap

CLAUSES = ("DDP-158",)


def plant() -> None:
    def restore(self: Renewal, state: dict[str, Any]) -> None:
        right(self, state)
        self.reducer.remove_hooks()

    right = swap(Renewal, "__setstate__", restore)
