"""A parameter that the reducer's list lacks is passed over."""

from impl.ddp.compat import CompatibleNames

from ..planting import edit

CLAUSES = ("DDP-147",)


def plant() -> None:
    edit(
        CompatibleNames,
        "_build_debug_param_to_name_mapping",
        "if name in self.parameters_to_ignore or",
        "if parameter not in places or name in self.parameters_to_ignore or",
    )
