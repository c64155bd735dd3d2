"""The present buckets as the overlapped step uses them: whose gradients lie where, and how parameters are published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ..comm.duplex import way_from
from ..comm.flat import PlacedTensors
from ..comm.ranks import GroupRank, Team
from ..ddp.buckets import Bucket
from ..zero.memory import has_memory
from ..zero.transfer import Broadcasts, Gathering, Publication, Transfer, gathers, plan_of
from .plan import OverlapPlan, Piece, windows


@dataclass
class BucketPart:
    """One bucket: its pieces (ascending by owner) and this rank's places in it."""

    bucket: Bucket
    members: tuple[int, ...]
    pieces: tuple[Piece, ...]
    own: tuple[int, ...]
    #: what can be published once this bucket has been stepped
    publications: list[Publication] = field(default_factory=list)

    @property
    def of_the_optimizer(self) -> list[int]:
        """The places of parameters that the optimizer has."""
        return [place for place, index in enumerate(self.members) if index >= 0]

    def owned_by(self, rank: int) -> list[torch.Tensor]:
        """The parameters of one owner."""
        return [self.bucket.parameters[place] for piece in self.pieces if piece.owner == rank for place in piece.places]

    def views_of(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The gradients in the reduced bucket, by place; ``flat`` may be another tensor than the bucket's."""
        if self.bucket.spec.sparse:
            return [flat]
        return self.bucket.views if flat is self.bucket.flat else self.bucket.views_of(flat.contiguous().view(-1))


class Layout:
    """All buckets of one of DDP's plans, over fixed owners.

    Parameters that travel together become views of one flat tensor, so that they need not be copied: as torch does in
    overlap mode. A parameter that travels alone keeps its storage.
    """

    def __init__(
        self,
        plan: OverlapPlan,
        buckets: Sequence[Bucket],
        team: Team,
        *,
        together: bool,
        outside: Mapping[int, torch.Tensor],
    ) -> None:
        """``together``: all buckets are published at once, if that is faster on this network.

        ``outside``: parameters in no bucket, by the optimizer's index, that may be stepped all the same.
        """
        self.plan = plan
        self.parts: list[BucketPart] = []
        self._team = team
        self._moved = PlacedTensors()  # the parameters, of which many were moved into flat tensors
        for place, bucket in enumerate(buckets):
            pieces = plan.pieces(place)
            own = next((piece.places for piece in pieces if piece.owner == team.rank), ())
            self.parts.append(BucketPart(bucket, plan.buckets[place], pieces, own))
        if team.size > 1:
            self._publish([self.parts] if together else self._windows())
            self._publish_at_the_end(outside)
        # another optimizer's parameters may be moved by that one's own layout
        ours = [part.bucket.parameters[place] for part in self.parts for place in part.of_the_optimizer]
        self._moved.note([each for each in (*ours, *outside.values()) if has_memory(each)])

    def stale(self, buckets: Sequence[Bucket], owners: tuple[int, ...]) -> bool:
        """Whether DDP has other buckets now, of the same plan perhaps (it leaves those of a backward that failed),
        another model's hook has named other owners, or somebody has moved a parameter (``parameter.data = ...``)."""
        others = self.parts[0].bucket is not buckets[0] or self.plan.owners is not owners
        return others or self._moved.stale

    def _windows(self) -> list[list[BucketPart]]:
        found = windows([[piece.owner for piece in part.pieces] for part in self.parts], self._team.size)
        return [[self.parts[place] for place in window] for window in found]

    def _publish(self, groups: Sequence[Sequence[BucketPart]]) -> None:
        """Say what is published at the end of each group: all of it at once where that is faster, on each device."""
        for group in groups:
            by_device: dict[torch.device, list[BucketPart]] = {}
            for part in group:
                if part.pieces:
                    by_device.setdefault(part.bucket.spec.device, []).append(part)
            for alike in by_device.values():
                owned = [[each for part in alike for each in part.owned_by(rank)] for rank in self._team.members]
                plan = plan_of(owned)
                if gathers(self._team, plan, alike[0].bucket.parameters[0]):
                    label = f"overlap: parameters of bucket {', '.join(str(part.bucket.spec.index) for part in alike)}"
                    flat = self._moved.move([member for members in owned for member in members], plan.length)
                    alike[-1].publications.append(Gathering(self._team, plan, owned, label, flat))
                    continue
                for part in alike:
                    part.publications.append(Broadcasts([self._transfer(part, piece) for piece in part.pieces]))

    def _publish_at_the_end(self, outside: Mapping[int, torch.Tensor]) -> None:
        alike: dict[tuple[int, torch.device], list[torch.Tensor]] = {}
        for index, parameter in outside.items():
            alike.setdefault((self.plan.owners[index], parameter.device), []).append(parameter)
        self.parts[-1].publications += [
            Broadcasts([Transfer(self._team, GroupRank(owner), members, f"overlap: rank {owner}'s in no bucket")])
            for (owner, _), members in alike.items()
        ]

    def _transfer(self, part: BucketPart, piece: Piece) -> Transfer:
        members = part.owned_by(piece.owner)
        label = f"overlap: bucket {part.bucket.spec.index}, parameters of rank {piece.owner}"
        flat = self._moved.move(members) if len(members) > 1 else None
        owner = GroupRank(piece.owner)
        return Transfer(way_from(owner, self._team, part.bucket.spec.device), owner, members, label, flat)
