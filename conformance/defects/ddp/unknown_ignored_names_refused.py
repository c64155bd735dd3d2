"""A name on the ignore list that the module does not have is refused."""

from impl.ddp import params

from ..planting import edit

CLAUSES = ("DDP-150",)


def plant() -> None:
    edit(
        params,
        "ignore",
        "    for name, tensor in _all_names(module):",
        "    unknown = plain - {name for name, _ in _all_names(module)}\n"
        "    if unknown:\n"
        '        raise ValueError(f"the module has no {unknown}")\n'
        "    for name, tensor in _all_names(module):",
    )
