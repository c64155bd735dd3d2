"""The log has the hook's bare name instead of the qualified one."""

from impl.ddp.hooks import validation

from ..planting import edit

CLAUSES = ("COMM-011",)


def plant() -> None:
    edit(
        validation,
        "hook_name",
        'getattr(hook, "__qualname__", type(hook).__qualname__)',
        'getattr(hook, "__name__", type(hook).__name__)',
    )
