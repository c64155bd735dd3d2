"""The control channel of a session: each rank's messages, posted as sums over the ranks and read by all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ..comm import collectives
from ..comm.pending import Pending, Watch
from ..comm.ranks import Team
from ..errors import SharedError
from .message import MOST_ITERATIONS, Act, MessageLayout, Reading


class ControlChannel:
    """Posts and reads the messages of one session. What it has made or understood once it keeps, for few differ.

    One message of a live rank at a time is in flight. Every rank reads every message.
    """

    def __init__(
        self, team: Team, device: torch.device, layout: MessageLayout, tell: Callable[[SharedError], None]
    ) -> None:
        self._team = team
        self._tell = tell  # of what all ranks raise where they read
        self._device = device  # of the joinables: what users are handed lies there
        self._control = team.control_device(device)
        self._layout = layout
        self._ready: dict[tuple[int | None, Act | None], torch.Tensor] = {}  # messages of this rank, to be cloned
        self._understood: dict[tuple[int, ...], Reading] = {}
        #: this rank's message while it is live, until the session reads it
        self.in_flight: Pending | None = None
        #: the joinable whose iteration has begun with some rank absent, until a message reports it
        self.unreported: int | None = None
        self._unreported_iterations = 0  # more than one only where this rank is alone
        self.last_post_s = 0.0  # when this rank posted its latest message
        self.posted = 0  # how many it has posted

    def lay_out(self, layout: MessageLayout) -> None:
        """Messages have another shape from now on. Only where nothing is in flight."""
        self._layout, self._ready, self._understood = layout, {}, {}

    # on live ranks

    @property
    def is_full(self) -> bool:
        """Whether no message could report a further iteration."""
        return self._unreported_iterations >= MOST_ITERATIONS

    def begin_unreported(self, place: int) -> None:
        """An iteration of this joinable begins, and the next message of this rank is to report it."""
        self.unreported = place
        self._unreported_iterations += 1

    def call_roll(self, place: int, act: Act | None) -> Pending:
        """Post that an iteration of this joinable begins, and which act follows."""
        return self._post_live(place, act, f"Join: roll call of {self._layout.names[place]}")

    def announce(self, act: Act) -> None:
        """Post that this act follows, and what is unreported."""
        self._post_live(self.unreported, act, f"Join: announcement of {self._layout.name_of(act)}")

    def _post_live(self, begins: int | None, act: Act | None, label: str) -> Pending:
        iterations, self.unreported, self._unreported_iterations = max(self._unreported_iterations, 1), None, 0
        if iterations > 1:
            message = self._tensor(self._layout.live(self._team.rank, begins, act, iterations))
        else:
            ready = self._ready.get((begins, act))
            if ready is None:  # made from Python numbers only once, as that costs more than a copy
                ready = self._ready[begins, act] = self._tensor(self._layout.live(self._team.rank, begins, act))
            message = ready.clone()
        self.in_flight = self._post(message, label)
        return self.in_flight

    # on ranks that have run out

    def post_end(self, exhausted: bool) -> Pending:
        """Post the first message of a rank that has run out, which reports what it went through alone."""
        begins, self.unreported = self.unreported, None
        return self._post_joined(self._layout.joined(exhausted, begins, self._unreported_iterations))

    def post_empty(self) -> Pending:
        """Post a message of a rank that has joined, which adds nothing."""
        return self._post_joined(self._layout.joined())

    def _post_joined(self, elements: Sequence[int]) -> Pending:
        return self._post(self._tensor(elements), "Join: message of a joined rank")

    # on all

    def read(self, pending: Pending, watch: Watch) -> Reading:
        """What a message says, once it has come; ``RanksDisagree`` if live ranks are at different places."""
        try:
            sums = tuple(pending.read(watch))
            reading = self._understood.get(sums)
            if reading is None:
                reading = self._understood[sums] = self._layout.read(sums)
        except SharedError as error:
            self._tell(error)
            raise
        if self._layout.listed is not None:  # it was the first
            self.lay_out(replace(self._layout, listed=None))
        return reading

    def reader_of_active(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """A function that finds the number of active ranks, one element, in a message of the present layout."""
        layout, device = self._layout, self._device
        return lambda sums: torch.tensor([layout.read(sums.tolist()).active], dtype=torch.float32, device=device)

    def _post(self, message: torch.Tensor, label: str) -> Pending:
        self.last_post_s = time.monotonic()
        self.posted += 1
        blocks = self._team.tally.blocks
        if len(blocks) > 1:  # inside each other: a message that strays is known by its depth, if read
            size = max(message.numel(), *(block.message_size for block in blocks))
            message = torch.nn.functional.pad(message, (0, size - message.numel()))
        return collectives.all_reduce(self._team, message, label)

    def _tensor(self, elements: Sequence[int]) -> torch.Tensor:
        return torch.tensor(elements, dtype=torch.int64, device=self._control)
