"""Leaving a context does not take its stamps off: the joinables go on notifying."""

from impl.join.stamps import Stamp

from ..planting import edit

CLAUSES = ("JOIN-038",)


def plant() -> None:
    edit(
        Stamp, "take_off",
        "    self._joinable._join_config = _JoinConfig.construct_disabled_join_config()\n",
        "",
    )
