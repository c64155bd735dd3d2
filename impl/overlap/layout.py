"""The present buckets as the overlapped step uses them: whose gradients lie where, and the broadcasts that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..comm.ranks import GroupRank, Team
from ..ddp.buckets import Bucket
from ..ddp.kernels import copy_all, dense_view
from ..zero.transfer import Transfer
from .plan import BucketLayout, Piece


@dataclass
class BucketPart:
    """One bucket: its pieces, the transfers that publish them (ascending by owner), and this rank's places in it."""

    bucket: Bucket
    members: tuple[int, ...]
    pieces: tuple[Piece, ...]
    transfers: list[Transfer]
    own: tuple[int, ...]


class Layout:
    """All buckets of one of DDP's plans, over fixed owners.

    Parameters that travel together become views of one flat tensor, so that they need not be copied: as torch does in
    overlap mode. A parameter that travels alone keeps its storage.
    """

    def __init__(self, plan: BucketLayout, buckets: Sequence[Bucket], team: Team) -> None:
        self.plan = plan
        self.parts: list[BucketPart] = []
        # the parameters in flat tensors and the addresses at which we put them
        self._placed: list[torch.Tensor] = []
        self._addresses: list[int] = []
        for place, bucket in enumerate(buckets):
            pieces = plan.pieces(place)
            own = next((piece.places for piece in pieces if piece.owner == team.rank), ())
            transfers = [self._transfer(bucket, piece, team) for piece in pieces] if team.size > 1 else []
            self.parts.append(BucketPart(bucket, plan.buckets[place], pieces, transfers, own))

    def _transfer(self, bucket: Bucket, piece: Piece, team: Team) -> Transfer:
        members = [bucket.parameters[place] for place in piece.places]
        label = f"overlap: bucket {bucket.spec.index}, parameters of rank {piece.owner}"
        flat = _flattened(members) if len(members) > 1 else None
        if flat is not None:
            self._placed.extend(members)
            self._addresses.extend(member.data_ptr() for member in members)
        return Transfer(team, GroupRank(piece.owner), members, label, flat)

    def stale(self) -> bool:
        """Whether somebody has moved a parameter away from its flat tensor (``parameter.data = ...``)."""
        return list(map(torch.Tensor.data_ptr, self._placed)) != self._addresses


def _flattened(members: Sequence[torch.Tensor]) -> torch.Tensor:
    """Move the members' values into one new flat tensor and make them views of it, each with the strides it has."""
    first = members[0]
    flat = torch.empty(sum(member.numel() for member in members), dtype=first.dtype, device=first.device)
    views, offset = [], 0
    for member in members:
        views.append(dense_view(flat, offset, member))
        offset += member.numel()
    with torch.no_grad():
        copy_all(views, [member.detach() for member in members])
    for member, view in zip(members, views, strict=True):
        member.data = view
    return flat
