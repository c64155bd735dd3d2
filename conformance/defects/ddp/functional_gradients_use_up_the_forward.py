"""After torch.autograd.grad the backward through the same forward stays local."""

from impl.ddp.backwards import Backwards

from ..planting import edit

CLAUSES = ("DDP-065",)


def plant() -> None:
    asked = "if ticket.context is None and not kernels"
    edit(Backwards, "begin", asked, f"ticket.spent = True\n    {asked}")
