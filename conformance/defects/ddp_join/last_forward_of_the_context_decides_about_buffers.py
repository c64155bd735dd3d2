"""After a context each rank goes by its own last forward when it decides whether buffers are synchronised."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-034",)


def plant() -> None:
    edit(
        UnevenInputs, "_sync_final_model",
        "self.require_forward_param_sync, self._sync_due_after_evaluation = True, False",
        "pass",
    )
