"""The future of a handle holds the bare number, where those of collectives hold a list."""

from impl.join.handle import Handle

from ..planting import edit

CLAUSES = ("JOIN-031",)


def plant() -> None:
    edit(Handle, "get_future", "[number(whole.value()[0])]", "number(whole.value()[0])")
