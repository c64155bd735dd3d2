"""Every call of the hook is given a copy of the state."""

from impl.ddp.traffic import Traffic

from ..planting import edit

CLAUSES = ("COMM-012",)


def plant() -> None:
    edit(
        Traffic,
        "_start_hook",
        "    state, function = hook",
        "    import copy\n    state, function = copy.copy(hook[0]), hook[1]",
    )
