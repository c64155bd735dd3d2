"""device_ids and output_device are silently ignored for a module on the CPU."""

from impl.ddp import options

from ..planting import edit

CLAUSES = ("DDP-008",)


def plant() -> None:
    edit(options, "place", "is not None) and not on_one_accelerator", "is not None) and len(devices) > 1")
