"""After a change of group the buckets stay as they were rebuilt."""

from impl.ddp.reducer import Reducer
from impl.ddp.renewal import Renewal

from ..planting import edit

CLAUSES = ("DDP-164",)


def plant() -> None:
    edit(Renewal, "_update_process_group", "self._has_rebuilt_buckets = False", "pass")
    edit(Reducer, "move_to", "self.start_over()", "self.abandon()")
