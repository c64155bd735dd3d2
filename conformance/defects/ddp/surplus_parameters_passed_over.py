"""Parameters without a name in the module are passed over."""

from impl.ddp.compat import CompatibleNames

from ..planting import edit

CLAUSES = ("DDP-147",)


def plant() -> None:
    edit(
        CompatibleNames,
        "_build_debug_param_to_name_mapping",
        "if len(places) != len(names):",
        "if len(places) < len(names):",
    )
