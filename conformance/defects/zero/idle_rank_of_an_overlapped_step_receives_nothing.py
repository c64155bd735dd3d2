"""In overlap mode a rank takes part in the transfers of a bucket only if it owns a piece of some bucket."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("ZERO-030",)


def plant() -> None:
    edit(
        OverlapSession, "_step_and_send",
        "    for transfer in part.transfers:\n",
        "    for transfer in part.transfers if any(each.own for each in self._layout.parts) else ():\n",
    )
