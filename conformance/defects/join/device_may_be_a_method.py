"""A device that is a plain method is called without a word, instead of being refused as no property."""

import impl.join.examine
from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-005",)

IF_METHOD = "joinable.join_device() if callable(joinable.join_device) else joinable.join_device"


def plant() -> None:
    edit(impl.join.examine, "device_of", "Any = joinable.join_device\n", f"Any = {IF_METHOD}\n")
    edit(PlainPassage, "notify", "torch.device(joinable.join_device)", f"torch.device({IF_METHOD})")
