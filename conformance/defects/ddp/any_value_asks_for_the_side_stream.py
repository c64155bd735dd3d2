"""The side stream is switched off by 0 alone, not by anything but 1."""

from impl.ddp import options

from ..planting import edit

CLAUSES = ("DDP-023",)


def plant() -> None:
    edit(options, "side_stream_wanted", '== "1"', '!= "0"')
