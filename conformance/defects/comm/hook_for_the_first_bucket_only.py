"""The hook reduces the first bucket; the others take the ordinary way."""

from impl.ddp.traffic import Traffic

from ..planting import edit

CLAUSES = ("COMM-001", "COMM-012")


def plant() -> None:
    edit(Traffic, "start", "if self.hook is not None:", "if self.hook is not None and not bucket.spec.index:")
