"""A device that is a plain method is called without a word, instead of being refused as no property."""

import impl.join.examine

from ..planting import edit

CLAUSES = ("JOIN-005",)


def plant() -> None:
    edit(
        impl.join.examine, "device_of",
        "device: Any = joinable.join_device",
        "device: Any = joinable.join_device() if callable(joinable.join_device) else joinable.join_device",
    )
