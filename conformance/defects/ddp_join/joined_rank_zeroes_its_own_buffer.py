"""A joined rank zeroes its own bucket instead of a temporary one, and with it gradients that are views."""

from impl.ddp.bucket import Bucket

from ..planting import edit

CLAUSES = ("DDPJ-010",)
WORLDS = (3,)  # a rank that is alone reduces nothing: two must be left


def plant() -> None:
    edit(Bucket, "zeros", "torch.zeros_like(self.flat)", "self.flat.zero_()")
