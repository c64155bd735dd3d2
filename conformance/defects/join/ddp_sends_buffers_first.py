"""DDP sends its buffers before it tells the context that an iteration begins."""

from impl.ddp.wrapper import DistributedDataParallel

from ..planting import edit

CLAUSES = ("JOIN-053",)


def plant() -> None:
    edit(
        DistributedDataParallel, "_pre_forward",
        "    self._begin_iteration(due, sync=sync)\n"
        "    for place, stage in enumerate(due):\n"
        "        if place > 0:\n            self._announce(stage)\n"
        "        stages.perform(self, stage)\n",
        "    for place, stage in enumerate(due):\n"
        "        if place > 0:\n            self._announce(stage)\n"
        "        stages.perform(self, stage)\n"
        "    self._begin_iteration(due, sync=sync)\n",
    )
