"""A joined rank puts the received learning rate in the place of the tensor that its user holds."""

from impl.zero import groups

from ..planting import edit

CLAUSES = ("ZERO-020",)


def plant() -> None:
    edit(
        groups,
        "take_settings",
        "                with torch.no_grad():\n                    held.copy_(value)",
        "                target[key] = value",
    )
