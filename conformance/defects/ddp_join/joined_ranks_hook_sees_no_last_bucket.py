"""On a joined rank the communication hook is never told that a bucket is the last one."""

from impl.ddp.reducer import Reducer

from ..planting import edit

CLAUSES = ("DDPJ-033",)


def plant() -> None:
    edit(Reducer, "shadow_bucket", "last=self._is_last(bucket))", "last=False)")
