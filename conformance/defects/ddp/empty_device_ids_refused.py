"""An empty list of device ids is taken for given devices."""

from impl.ddp import options

from ..planting import edit

CLAUSES = ("DDP-008",)


def plant() -> None:
    edit(options, "place", "(device_ids or output_device", "(device_ids is not None or output_device")
