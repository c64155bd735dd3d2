"""A joined rank reports the parameters that it used in its own last iteration."""

from impl.ddp.reducer import Reducer

from ..planting import edit

CLAUSES = ("DDPJ-030",)


def plant() -> None:
    edit(
        Reducer, "shadow_finish",
        "[False] * len(self.parameters)",
        "[index not in self._unused for index in range(len(self.parameters))]",
    )
