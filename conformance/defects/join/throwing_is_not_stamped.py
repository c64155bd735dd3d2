"""The joinables are not told that the context throws on early termination."""

from impl.join.stamps import Stamps

from ..planting import edit

CLAUSES = ("JOIN-013", "JOIN-042", "JOIN-045")


def plant() -> None:
    edit(Stamps, "__init__", "_JoinConfig(enable, throw, ", "_JoinConfig(enable, False, ")
