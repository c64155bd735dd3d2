"""One owner's parameters on their way to the others: packed flat, or in place where they can be."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..comm.collectives import broadcast
from ..comm.pending import Pending, Watch
from ..comm.ranks import GroupRank, Team


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source into its target; one call for the lot (0.3 µs a tensor instead of 2)."""
    if targets:
        torch._foreach_copy_(list(targets), list(sources))  # the only private call of this package


def flat_views(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Consecutive pieces of ``flat``, each in the shape of its model."""
    pieces = flat[: sum(tensor.numel() for tensor in like)].split([tensor.numel() for tensor in like])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, like, strict=True)]


class Transfer:
    """A broadcast of some parameters of one owner to the team. Made once, used in every step.

    The members travel in one flat buffer. A single contiguous member is its own buffer; members that are views of
    ``flat`` need no copy either. Packing and unpacking are local affairs: the collective is the same on every rank.
    """

    __slots__ = ("_buffer", "_flat", "_pending", "_views", "label", "members", "owner", "team")

    def __init__(
        self,
        team: Team,
        owner: GroupRank,
        members: Sequence[torch.Tensor],
        label: str,
        flat: torch.Tensor | None = None,  # members are consecutive views of this one
    ) -> None:
        self.team = team
        self.owner = owner
        self.members = list(members)
        self.label = label
        self._flat = flat
        # staging buffer, members.numel() long; made at the first use that needs one
        self._buffer: torch.Tensor | None = None
        self._views: list[torch.Tensor] = []
        # set between start() and finish()
        self._pending: Pending | None = None

    @property
    def numel(self) -> int:
        return sum(member.numel() for member in self.members)

    def start(self) -> None:
        """Start the broadcast of the owner's present values. Call on every rank, in the same order of transfers."""
        buffer, staged = self._target()
        if staged and self.team.rank == self.owner:
            copy_all(self._views, self.members)
        self._pending = broadcast(self.team, buffer, self.owner, self.label)

    def finish(self, watch: Watch | None = None) -> None:
        """Wait for the broadcast; afterwards the members hold the owner's values on every rank."""
        if self._pending is None:
            raise AssertionError(f"{self.label}: finish() without start()")
        pending, self._pending = self._pending, None
        pending.wait(watch)
        if pending.buffer is self._buffer and self.team.rank != self.owner:
            copy_all(self.members, self._views)

    def _target(self) -> tuple[torch.Tensor, bool]:
        """The tensor to send, and whether it is the staging buffer."""
        if self._flat is not None:
            return self._flat, False
        if len(self.members) == 1 and self.members[0].is_contiguous():
            return self.members[0].detach(), False
        if self._buffer is None:
            first = self.members[0]
            self._buffer = torch.empty(self.numel, dtype=first.dtype, device=first.device)
            self._views = flat_views(self._buffer, self.members)
        return self._buffer, True
