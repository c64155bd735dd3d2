"""Where a hook replaces the buffer by a part of another tensor, the gradients are those of the tensor's beginning."""

from impl.ddp.bucket import GradBucket

from ..planting import edit

CLAUSES = ("COMM-016",)


def plant() -> None:
    edit(GradBucket, "set_buffer", "buffer.storage_offset() - self._flat.storage_offset()", "0")
