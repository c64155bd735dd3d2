"""Containers inside containers are not searched."""

from impl.ddp import containers

from ..planting import edit

CLAUSES = ("DDP-102",)


def plant() -> None:
    edit(
        containers,
        "find_tensors",
        "for item in value for tensor in find_tensors(item)]",
        "for tensor in value if isinstance(tensor, torch.Tensor)]",
    )
