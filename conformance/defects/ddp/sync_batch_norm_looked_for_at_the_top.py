"""SyncBatchNorm is looked for among the direct children only."""

from impl.ddp.compat import CompatibleNames

from ..planting import edit

CLAUSES = ("DDP-017",)


def plant() -> None:
    edit(CompatibleNames, "_passing_sync_batchnorm_handle", "module.modules()", "module.children()")
