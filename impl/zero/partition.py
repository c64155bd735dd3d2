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
            raise PlanError("a parameter with a negative number of elements")

    @staticmethod
    def greedy(
        numels: Sequence[int], world: int, first: Sequence[int], owners: Sequence[int | None] = ()
    ) -> ShardPlan:
        """Largest parameter first, each onto the rank with the least so far (ZERO-007).

        ``first``: by parameter, the place of the first one that has its memory. They go to one owner.
        ``owners``: those that parameters have already, and keep (ZERO-014); None for what has none.
        """
        full = {place: owner for place, owner in enumerate(owners) if owner is not None}
        loads = [0] * world
        for place, owner in full.items():
            loads[owner] += numels[place]
        together: dict[int, list[int]] = {}
        for place, head in enumerate(first):
            together.setdefault(head, []).append(place)
        # sorted() is stable: equal sizes keep their order, so every rank makes the same plan
        for places in sorted(together.values(), key=lambda places: -sum(numels[place] for place in places)):
            known = [full[place] for place in places if place in full]
            chosen = known[0] if known else loads.index(min(loads))
            for place in places:
                if place not in full:
                    full[place] = chosen
                    loads[chosen] += numels[place]
        return ShardPlan(world, tuple(numels), tuple(full[place] for place in range(len(numels))))

    def owned_by(self, rank: int) -> tuple[int, ...]:
        """Global indices of the parameters that ``rank`` owns, ascending."""
        return tuple(index for index, owner in enumerate(self.owners) if owner == rank)
