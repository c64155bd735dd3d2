"""The dump of the environment leaves out what is not set."""

from impl.ddp import compat

from ..planting import edit

CLAUSES = ("DDP-024",)


def plant() -> None:
    edit(
        compat,
        "_dump_DDP_relevant_env_vars",
        "for name in _RELEVANT_VARIABLES:",
        "for name in filter(os.environ.get, _RELEVANT_VARIABLES):",
    )
