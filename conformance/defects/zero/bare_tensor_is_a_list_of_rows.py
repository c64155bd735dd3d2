"""A bare tensor is taken for the list of its rows."""

import impl.zero.arguments

from ..planting import edit

CLAUSES = ("ZERO-002",)


def plant() -> None:
    edit(impl.zero.arguments, "_listed", "if isinstance(params, torch.Tensor):", "if params is None:")
