"""Works of classes in Python that demand a timeout are waited for without one."""

from impl.comm import pending

from ..planting import swap

CLAUSES = ("DDP-049",)


def plant() -> None:
    swap(pending, "_wait_without_limit", lambda work: work.wait())
