"""Sparse gradients are expected of Embedding, not of EmbeddingBag."""

from impl.ddp import params

from ..planting import edit

CLAUSES = ("DDP-057",)


def plant() -> None:
    edit(params, "managed_parameters", "(nn.Embedding, nn.EmbeddingBag)", "nn.Embedding")
