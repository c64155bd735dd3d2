"""The session of a context of plain joinables: the documented handshake."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..comm.ranks import Team
from .base_session import BaseSession
from .handle import Handle
from .hooks import Joinable, JoinHook
from .lifecycle import SessionState
from .message import MessageLayout
from .validation import resolved


class PlainSession(BaseSession):
    """Per notification one message counts the active ranks; in throwing mode a second one, the exhausted (JOIN-045).

    Every rank walks the same two steps, count the active and then count the exhausted; its role decides what it adds.
    """

    def __init__(self, team: Team, device: torch.device, throw: bool, hooks: Sequence[JoinHook]) -> None:
        super().__init__(team, device, throw, MessageLayout(("a plain joinable",), ((),), team.size))
        self._device = device
        self._hooks = hooks
        if team.tally.blocks:
            self._tell_depth()  # of the innermost one: this session may have none

    def enter(self) -> None:
        """The block begins."""
        super().enter()
        self._tell_depth()

    def notify(self, joinable: Joinable) -> Handle | None:
        """Count the active ranks without blocking; in throwing mode, block and raise if some rank has run out.

        Device and group are the joinable's own, as they are now (JOIN-052).
        """
        if self._state is not SessionState.LIVE or not joinable._join_config.is_first_joinable:
            return None
        self._failures.refuse_what_is_over()
        group, device = resolved(joinable.join_process_group), torch.device(joinable.join_device)
        if group is not self.team.group or device != self._device:
            return PlainSession(Team.of(group), device, self.throw, ()).notify(joinable)
        pending = self._channel.call_roll(0, None)
        if len(self.team.tally.blocks) > 1:
            # at once: what comes next here may be in a block that other ranks have left
            self._channel.read(pending, self.watch)
        if joinable._join_config.throw_on_early_termination:
            exhausted = self._channel.read(self._channel.post_empty(), self.watch).active
            if exhausted:
                self._failures.raise_exhausted_elsewhere(exhausted)
        return Handle(pending, self.watch, number=self._channel.reader_of_active())

    def shadow(self) -> bool:
        """One turn per iteration of the ranks that are live: count them, run the main hooks in list order."""
        self._failures.refuse_what_is_over()
        shadowed = 0
        while self._channel.read(self._channel.post_empty(), self.watch).active:
            if self.throw:
                self._channel.read(self._channel.call_roll(0, None), self.watch)
                self._failures.raise_exhausted_here()
            if shadowed == 0:
                self._move(SessionState.SHADOWING)
            for hook in self._hooks:
                hook.main_hook()
            shadowed += 1
            self._warn_of_skew(shadowed)
        return shadowed == 0
