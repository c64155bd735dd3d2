"""What is not compressed, biases for instance, is not averaged."""

from impl.ddp.hooks import powerSGD_hook

from ..planting import edit

CLAUSES = ("COMM-026",)


def plant() -> None:
    edit(
        powerSGD_hook._Exchange,
        "decompress",
        "self.gradients[position].copy_(slot)",
        "slot.copy_(self.gradients[position])",
    )
