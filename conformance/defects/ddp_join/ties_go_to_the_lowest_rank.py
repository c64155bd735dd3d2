"""Of several last joiners the lowest rank is the authority."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-017",)


def plant() -> None:
    edit(
        UnevenInputs, "_find_common_rank",
        "[input_rank if rank_cond else -1], device=self.device)\n"
        '    highest = collectives.all_reduce(self.reducer.team, candidate, "common rank", dist.ReduceOp.MAX)\n'
        "    found = int(highest.wait(self._watch()).item())\n",
        "[input_rank if rank_cond else 10**6], device=self.device)\n"
        '    lowest = collectives.all_reduce(self.reducer.team, candidate, "common rank", dist.ReduceOp.MIN)\n'
        "    found = int(lowest.wait(self._watch()).item())\n"
        "    found = -1 if found == 10**6 else found\n",
    )
