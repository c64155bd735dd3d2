"""Parameters are moved into flat tensors without being asked to."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-012",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "_current_publisher",
        "self._sent, self.parameters_as_bucket_view",
        "self._sent, True",
    )
