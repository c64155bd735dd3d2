"""Leaving the context suppresses what the body has raised."""

from impl.join.context import Join

from ..planting import swap

CLAUSES = ("JOIN-023",)


def plant() -> None:
    def leave(self: Join, kind: object, error: BaseException | None, trace: object) -> bool:
        right(self, kind, error, trace)
        return isinstance(error, Exception)

    right = swap(Join, "__exit__", leave)
