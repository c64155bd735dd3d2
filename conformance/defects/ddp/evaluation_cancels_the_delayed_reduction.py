"""A forward without gradients between forward and backward keeps delayed gradients from being averaged."""

from impl.ddp.delayed import DelayedReduction

from ..planting import edit

CLAUSES = ("DDP-122",)


def plant() -> None:
    asked = "if torch.is_grad_enabled():"
    edit(DelayedReduction, "after_forward", asked, f"self._due = False\n    {asked}")
