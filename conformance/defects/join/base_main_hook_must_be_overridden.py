"""The base main hook raises, so a hook cannot override its post hook alone."""

from impl.join.hooks import JoinHook

from ..planting import swap

CLAUSES = ("JOIN-006",)


def plant() -> None:
    def main_hook(self: JoinHook) -> None:
        raise NotImplementedError(type(self).__name__)

    swap(JoinHook, "main_hook", main_hook)
