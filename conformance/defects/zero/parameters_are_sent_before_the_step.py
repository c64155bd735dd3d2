"""The owners send their parameters before they step them."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-008",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "step",
        "    loss = self._local_step(closure=closure, **kwargs)\n    self._sync_params()\n",
        "    self._sync_params()\n    loss = self._local_step(closure=closure, **kwargs)\n",
    )
