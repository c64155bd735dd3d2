"""In overlap mode step() warns, and then steps with the gradients that are there."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("HOOK-021",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "step",
        "        return None\n",
        "        self._local_step()\n        self._current_publisher().publish()\n        return None\n",
    )
