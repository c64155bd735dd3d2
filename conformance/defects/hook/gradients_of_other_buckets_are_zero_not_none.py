"""A partial step gives the parameters of other buckets zero gradients, so decay and momentum move them."""

from impl.zero.overlapping import PartialSteps

from ..planting import edit

CLAUSES = ("HOOK-018", "HOOK-022")


def plant() -> None:
    edit(
        PartialSteps, "step_pairs",
        '            group["params"] = part\n',
        '            shown_here = set(map(id, part))\n'
        '            for other in group["params"]:\n'
        "                if id(other) not in shown_here:\n"
        "                    other.grad = torch.zeros_like(other)\n",
    )
