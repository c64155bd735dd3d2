"""The session of a context of plain joinables: the documented handshake, to the letter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..comm import collectives
from ..comm.pending import Pending
from ..comm.ranks import Team
from .base_session import BaseSession
from .handle import Handle
from .hooks import Joinable, JoinHook
from .lifecycle import SessionState
from .message import MessageLayout
from .validation import resolved


def _is_message(pending: Pending) -> bool:
    """Whether it counts by a message of blocks inside each other, which holds whole numbers, and not by one number."""
    return pending.buffer.dtype == torch.int64


class PlainSession(BaseSession):
    """Per notification one all-reduce counts the active ranks; in throwing mode a second one, the exhausted (JOIN-045).

    Every rank walks the same two steps, count the active and then count the exhausted; its role decides what it adds.
    While other blocks over the group lie around or inside its own, it counts by messages like those of a ``Session``.
    """

    def __init__(self, team: Team, device: torch.device, throw: bool, hooks: Sequence[JoinHook]) -> None:
        super().__init__(team, device, throw, MessageLayout(("a plain joinable",), ((),), team.size))
        self._device = device
        self._hooks = hooks

    def enter(self) -> None:
        """The block begins."""
        super().enter()
        self._tell_place()

    def notify(self, joinable: Joinable) -> Handle | None:
        """Count the active ranks without blocking; in throwing mode, block and raise if some rank has run out.

        Device and group are the joinable's own, as they are now (JOIN-052).
        """
        if self._state is not SessionState.LIVE or not joinable._join_config.is_first_joinable:
            return None
        self._failures.refuse_what_is_over()
        group = resolved(joinable.join_process_group)
        team = self.team if group is self.team.group else Team.of(group)
        device = torch.device(joinable.join_device)
        pending = self._count(team, device, 1, "Join: count of active ranks")
        handle = Handle(pending, self.watch)
        if _is_message(pending):
            # at once: what comes next here may be in a block that other ranks have left
            self._channel.read(pending, self.watch)
            handle = Handle(pending, self.watch, number=self._channel.reader_of_active())
        if joinable._join_config.throw_on_early_termination:
            exhausted = self._count_exhausted(team, device, 0)
            if exhausted:
                self._failures.raise_exhausted_elsewhere(exhausted)
        return handle

    def shadow(self) -> bool:
        """One turn per iteration of the ranks that are live: count them, run the main hooks in list order."""
        self._failures.refuse_what_is_over()
        shadowed = 0
        while self._counted(self._count(self.team, self._device, 0, "Join: count of active ranks")) > 0:
            if self.throw:
                self._count_exhausted(self.team, self._device, 1)
                self._failures.raise_exhausted_here()
            if shadowed == 0:
                self._move(SessionState.SHADOWING)
            for hook in self._hooks:
                hook.main_hook()
            shadowed += 1
            self._warn_of_skew(shadowed)
        return shadowed == 0

    def _count_exhausted(self, team: Team, device: torch.device, contribution: int) -> int:
        return self._counted(self._count(team, device, contribution, "Join: count of exhausted ranks"))

    def _count(self, team: Team, device: torch.device, contribution: int, label: str) -> Pending:
        if team is not self.team or len(team.tally.blocks) < 2:
            number = torch.full((1,), float(contribution), dtype=torch.float32, device=device)
            return collectives.all_reduce(team, number, label)
        return self._channel.call_roll(0, None) if contribution else self._channel.post_empty()

    def _counted(self, pending: Pending) -> int:
        if _is_message(pending):
            return self._channel.read(pending, self.watch).active
        return int(pending.read(self.watch)[0])
