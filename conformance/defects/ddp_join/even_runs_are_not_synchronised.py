"""The final model is broadcast only if some rank has joined before the others."""

from impl.ddp.join_hook import _DDPJoinHook

from ..planting import edit

CLAUSES = ("DDPJ-016", "DDPJ-018")


def plant() -> None:
    edit(
        _DDPJoinHook, "post_hook",
        "    self.ddp._sync_final_model(is_last_joiner)",
        "    if not self.ddp._join_session.everyone_active:\n        self.ddp._sync_final_model(is_last_joiner)",
    )
