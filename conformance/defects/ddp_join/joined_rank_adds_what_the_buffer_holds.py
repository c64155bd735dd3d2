"""A joined rank sends its bucket as the last reduction has left it, without zeroing it."""

from impl.ddp.bucket import Bucket

from ..planting import edit

CLAUSES = ("DDPJ-009", "DDPJ-033")


def plant() -> None:
    edit(Bucket, "zeros", "torch.zeros_like(self.flat)", "self.flat.clone()")
