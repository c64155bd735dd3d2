"""Tiers: which of all possible cases a run makes.

``full`` makes every case, at 8 ranks too. ``quick`` chooses by kind instead of leaving clauses out; for every subject:

1. Every scenario of every check runs once, where it is cheapest and still says something about ranks: at the smallest
   world of at least two ranks that it has.
2. Worlds differ in kind: one rank alone; a pair; and more than a pair, the least in which some rank is neither first
   nor last and a group can be smaller than the world and larger than one. Every clause is decided in each kind in
   which some check of it runs, by the smallest world of that kind.
3. Every listed deviation is looked for in at least one case that it speaks of.

So the quick tier leaves out only repetitions of a check in more worlds of the same kind, never a clause, a check, a
scenario or a deviation. What was not run proves no deviation stale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .deviations import Deviation
from .results import Case

QUICK, FULL = "quick", "full"
TIERS = (QUICK, FULL)
WORLDS = {QUICK: (1, 2, 3, 4), FULL: (1, 2, 3, 4, 8)}


@dataclass(frozen=True)
class Offer:
    """A case that could be run, and the selected clauses that it would decide."""

    case: Case
    clauses: tuple[str, ...]


def choose(tier: str, offers: Sequence[Offer], listed: Mapping[str, Sequence[Deviation]]) -> set[Case]:
    """The cases of a tier among those on offer. Without a tier, and in the full one, that is all of them."""
    if tier != QUICK:
        return {offer.case for offer in offers}
    chosen: set[Case] = set()
    for subject in dict.fromkeys(offer.case.subject for offer in offers):
        own = sorted((offer for offer in offers if offer.case.subject == subject), key=_dearness)
        chosen |= _quick(own, listed.get(subject, ()))
    return chosen


def _dearness(offer: Offer) -> tuple[bool, int]:
    """Few ranks first, but a single one last: alone, little can go wrong."""
    return offer.case.world < 2, offer.case.world


def _quick(offers: Sequence[Offer], deviations: Sequence[Deviation]) -> set[Case]:
    """One subject's cases in the quick tier; ``offers`` come in order of their cost."""
    homes: dict[tuple[str, str], Offer] = {}
    for offer in offers:
        homes.setdefault((offer.case.check, offer.case.scenario), offer)
    chosen = {offer.case for offer in homes.values()}
    for clause in dict.fromkeys(clause for offer in offers for clause in offer.clauses):
        deciding = [offer for offer in offers if clause in offer.clauses]
        for kind in (_alone, _pair, _more):
            _need_one_of(chosen, [offer.case for offer in deciding if kind(offer.case.world)])
    for deviation in deviations:
        _need_one_of(chosen, [o.case for o in offers if any(deviation.concerns(each, o.case) for each in o.clauses)])
    return chosen


def _need_one_of(chosen: set[Case], cases: Sequence[Case]) -> None:
    """Add the first of these cases, if there is any and none is chosen yet."""
    if cases and chosen.isdisjoint(cases):
        chosen.add(cases[0])


def _alone(world: int) -> bool:
    return world == 1


def _pair(world: int) -> bool:
    return world == 2


def _more(world: int) -> bool:
    return world > 2
