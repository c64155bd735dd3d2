"""An optimizer that cannot step a single parameter is accepted."""

from impl.ddp.hooks.optimizer_overlap_hooks import _OptimizerHookState

from ..planting import edit

CLAUSES = ("COMM-030",)


def plant() -> None:
    edit(
        _OptimizerHookState,
        "__init__",
        "if not callable(getattr(functional_optim, _STEP_METHOD, None)):",
        "if functional_optim is None:",
    )
