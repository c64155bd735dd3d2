"""How one rank's messages travel: posted as a sum over the ranks, read by each of them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from ..comm import collectives
from ..comm.pending import Pending, Watch
from ..comm.ranks import Team
from .message import Act, Layout, Reading


class Exchange:
    """Posts and reads the messages of one context. What it has made or understood once it keeps, for few differ."""

    def __init__(self, team: Team, device: torch.device, layout: Layout) -> None:
        self._team = team
        self._device = device  # of the joinables: what users are handed lies there
        self._control = team.control_device(device)
        self._layout = layout
        self._ready: dict[tuple[int | None, Act | None], torch.Tensor] = {}  # messages of this rank, to be cloned
        self._understood: dict[tuple[int, ...], Reading] = {}
        self.last_word_s = 0.0  # when this rank posted its latest message

    def post(self, begins: int | None, act: Act | None, iterations: int, label: str) -> Pending:
        """Post what this rank says while it is live."""
        if iterations > 1:
            return self._post(self._tensor(self._layout.live(self._team.rank, begins, act, iterations)), label)
        ready = self._ready.get((begins, act))
        if ready is None:  # made from Python numbers only once, as that costs more than a copy
            ready = self._ready[begins, act] = self._tensor(self._layout.live(self._team.rank, begins, act))
        return self._post(ready.clone(), label)

    def answer(self, words: Sequence[int]) -> Pending:
        """Post the words of a rank that has run out."""
        return self._post(self._tensor(words), "Join: message of a joined rank")

    def read(self, pending: Pending, watch: Watch) -> Reading:
        """What a message says, once it has come; ``RanksDisagree`` if live ranks are at different places."""
        sums = tuple(pending.read(watch))
        reading = self._understood.get(sums)
        if reading is None:
            reading = self._understood[sums] = self._layout.read(sums)
        return reading

    def active(self, sums: torch.Tensor) -> torch.Tensor:
        """The number of active ranks that a message told of: one element."""
        number = self._layout.read(sums.tolist()).active
        return torch.tensor([number], dtype=torch.float32, device=self._device)

    def _post(self, message: torch.Tensor, label: str) -> Pending:
        self.last_word_s = time.monotonic()
        return collectives.all_reduce(self._team, message, label)

    def _tensor(self, words: Sequence[int]) -> torch.Tensor:
        return torch.tensor(words, dtype=torch.int64, device=self._control)
