"""What accumulated under no_sync is divided by the ranks that were active when that began."""

from impl.ddp.uneven import UnevenInputs
from impl.ddp.wrapper import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDPJ-008",)


def plant() -> None:
    begin, session = "self.require_backward_grad_sync = False", "self._join_session"
    counted = f'vars(self).setdefault("counted", {session} and {session}.active)'
    edit(DistributedDataParallel, "no_sync", begin, f"{begin}\n    {counted}")
    edit(UnevenInputs, "_divisor", f"return {session}.active", f'return vars(self).get("counted") or {session}.active')
    end = "if self._in_backward is not None:"
    edit(DistributedDataParallel, "_on_delivered", end, f'vars(self).pop("counted", None)\n    {end}')
