"""An empty list of delayed parameters counts as not given."""

from impl.ddp import options

from ..planting import edit

CLAUSES = ("DDP-014",)


def plant() -> None:
    edit(options, "check_delay_pair", "(named is None) != (trigger is None)", "bool(named) != (trigger is not None)")
