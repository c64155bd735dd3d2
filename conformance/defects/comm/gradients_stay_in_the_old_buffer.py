"""After a bucket's buffer was replaced its gradients still show the old one."""

from impl.ddp.bucket import GradBucket

from ..planting import edit

CLAUSES = ("COMM-016",)


def plant() -> None:
    edit(
        GradBucket, "set_buffer", "buffer.as_strided(view.size(), view.stride(), view.storage_offset() + shift)", "view"
    )
