"""Entering waits until all ranks have entered."""

from impl.join.passage import Passage

from ..planting import edit

CLAUSES = ("JOIN-021",)


def plant() -> None:
    edit(
        Passage, "enter",
        "    self._notes = FailureNotes.of(self.team)\n",
        "    self._notes = FailureNotes.of(self.team)\n"
        "    torch.distributed.all_reduce(torch.zeros(1, device=self.device), group=self.team.group)\n",
    )
