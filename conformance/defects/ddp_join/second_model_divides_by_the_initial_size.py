"""Only the first model of a context divides by the active ranks."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-015",)


def plant() -> None:
    edit(
        UnevenInputs, "_divisor",
        "if self._join_session is None or",
        "if self._join_session is None or not self._join_config.is_first_joinable or",
    )
