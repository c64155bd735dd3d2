"""The handshake goes over the default group instead of the joinable's own."""

import impl.join.plain

from ..planting import edit

CLAUSES = ("JOIN-034", "JOIN-052")
WORLDS = (3,)


def plant() -> None:
    edit(impl.join.plain, "count", "all_reduce(team, ", "all_reduce(Team.of(), ")
