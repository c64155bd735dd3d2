"""A rank runs its post hooks when it has run out of inputs itself, before the others have."""

from impl.join.context import Join

from ..planting import edit

CLAUSES = ("JOIN-027", "JOIN-029")


def plant() -> None:
    edit(
        Join, "_shadow_and_finish",
        "    is_last_joiner = passage.shadow()\n    passage.end()\n"
        "    for hook in self._join_hooks:\n        hook.post_hook(is_last_joiner)\n",
        "    for hook in self._join_hooks:\n        hook.post_hook(False)\n"
        "    passage.shadow()\n    passage.end()\n",
    )
