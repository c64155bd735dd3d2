"""A joined rank forgets the one agreement of a static graph on what nobody uses, and waits for another."""

from impl.ddp.reducer import Reducer

from ..planting import edit

CLAUSES = ("DDPJ-032",)


def plant() -> None:
    edit(
        Reducer, "shadow_finish",
        "untouched = self._agree_on_use([False] * len(self.parameters))",
        "untouched = self.traffic.agree_on_use([False] * len(self.parameters), self.buckets[0].spec.device)",
    )
