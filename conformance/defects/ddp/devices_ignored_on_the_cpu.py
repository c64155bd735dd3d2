"""device_ids and output_device are silently ignored for a module on the CPU, however many."""

from impl.ddp import options

from ..planting import edit

CLAUSES = ("DDP-007", "DDP-008")


def plant() -> None:
    edit(options, "place", "is not None) and not on_one_accelerator", "is not None) and len(devices) > 1")
    edit(
        options,
        "place",
        "device_ids is not None and len(device_ids) > 1",
        "device_ids is not None and len(device_ids) > 1 and everything[0].is_cuda",
    )
    edit(options, "place", "if device_ids else None", "if device_ids and on_one_accelerator else None")
