"""A parameter that two submodules share is managed under each of its names."""

from impl.ddp import params

from ..planting import edit

CLAUSES = ("DDP-056",)


def plant() -> None:
    edit(params, "managed_parameters", "module.named_parameters()", "module.named_parameters(remove_duplicate=False)")
