"""Who owns which parameter: a frozen plan that checks itself and knows nothing of processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class PlanError(AssertionError):
    """A shard plan that contradicts itself: a mistake in the code that made it, never in the user's."""


@dataclass(frozen=True)
class ShardPlan:
    """Each parameter's owner, by the parameter's global index (its place in the concatenated parameter groups).

    Owners are ranks of the optimizer's own process group. A parameter is never split. A rank may own nothing.
    """

    world: int
    numels: tuple[int, ...]
    owners: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.world < 1:
            raise PlanError(f"a plan for {self.world} ranks")
        if len(self.numels) != len(self.owners):
            raise PlanError(f"{len(self.numels)} parameters but {len(self.owners)} owners")
        strangers = [owner for owner in self.owners if not 0 <= owner < self.world]
        if strangers:
            raise PlanError(f"owners {strangers} are not among ranks 0..{self.world - 1}")
        if any(numel < 0 for numel in self.numels):
            raise PlanError("a parameter with fewer than no elements")

    @staticmethod
    def greedy(numels: Sequence[int], world: int) -> ShardPlan:
        """Largest parameter first, each onto the rank with the least so far (ZERO-007)."""
        return ShardPlan(world, (), ()).extended(numels)

    def extended(self, numels: Sequence[int]) -> ShardPlan:
        """The plan with more parameters behind those it has; nobody loses one that it owned (ZERO-014)."""
        loads = list(self.loads)
        added = [0] * len(numels)
        # sorted() is stable: equal sizes keep their order, so every rank makes the same plan
        for index in sorted(range(len(numels)), key=lambda i: -numels[i]):
            owner = loads.index(min(loads))
            added[index] = owner
            loads[owner] += numels[index]
        return ShardPlan(self.world, (*self.numels, *numels), (*self.owners, *added))

    def changed(self, owners: Sequence[int | None], numels: Sequence[int]) -> ShardPlan:
        """The plan of other parameters, some of which have an owner; the others are added to those."""
        pairs = list(zip(owners, numels, strict=True))
        kept = [(owner, numel) for owner, numel in pairs if owner is not None]
        plan = ShardPlan(self.world, tuple(numel for _, numel in kept), tuple(owner for owner, _ in kept))
        new = iter(plan.extended([numel for owner, numel in pairs if owner is None]).owners[len(kept) :])
        return ShardPlan(self.world, tuple(numels), tuple(next(new) if owner is None else owner for owner in owners))

    @property
    def loads(self) -> tuple[int, ...]:
        """Elements owned by each rank."""
        totals = [0] * self.world
        for numel, owner in zip(self.numels, self.owners, strict=True):
            totals[owner] += numel
        return tuple(totals)

    def owned_by(self, rank: int) -> tuple[int, ...]:
        """Global indices of the parameters that ``rank`` owns, ascending."""
        return tuple(index for index, owner in enumerate(self.owners) if owner == rank)
