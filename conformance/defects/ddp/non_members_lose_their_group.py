"""A rank outside of the new group loses its group."""

from impl.ddp.renewal import Renewal

from ..planting import edit

CLAUSES = ("DDP-163",)


def plant() -> None:
    edit(
        Renewal,
        "_update_process_group",
        "        self.reducer.start_over()",
        "        self.process_group = new_process_group\n        self.reducer.start_over()",
    )
