"""A model may be pickled if its group has all ranks, though it is not the default one."""

from impl.ddp.renewal import Renewal

from ..planting import edit

CLAUSES = ("DDP-156",)


def plant() -> None:
    edit(
        Renewal,
        "_check_default_group",
        "self.process_group is not default",
        "self.process_group.size() != default.size()",
    )
