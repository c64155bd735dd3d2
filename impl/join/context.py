"""Join: trains, evaluates or communicates in a block although the ranks have unequally many inputs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from ..arguments import flag
from ..comm.ranks import Team
from .base_session import BaseSession
from .bindings import Binding
from .hooks import FollowingHook, Joinable, JoinHook, _FollowedJoinConfig, _JoinConfig, following_hook
from .lifecycle import BLOCK_MOVES, BlockState, moved
from .plain_session import PlainSession
from .session import Session
from .validation import common_group, device_of, listed, made_hook


class Join:
    """A block in which ranks may run out of inputs at different times.

    A rank that reaches the end of the block while others still have inputs shadows them: in each of their iterations
    it takes part in the collectives of every listed joinable without adding anything. When all ranks have come to the
    end, the post hooks run.

        with Join([model, optimizer]):
            for batch in batches:                  # unequally many on each rank
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()

    If the block is left by an exception, no hook runs and no collective starts on that rank (JOIN-023). The other
    ranks raise ``RuntimeError`` naming it, at their next wait inside the context. A rank that blocks in a collective
    of the user's own meets the process group's timeout instead. The same happens where the forward, loss or backward
    of a synchronised iteration fails on one rank and the error is caught inside the block: its peers go on with that
    iteration, so this rank's next one raises. Leave bad batches out before their forward, on all ranks alike. (Where
    no rank has run out, a forward or loss that fails on all ranks alike may be caught, and is left out.)

    On accelerators, ``init_process_group("cpu:gloo,cuda:nccl")`` (what torch takes where neither a backend nor a device
    is named) is the set-up to use: the context's messages then travel between the CPUs, and neither wait for what is
    queued on the device nor make the host wait for it. With NCCL alone they lie on the device.

    Everything that the context changes on the joinables is put back when the block is left. The same object can be
    entered again, and contexts over the same joinables can be nested.

    Args:
        joinables: what takes part, each listed once, all on one process group. Hooks run in this order. The device of
            the first serves for the context's own collectives, unless they can travel between CPUs.
        enable: False makes the context do nothing at all.
        throw_on_early_termination: raise ``RuntimeError`` on every rank as soon as one has run out while another has
            not, instead of shadowing. Costs a blocking message per iteration.
        kwargs: handed to ``join_hook`` of every joinable.

    Raises:
        TypeError: an entry is no Joinable, its device, group or hook is not what it should be, several come in a set,
            or an argument that is true or false is neither.
        ValueError: no joinable, one listed twice, or several process groups.
    """

    def __init__(
        self,
        joinables: Iterable[Joinable],
        enable: bool = True,
        throw_on_early_termination: bool = False,
        **kwargs: Any,
    ) -> None:
        # all validation comes first: a list that is refused leaves no trace on any joinable
        self._enable = flag("enable", enable)
        self._throw = flag("throw_on_early_termination", throw_on_early_termination)
        self._joinables: Sequence[Joinable] = listed(joinables)
        self._team = Team.of(common_group(self._joinables))
        self._device = device_of(self._joinables[0])
        self._join_hooks: list[JoinHook] = []
        #: by place in the list, what lets joined ranks follow it
        self._followers: dict[int, FollowingHook] = {}
        for place, joinable in enumerate(self._joinables):
            self._join_hooks.append(made_hook(joinable, kwargs))
            following = following_hook(joinable, self._join_hooks[place])
            if following is not None:
                self._followers[place] = following
        self._state = BlockState.BUILT  # only __enter__ and __exit__ assign it
        self._bind()

    def __enter__(self) -> None:
        if self._state is BlockState.OPEN:
            raise RuntimeError(
                "This Join context is entered already. Usual cause: the same object used in two nested with "
                "statements. Build one Join for each."
            )
        team = Team.of(common_group(self._joinables))
        if self._state is BlockState.LEFT or team != self._team:  # they may have moved to another group
            self._team = team
            self._bind()
        self._state = moved(self._state, BlockState.OPEN, BLOCK_MOVES)
        self._process = os.getpid()
        for binding in self._bindings:
            binding.open()
        if self._session is not None:
            self._enter(self._session)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # a child that was forked in the block, to save something perhaps, is no rank: it leaves without a word
            if self._session is not None and os.getpid() == self._process:
                self._leave(self._session, error)
        finally:
            self._end()

    @staticmethod
    def notify_join_context(joinable: Joinable) -> dist.Work | None:
        """Say that ``joinable`` is about to communicate for this iteration; call it before its own collectives.

        Returns:
            For the first joinable of an enabled context a handle whose result is the number of active ranks. None for
            all others, outside a context, and on a rank that has run out.

        Raises:
            AssertionError: the joinable's constructor has not called ``Joinable.__init__``.
            RuntimeError: the context throws on early termination and some rank has exhausted its inputs.
        """
        config = getattr(joinable, "_join_config", None)
        if config is None:
            raise AssertionError(
                f"{type(joinable).__name__} has no join config: its constructor has not run Joinable.__init__(). "
                f"Call super().__init__() in the constructor of {type(joinable).__name__}."
            )
        if not config.enable:
            return None
        session: BaseSession | None = joinable._join_session
        if session is None:  # enabled by hand, without a context: the bare handshake
            team, device = Team.of(joinable.join_process_group), torch.device(joinable.join_device)
            session = PlainSession(team, device, config.throw_on_early_termination, ())
        return session.notify(joinable)

    def _bind(self) -> None:
        """Put the config on every joinable and, in an enabled context, a new session."""
        self._session = self._new_session() if self._enable else None
        config = _FollowedJoinConfig if isinstance(self._session, Session) else _JoinConfig
        self._bindings = [
            Binding(joinable, config(self._enable, self._throw, is_first_joinable=place == 0), self._session)
            for place, joinable in enumerate(self._joinables)
        ]
        for binding in self._bindings:
            binding.put()

    def _new_session(self) -> BaseSession:
        if self._followers:
            return Session(
                self._team, self._device, self._throw, self._joinables, self._join_hooks, self._followers
            )
        return PlainSession(self._team, self._device, self._throw, self._join_hooks)

    def _enter(self, session: BaseSession) -> None:
        try:
            session.enter()
        except BaseException:
            session.close()
            self._end()
            raise

    def _end(self) -> None:
        for binding in self._bindings:
            binding.take_off()
        self._state = moved(self._state, BlockState.LEFT, BLOCK_MOVES)

    def _leave(self, session: BaseSession, error: BaseException | None) -> None:
        try:
            if error is None:
                self._shadow_and_finish(session)
            else:
                session.report(error)
        finally:
            session.close()

    def _shadow_and_finish(self, session: BaseSession) -> None:
        try:
            is_last_joiner = session.shadow()
            session.end()
            for hook in self._join_hooks:
                hook.post_hook(is_last_joiner)
        except BaseException as failure:
            session.report(failure)
            raise
