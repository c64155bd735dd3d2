"""A second fused optimizer takes the place of the first before it is refused."""

from impl.ddp import fused_optimizer

from ..planting import edit

CLAUSES = ("DDP-133",)

OCCUPY = '    ddp._occupy_hook_slot(None, allreduce_hook, f"fused {optim.__name__}")\n'
KEEP = "    ddp._fused_optimizer = optim(chosen, *args, **kwargs)\n"


def plant() -> None:
    edit(fused_optimizer, "register", OCCUPY + KEEP, KEEP + OCCUPY)
