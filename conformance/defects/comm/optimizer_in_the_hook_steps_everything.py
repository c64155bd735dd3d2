"""An optimizer in the hook steps all parameters, not only those that it was given."""

from impl.ddp.hooks.optimizer_overlap_hooks import _OptimizerHookState

from ..planting import edit

CLAUSES = ("COMM-030",)


def plant() -> None:
    edit(
        _OptimizerHookState,
        "wants",
        "return self.params_to_optimize is None or parameter in self.params_to_optimize",
        "return True",
    )
