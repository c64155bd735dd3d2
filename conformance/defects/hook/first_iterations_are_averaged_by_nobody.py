"""Until the buckets are rebuilt the wrapped hook is not called, so gradients stay local."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-009", "HOOK-010")


def plant() -> None:
    edit(
        OverlapSession, "on_bucket",
        "    ddp, index = self._live_ddp(), bucket.index()\n",
        "    ddp, index = self._live_ddp(), bucket.index()\n"
        "    if not ddp.reducer.rebuilt:\n"
        "        untouched = torch.futures.Future()\n"
        "        untouched.set_result(bucket.buffer())\n"
        "        return untouched\n",
    )
