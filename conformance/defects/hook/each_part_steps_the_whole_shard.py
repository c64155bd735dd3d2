"""A partial step shows the local optimizer its whole shard, so early buckets are stepped again with every later one."""

from impl.zero.overlapping import PartialSteps

from ..planting import edit

CLAUSES = ("HOOK-018", "HOOK-022")


def plant() -> None:
    edit(
        PartialSteps, "step_pairs",
        '            group["params"] = part\n',
        "            pass\n",
    )
