"""A functional optimizer is replaced by SGD, whichever it is."""

import impl.zero.arguments

from ..planting import edit

CLAUSES = ("ZERO-005",)


def plant() -> None:
    edit(
        impl.zero.arguments, "local_constructor",
        "    if inspect.isclass(optimizer_class) and issubclass(optimizer_class, torch.optim.Optimizer):\n",
        "    if overlap:\n        return torch.optim.SGD\n"
        "    if inspect.isclass(optimizer_class) and issubclass(optimizer_class, torch.optim.Optimizer):\n",
    )
