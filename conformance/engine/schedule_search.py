"""Schedules that a check is tried on: the usual shapes, drawn ones, and the search for the smallest that breaks it.

A check takes an argument ``schedules`` and says what has to hold for any list of schedules:

    @check("DDPJ-007", worlds=MANY)
    def test_gradients_are_those_of_one_process(ranks, schedules):
        schedules.examine(lambda several: compare(ranks, several))

A list is one run of the ranks, which is what costs. If it breaks and nobody expected that, the check is called again
to search: all schedules below the failing ones, one at a time and smallest first, so that the first to break is the
smallest there is. ``--schedule 0,1`` has the check examine that one alone.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ..api.checking import NotRun
from ..api.schedules import Schedule, is_even, schedules, shapes, uneven_schedules, uneven_shapes
from ..subjects import Unsupported

EXAMPLES = 3  # drawn lists
MOST = 4  # schedules in a drawn list
TRIES = 25  # the search makes so many attempts, however long they take: all but the last pass, and cost little
SEARCH_S = 20.0  # and more than those only within this time

Examine = Callable[[list[Schedule]], None]


class Smallest(Exception):
    """The search found the smallest schedule; carries the error that it ends in."""

    def __init__(self, schedule: Schedule, error: Exception) -> None:
        super().__init__(f"smallest schedule: {schedule}: {error}")
        self.schedule, self.error = schedule, error


@dataclass
class Schedules:
    """The fixture ``schedules`` of one case."""

    world: int
    given: Schedule | None = None  # the only one to examine
    below: Sequence[Schedule] = ()  # search among those that are nowhere longer than one of these
    tries: int = TRIES
    search_s: float = SEARCH_S
    suspects: list[Schedule] = field(default_factory=list)  # the list in which something broke

    def examine(
        self, examine: Examine, fixed: Sequence[Schedule] | None = None, uneven: bool = False, drawn: bool = True,
        most: int = 4,
    ) -> None:  # fmt: skip
        """Examine the usual shapes (or ``fixed``) in one go, then drawn ones in another; ``uneven``: no even one."""
        if self.given is not None:
            self._try([self.given], examine)
        elif self.below:
            self._search(examine, uneven)
        else:
            usual = uneven_shapes(self.world) if uneven else list(shapes(self.world).values())
            several = usual if fixed is None else list(fixed)
            if several:
                self._try(several, examine)
            if drawn and self.world > 1:
                self._try(list(_drawn(self.world, most, uneven)), examine)

    def _try(self, several: list[Schedule], examine: Examine) -> None:
        try:
            examine(several)
        except Exception:
            self.suspects = several
            raise

    def _search(self, examine: Examine, uneven: bool) -> None:
        end = time.monotonic() + self.search_s
        for number, schedule in enumerate(smallest_first(self.below)):
            if number >= self.tries and time.monotonic() > end:
                return
            if uneven and is_even(schedule):
                continue
            try:
                examine([schedule])
            except (NotRun, Unsupported):
                raise
            except Exception as error:
                raise Smallest(schedule, error) from error


@functools.cache
def _drawn(world: int, most: int, uneven: bool) -> tuple[Schedule, ...]:
    """Some schedules, the same in every run."""
    one, found = uneven_schedules(world, most) if uneven else schedules(world, most), dict[Schedule, None]()

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(one, min_size=1, max_size=MOST))
    def draw(several: list[Schedule]) -> None:
        found.update(dict.fromkeys(several))

    draw()
    return tuple(found)


def smallest_first(tops: Sequence[Schedule]) -> list[Schedule]:
    """Every schedule that is nowhere longer than one of ``tops``: few inputs first, then those of the last ranks."""
    found = {each for top in tops for each in itertools.product(*[range(count + 1) for count in top])}
    return sorted(found, key=lambda schedule: (sum(schedule), schedule))
