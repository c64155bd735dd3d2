"""Registration by enumeration does not hand the state on."""

from impl.ddp import hooks

from ..planting import edit

CLAUSES = ("COMM-023",)


def plant() -> None:
    edit(hooks, "register_ddp_comm_hook", "state=state", "state=None")
