"""The wrapped hook is called once more for the last bucket, to be sure that it is averaged."""

from impl.overlap.reduction import WrappedReduction

from ..planting import edit

CLAUSES = ("HOOK-009",)


def plant() -> None:
    edit(
        WrappedReduction, "__init__",
        "    self.future = hook(state, bucket)\n",
        "    self.future = hook(state, bucket)\n"
        "    if bucket.is_last():\n        self.future = hook(state, bucket)\n",
    )
