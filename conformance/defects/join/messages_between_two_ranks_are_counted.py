"""Whether ranks are in step is told by all that they have started, messages between two of them included."""

from impl.comm import sharded

from ..planting import edit

CLAUSES = ("DDPJ-034",)


def plant() -> None:
    for name in ("send", "receive"):
        edit(sharded, name, "    trace.note(label)\n", "    trace.note(label)\n    team.tally.count()\n")
