"""Registration by enumeration gives PowerSGD the bare group as its state."""

from functools import partial
from typing import Any

from impl.ddp import hooks

from ..planting import swap

CLAUSES = ("COMM-023",)


def plant() -> None:
    def register(comm_hook_type: Any, model: Any, state: Any = None) -> None:
        value: partial[None] = comm_hook_type.value
        model.register_comm_hook(state, value.keywords["comm_hook"])

    swap(hooks, "register_ddp_comm_hook", register)
