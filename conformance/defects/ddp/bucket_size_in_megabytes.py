"""The bucket size is taken in units of a million bytes."""

import impl.ddp.plan

from ..planting import edit

CLAUSES = ("DDP-004",)


def plant() -> None:
    edit(impl.ddp.plan, "_bytes_of", "int(cap_mib * MIB)", "int(cap_mib * 1000 * 1000)")
