"""Every rank's bytes are read with the first rank's scale."""

from impl.ddp.hooks import quantization_hooks

from ..planting import edit

CLAUSES = ("COMM-029",)


def plant() -> None:
    edit(
        quantization_hooks,
        "_gather_and_average",
        "    for row in rows[1:]:",
        "    for row in rows[1:]:\n"
        "            row = torch.cat([rows[0][: layout.scale_bytes], row[layout.scale_bytes :]])",
    )
