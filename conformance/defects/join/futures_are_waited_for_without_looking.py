"""A rank that waits for a reduction of an overlapped step does not look out for failed peers."""

from impl.overlap import waiting

from ..planting import edit

CLAUSES = ("JOIN-024",)


def plant() -> None:
    edit(waiting, "wait_for", "            watch()\n", "            pass\n")
