"""Parameters that travel together are laid out by their strides, and taken for rows from then on."""

from impl.overlap import layout

from ..planting import edit

CLAUSES = ("HOOK-018",)


def plant() -> None:
    rows = "view.as_strided(view.shape, view.new_empty(view.shape).stride())"
    edit(layout, "_flattened", "member.data = view", f"member.data = {rows}")
