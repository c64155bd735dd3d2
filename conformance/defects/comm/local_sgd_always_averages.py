"""Local averaging cannot be switched off."""

from impl.ddp.hooks import post_localSGD_hook

from ..planting import edit

CLAUSES = ("COMM-028",)
WORLDS = (4,)


def plant() -> None:
    edit(
        post_localSGD_hook,
        "post_localSGD_hook",
        "if not state.post_local_gradient_allreduce:",
        "if state.post_local_gradient_allreduce is None:",
    )
