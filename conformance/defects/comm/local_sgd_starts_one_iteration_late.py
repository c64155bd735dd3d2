"""Local averaging starts one iteration after it was asked to."""

from impl.ddp.hooks import post_localSGD_hook

from ..planting import edit

CLAUSES = ("COMM-028",)
WORLDS = (4,)


def plant() -> None:
    edit(post_localSGD_hook, "post_localSGD_hook", "state.iter >= state", "state.iter > state")
