"""A joined rank sends its own shard, but takes nothing over from the others."""

from impl.zero.joining import Joining

from ..planting import edit

CLAUSES = ("ZERO-020",)


def plant() -> None:
    edit(
        Joining, "shadow_step",
        "    zero._sync_params(session.watch)\n",
        "    mine = {id(parameter) for parameter in zero._shard(self._team.rank)}\n"
        "    others = [parameter for parameter in zero._parameters() if id(parameter) not in mine]\n"
        "    before = [parameter.detach().clone() for parameter in others]\n"
        "    zero._sync_params(session.watch)\n"
        "    for parameter, value in zip(others, before, strict=True):\n"
        "        parameter.detach().copy_(value)\n",
    )
