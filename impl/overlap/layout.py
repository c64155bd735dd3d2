"""The present buckets as the overlapped step uses them: whose gradients lie where, and how parameters are published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..comm.flat import MovedTensors
from ..comm.placement import on_one_host
from ..comm.ranks import GroupRank, Team
from ..ddp.buckets import Bucket
from ..ddp.kernels import dense_view
from ..zero.transfer import Broadcasts, Gathering, Publication, Transfer, gathers, plan_of
from .plan import BucketLayout, Piece


@dataclass
class BucketPart:
    """One bucket: its pieces (ascending by owner) and this rank's places in it."""

    bucket: Bucket
    members: tuple[int, ...]
    pieces: tuple[Piece, ...]
    own: tuple[int, ...]
    #: whether it is the last of its window, the buckets that are reduced to owners, or published, together
    closes: bool = True
    #: whether gradients go to their owners by an exchange
    exchanged: bool = False
    #: what can be published once this bucket has been stepped
    publications: list[Publication] = field(default_factory=list)

    def owned_by(self, rank: int) -> list[torch.Tensor]:
        """The parameters of one owner."""
        return [self.bucket.parameters[place] for piece in self.pieces if piece.owner == rank for place in piece.places]


class Layout:
    """All buckets of one of DDP's plans, over fixed owners.

    Parameters that travel together become views of one flat tensor, so that they need not be copied: as torch does in
    overlap mode. A parameter that travels alone keeps its storage.
    """

    def __init__(self, plan: BucketLayout, buckets: Sequence[Bucket], team: Team, *, together: bool) -> None:
        """``together``: all buckets are published at once, if that is faster on this network."""
        self.plan = plan
        self.parts: list[BucketPart] = []
        self._team = team
        self._moved = MovedTensors()  # the parameters in flat tensors
        for place, bucket in enumerate(buckets):
            pieces = plan.pieces(place)
            own = next((piece.places for piece in pieces if piece.owner == team.rank), ())
            self.parts.append(BucketPart(bucket, plan.buckets[place], pieces, own))
        if team.size > 1:
            if self._over_a_network():
                self._close_windows()
            self._publish(together)

    def stale(self) -> bool:
        """Whether somebody has moved a parameter away from its flat tensor (``parameter.data = ...``)."""
        return self._moved.stale

    def _over_a_network(self) -> bool:
        device = self.parts[0].bucket.spec.device
        return device.type == "cpu" and not on_one_host(self._team, device)

    def _close_windows(self) -> None:
        """A window ends where every rank owns a part of it, so that all links are used; or before another dtype."""
        missing = set(self._team.members)
        for part, following in zip(self.parts, [*self.parts[1:], None], strict=True):
            part.exchanged = True
            missing -= {piece.owner for piece in part.pieces}
            part.closes = not missing or following is None or _kind(part) != _kind(following)
            if part.closes:
                missing = set(self._team.members)

    def _windows(self, parts: Sequence[BucketPart]) -> list[list[BucketPart]]:
        found: list[list[BucketPart]] = [[]]
        for part in parts:
            found[-1].append(part)
            if part.closes:
                found.append([])
        return [window for window in found if window]

    def _publish(self, together: bool) -> None:
        by_device: dict[torch.device, list[BucketPart]] = {}
        for part in self.parts:
            if part.pieces:
                by_device.setdefault(part.bucket.spec.device, []).append(part)
        for alike in by_device.values():
            for parts in [alike] if together else self._windows(alike):
                for group in [parts] if self._gathers(parts) else [[part] for part in parts]:
                    group[-1].publications.append(self._publication(group))

    def _owned(self, parts: Sequence[BucketPart]) -> list[list[torch.Tensor]]:
        """The parameters of some buckets by owner."""
        return [[member for part in parts for member in part.owned_by(rank)] for rank in self._team.members]

    def _gathers(self, parts: Sequence[BucketPart]) -> bool:
        return gathers(self._team, plan_of(self._owned(parts)), parts[0].bucket.parameters[0])

    def _publication(self, parts: Sequence[BucketPart]) -> Publication:
        """What publishes the parameters of these buckets once the last of them has been stepped."""
        if not self._gathers(parts):
            return Broadcasts([self._transfer(part, piece) for part in parts for piece in part.pieces])
        owned = self._owned(parts)
        plan, members = plan_of(owned), [member for members in owned for member in members]
        label = f"overlap: parameters of bucket {', '.join(str(part.bucket.spec.index) for part in parts)}"
        return Gathering(self._team, plan, owned, label, self._flattened(members, plan.length))

    def _transfer(self, part: BucketPart, piece: Piece) -> Transfer:
        members = part.owned_by(piece.owner)
        label = f"overlap: bucket {part.bucket.spec.index}, parameters of rank {piece.owner}"
        flat = self._flattened(members, sum(member.numel() for member in members)) if len(members) > 1 else None
        return Transfer(self._team, GroupRank(piece.owner), members, label, flat)

    def _flattened(self, members: Sequence[torch.Tensor], length: int) -> torch.Tensor:
        """Move the values into one new flat tensor and make the members views of it, each with the strides it has."""
        flat = torch.zeros(length, dtype=members[0].dtype, device=members[0].device)
        views, offset = [], 0
        for member in members:
            views.append(dense_view(flat, offset, member))
            offset += member.numel()
        self._moved.move(members, views)
        return flat


def _kind(part: BucketPart) -> tuple[torch.dtype, torch.device]:
    return part.bucket.spec.dtype, part.bucket.spec.device
