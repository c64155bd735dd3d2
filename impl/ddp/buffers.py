"""Keeping buffers alike: which take part and when; a broadcast from the source, or the user's hook."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch import nn

from ..arguments import member
from ..comm.collectives import BROADCAST_CHUNK_BYTES, Sizes, broadcast_coalesced, size_of
from ..comm.futures import calling_a_hook
from . import kernels
from .iteration import Iteration
from .registrations import registrations


def managed_buffers(module: nn.Module, ignored: Collection[str]) -> dict[str, torch.Tensor]:
    """The buffers that take part in synchronisation now; modules may replace them at any time (DDP-084).

    Not by the module's own method, for the same reasons as parameters (``params.named_parameters``).
    """
    return {name: buffer for name, buffer in nn.Module.named_buffers(module) if name not in ignored}


#: hook(state, {name: buffer}) -> None, or a list of futures
BufferHook = Callable[[Any, dict[str, torch.Tensor]], "list[torch.futures.Future[Any]] | None"]


class _BufferCommHookLocation(Enum):
    """Where a buffer hook runs."""

    PRE_FORWARD = auto()
    POST_FORWARD = auto()

    @staticmethod
    def of(location: Any) -> _BufferCommHookLocation:
        """The member that ``location`` names, ours or torch's; TypeError for anything else."""
        found = member(_BufferCommHookLocation, location)
        if found is None:
            members = ", ".join(map(str, _BufferCommHookLocation))
            raise TypeError(f"Buffer communication hook: the location must be one of {members}, not {location!r}.")
        return found


@dataclass(frozen=True)
class _BufferCommHook:
    """A registered buffer hook (DDP-093)."""

    buffer_comm_hook: BufferHook
    buffer_comm_hook_state: Any
    buffer_comm_hook_location: _BufferCommHookLocation

    def call(self, buffers: dict[str, torch.Tensor]) -> list[torch.futures.Future[Any]]:
        """Run the hook; the futures that must be done before backward returns (DDP-095)."""
        futures = self.buffer_comm_hook(self.buffer_comm_hook_state, buffers)
        if futures is None:
            return []
        return list(futures) if isinstance(futures, (list, tuple)) else [futures]


class BufferSync:
    """Which buffers are synchronised, when, and how. One for each DDP object; it begins anew after unpickling."""

    def __init__(self, module: nn.Module, ignored: Collection[str], iteration: Iteration, *, in_forward: bool) -> None:
        #: whose buffers they are
        self.module = module
        self._ignored = ignored
        self._iteration = iteration
        #: whether forwards synchronise buffers at all
        self.in_forward = in_forward
        #: bytes in one chunk of a broadcast
        self.chunk_bytes = BROADCAST_CHUNK_BYTES
        #: whether the next forward may synchronise them; each forward says it of the next one (DDP-081)
        self.allowed = True
        #: gradient-free forwards have run since training last allowed a buffer synchronisation (exceeds DDP-089)
        self.due_after_evaluation = False
        #: the user's; None means the broadcast from the source
        self.hook: _BufferCommHook | None = None
        #: the buffers' dtypes and bytes as all ranks began with them
        self._alike = list(map(size_of, managed_buffers(module, ignored).values()))
        self.look_up()

    def look_up(self) -> None:
        """Look the managed buffers up again: a module may have replaced them (DDP-084)."""
        #: the managed buffers as of the last synchronisation, by name
        self.named = managed_buffers(self.module, self._ignored)
        #: the same in order
        self.tensors = list(self.named.values())
        #: the sizes of those that all ranks began with, if this rank has others now
        self.formerly: Sizes | None = None if list(map(size_of, self.tensors)) == self._alike else self._alike
        self._as_of = registrations.count
        if self.in_forward and self.tensors:
            self._iteration.team.tally.buffers_travel = True

    # -- when

    def will_synchronise(self) -> bool:
        """Whether this forward synchronises buffers (DDP-081, DDP-088)."""
        made_up_for = torch.is_grad_enabled() and self.due_after_evaluation
        allowed = self.allowed or made_up_for
        wanted = allowed and self.in_forward and not self._evaluates_alone()
        if wanted and not self.tensors and self._as_of != registrations.count:  # some modules make theirs in a forward
            self.look_up()
        return wanted and len(self.tensors) > 0

    def _evaluates_alone(self) -> bool:
        """Whether this forward is an evaluation that needs nobody, so that any rank may run it (exceeds DDP-048)."""
        if torch.is_grad_enabled() or self._iteration.model().training:
            return False
        return self._iteration.session is not None or not self._iteration.wants_reductions

    def comes_before_forward(self) -> bool:
        """Whether this forward synchronises buffers before the wrapped one."""
        hook = self.hook
        return (
            hook is None or hook.buffer_comm_hook_location is _BufferCommHookLocation.PRE_FORWARD
        ) and self.will_synchronise()

    def due_before_forward(self) -> bool:
        """Whether this forward begins with a broadcast or the user's hook.

        No broadcast where only this rank has inputs: it is the source, and joined ranks get the buffers with the final
        model.
        """
        session = self._iteration.session
        keeps = session is not None and session.alone and self.hook is None
        return not keeps and self.comes_before_forward()

    def due_after_forward(self) -> bool:
        """Whether this forward synchronises buffers after the wrapped one."""
        hook = self.hook
        return (
            hook is not None
            and hook.buffer_comm_hook_location is _BufferCommHookLocation.POST_FORWARD
            and self.will_synchronise()
        )

    def evaluated(self) -> None:
        """A forward without gradients has ended."""
        if not self._evaluates_alone():  # else the others know nothing of it
            self.due_after_evaluation |= self.allowed
            self.allowed = False  # a row of evaluations synchronises buffers once

    def trained(self) -> None:
        """A forward with gradients has ended."""
        self.due_after_evaluation = False
        self.allowed = self._iteration.wants_reductions

    def begin_anew(self) -> None:
        """Ranks whose last forwards differed (in a join context, or in groups of their own) start alike again."""
        self.allowed, self.due_after_evaluation = True, False

    # -- how

    def synchronise(self) -> None:
        """Synchronise buffers now: by the user's hook, or from the source."""
        self.look_up()
        if self.hook is not None:
            kept = kernels.versions_kept(self.tensors)  # graphs that saved the buffers stay usable (DDP-086)
            with torch.no_grad(), calling_a_hook(self._iteration.team), kept:
                self._iteration.futures.extend(self.hook.call(self.named))
        else:
            self._broadcast()

    def _broadcast(self) -> None:
        iteration = self._iteration
        if not self.tensors and iteration.session is not None and iteration.session.shadowing:
            raise RuntimeError(
                f"Group rank {iteration.team.rank}, which has run out of inputs, has no buffers, but ranks with inputs "
                "send some. Usual cause: a module that makes its first buffer in a forward, of which this rank has had "
                "none. Make it before the model is wrapped, or keep it as a plain attribute."
            )
        watch, likely = iteration.watch(), iteration.likely_source()
        actual = None if iteration.session is None else iteration.source  # else what is likely is sure
        broadcast_coalesced(
            iteration.team, self.tensors, likely, "buffers", self.chunk_bytes, watch, actual, self.formerly
        )
