"""A list that begins with a tensor is taken for a list of tensors."""

import impl.zero.arguments

from ..planting import edit

CLAUSES = ("ZERO-002",)


def plant() -> None:
    edit(
        impl.zero.arguments, "checked_groups",
        "if all(isinstance(item, torch.Tensor) for item in items):",
        "if isinstance(items[0], torch.Tensor):",
    )
