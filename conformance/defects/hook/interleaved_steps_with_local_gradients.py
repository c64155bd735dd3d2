"""The interleaved hook steps a bucket with what it held before its reduction."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-018", "HOOK-019", "HOOK-020")


def plant() -> None:
    edit(
        OverlapSession, "on_bucket",
        "    part = self._layout.parts[index]\n",
        "    part = self._layout.parts[index]\n"
        "    if self._schedule is Schedule.INTERLEAVED and part.own:\n"
        "        before = part.bucket.views_of(bucket.buffer().clone())\n"
        "        self._begin(ddp) if index == 0 else None\n"
        "        mine = [part.bucket.parameters[place] for place in part.own]\n"
        "        self._steps.step_pairs(mine, [before[place] for place in part.own])\n",
    )
