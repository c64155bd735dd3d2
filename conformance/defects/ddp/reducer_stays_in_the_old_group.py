"""After a change of group the reducer goes on in the old one."""

from impl.ddp.renewal import Renewal

from ..planting import edit

CLAUSES = ("DDP-162",)
WORLDS = (3,)


def plant() -> None:
    edit(
        Renewal,
        "_update_process_group",
        "self.reducer.move_to(Team.of(new_process_group))",
        "self.reducer.start_over()",
    )
