"""Bucket views are not ignored in overlap mode: the parameters are moved all the same."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-006",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "__init__",
        "        if parameters_as_bucket_view:\n",
        "        if parameters_as_bucket_view:\n"
        "            self.parameters_as_bucket_view = True\n"
        "            self._look_at_trainability()\n"
        "            self._current_publisher()\n",
    )
