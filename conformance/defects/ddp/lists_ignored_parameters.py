"""The listing of managed parameters lists the ignored ones too."""

from impl.ddp.compat import CompatibleNames

from ..planting import edit

CLAUSES = ("DDP-152",)


def plant() -> None:
    edit(
        CompatibleNames,
        "_get_data_parallel_params",
        'if not getattr(parameter, "_ddp_ignored", False):',
        "if parameter is not None:",
    )
