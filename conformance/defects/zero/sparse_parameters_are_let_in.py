"""Sparse parameters are not refused."""

import impl.zero.arguments

from ..planting import edit

CLAUSES = ("ZERO-004",)


def plant() -> None:
    edit(impl.zero.arguments, "check_alike", "if parameter.layout != torch.strided:", "if parameter.layout is None:")
