"""The function that a factory makes takes its arguments in the wrong order."""

import impl.overlap.hooks

from ..planting import edit

CLAUSES = ("HOOK-007", "HOOK-018")


def plant() -> None:
    edit(
        impl.overlap.hooks, "_make",
        "hook_with_zero_fn(state: Any, bucket: GradBucket)",
        "hook_with_zero_fn(bucket: GradBucket, state: Any)",
    )
