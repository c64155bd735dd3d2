"""An RRef among the outputs comes back as its value."""

from impl.ddp import containers

from ..planting import edit

CLAUSES = ("DDP-115",)


def plant() -> None:
    edit(
        containers,
        "map_tensors",
        "return rpc.RRef(map_tensors(change, value.local_value()))",
        "return map_tensors(change, value.local_value())",
    )
