"""Only the rank that still learns a static graph holds its buckets back; the others reduce them in another order."""

from impl.ddp.backwards import Backwards

from ..planting import edit

CLAUSES = ("DDPJ-032",)


def plant() -> None:
    edit(Backwards, "_bucket_filled", "self.facts.holds_back", "self.use.learning")
