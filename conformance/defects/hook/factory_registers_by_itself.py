"""A factory registers the hook that it makes, so the user's registration is refused."""

import impl.overlap.hooks

from ..planting import edit

CLAUSES = ("HOOK-007",)


def plant() -> None:
    edit(
        impl.overlap.hooks, "_make",
        "    return hook_with_zero_fn\n",
        "    ddp.register_comm_hook(ddp.process_group, hook_with_zero_fn)\n    return hook_with_zero_fn\n",
    )
