"""Of several transfers only the first is waited for and unpacked."""

from impl.zero.publish import Publisher

from ..planting import edit

CLAUSES = ("ZERO-008",)


def plant() -> None:
    edit(
        Publisher, "publish",
        "        for transfer in transfers:\n            transfer.finish(",
        "        for transfer in transfers[:1]:\n            transfer.finish(",
    )
