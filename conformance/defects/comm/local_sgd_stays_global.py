"""After the start gradients are still averaged over the whole group."""

from impl.ddp.hooks import post_localSGD_hook

from ..planting import edit

CLAUSES = ("COMM-028",)
WORLDS = (4,)


def plant() -> None:
    edit(
        post_localSGD_hook,
        "post_localSGD_hook",
        "allreduce_hook(state.subgroup, bucket)",
        "allreduce_hook(state.process_group, bucket)",
    )
