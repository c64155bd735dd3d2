"""Tiers: which of all possible cases a run makes.

``full`` makes every case, at 8 ranks too. ``quick`` leaves out repetitions, never a check; for every subject it makes

1. every check, in each of its scenarios (in the first only where there are dozens, ``@check(each=False)``), once, where
   it is cheap and still says something about ranks: with a pair, or with three, the least of which some rank is neither
   first nor last and a group can be larger than one and smaller than the world. Where it has both, the names decide, so
   that it is the same in every run; where neither, the smallest world of several ranks. As every clause has a check,
   every clause is decided that can be;
2. of every file of checks, which is a feature, one case of one rank alone, and one of more than a pair;
3. for every listed deviation one case that it speaks of; if that does not show it, the others, until one does.

What is left out is what only the full tier shows: the same check in further worlds, and further scenarios, of which the
report says that the clause was judged in part (``in_part``). A deviation is proven stale only by a run of every case
that it speaks of, which 3 gives it in this tier, too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..deviations import Deviation
from ..results import Case

QUICK, FULL = "quick", "full"
TIERS = (QUICK, FULL)
WORLDS = {QUICK: (1, 2, 3, 4), FULL: (1, 2, 3, 4, 8)}


@dataclass(frozen=True)
class Offer:
    """A case that could be run, the selected clauses that it would decide, and the file of its check."""

    case: Case
    clauses: tuple[str, ...]
    file: str = ""
    each: bool = True  # whether every scenario of the check is to be run

    @property
    def world(self) -> int:
        return self.case.world

    def is_about(self, deviation: Deviation) -> bool:
        return any(deviation.concerns(clause, self.case) for clause in self.clauses)


def choose(tier: str, offers: Sequence[Offer], listed: Mapping[str, Sequence[Deviation]]) -> set[Case]:
    """The cases of a tier among those on offer. Without a tier, and in the full one, that is all of them."""
    if tier != QUICK:
        return {offer.case for offer in offers}
    chosen: set[Case] = set()
    for subject in dict.fromkeys(offer.case.subject for offer in offers):
        # few ranks first, but a single one last: alone, little can go wrong
        own = sorted((o for o in offers if o.case.subject == subject), key=lambda o: (o.world < 2, o.world))
        chosen |= _quick(own, listed.get(subject, ()))
    return chosen


def _quick(offers: Sequence[Offer], deviations: Sequence[Deviation]) -> set[Case]:
    """One subject's cases in the quick tier; ``offers`` come in order of their cost."""
    of_check = _by(offers, lambda offer: f"{offer.case.check} {offer.case.scenario if offer.each else ''}")
    chosen = {_of_few_ranks(name, several).case for name, several in of_check.items()}
    for file, several in _by(offers, lambda offer: offer.file).items():
        for kind in (_alone, _more_than_a_pair):
            found = [offer for offer in several if kind(offer.world)]
            least = [offer.case for offer in found if offer.world == found[0].world]
            if chosen.isdisjoint(offer.case for offer in found):
                chosen |= set(least[_spread(file) % len(least) :][:1]) if least else set()
    for deviation in deviations:
        about = [offer.case for offer in offers if offer.is_about(deviation)]
        if chosen.isdisjoint(about):
            chosen |= set(about[:1])
    return chosen


def _of_few_ranks(name: str, offers: Sequence[Offer]) -> Offer:
    """The first of these, or the same with three ranks in place of two, as the name decides."""
    first = offers[0]
    with_three = [offer for offer in offers if (offer.world, offer.case.scenario) == (3, first.case.scenario)]
    return with_three[0] if first.world == 2 and with_three and _spread(name) % 2 else first


def in_part(left_out: Iterable[Offer], ran: Iterable[Case]) -> dict[str, list[str]]:
    """By subject, the clauses of which a scenario was left out at every world: their checks said a part only."""
    seen = {(case.subject, case.check, case.scenario) for case in ran}
    found: dict[str, dict[str, None]] = {}
    for offer in left_out:
        if (offer.case.subject, offer.case.check, offer.case.scenario) not in seen:
            found.setdefault(offer.case.subject, {}).update(dict.fromkeys(offer.clauses))
    return {subject: list(clauses) for subject, clauses in found.items()}


def _by(offers: Iterable[Offer], key: Callable[[Offer], str]) -> dict[str, list[Offer]]:
    groups: dict[str, list[Offer]] = {}
    for offer in offers:
        groups.setdefault(key(offer), []).append(offer)
    return groups


def _alone(world: int) -> bool:
    return world == 1


def _more_than_a_pair(world: int) -> bool:
    return world > 2


def _spread(name: str) -> int:
    """A number that looks like chance and never changes."""
    return zlib.crc32(name.encode())
