"""A joined rank takes part in the broadcast of the buffers, but does not keep what it receives."""

from impl.ddp.wrapper import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDPJ-025",)


def plant() -> None:
    edit(
        DistributedDataParallel, "_broadcast_buffers",
        "self.modules_buffers, source",
        "[b.clone() for b in self.modules_buffers] if self._join_session and self._join_session.shadowing"
        " else self.modules_buffers, source",
    )
