"""Takes every transition of every state of a configuration, by running it again and again from its start.

A run follows a prefix that leads to a state with transitions that nobody has taken, and then takes untaken ones as long
as there are some. Where a state has none left, everything behind it is known or waits its turn, and the run ends.

**Reduction.** While no rank has failed, ranks learn of each other only by collectives, whose results do not depend on
who came first: all orders lead to the same end, so one of them stands for all. The reduced search lets the suspect (the
rank that may fail) go as far as it can, and the others only so far as it waits for them; so what they may still do
after its failure is all that they may do at all. From the failure on, or from the first word in the store, every order
is taken, but for *sleeping* transitions: where two commute, and one was taken first, the other one first leads to
nothing new. ``reduced=False`` takes every order of everything; a test compares the ends of both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from .scheduling import DIE, GO, LOOK, RAISE, SLOW, Simulation, Step, Transition

#: A path to a state: the transitions taken where there was more than one.
Prefix = tuple[Transition, ...]


@dataclass
class Found:
    """What is known of one configuration."""

    runs: int = 0
    steps: int = 0
    states: int = 0  # distinct ones
    failure_points: int = 0  # failures in different states, from each of which the survivors were followed
    ends: dict[str, int] = field(default_factory=dict)  # each way to end, and how many runs came to it
    violation: str = ""  # the first, with its schedule
    complete: bool = False  # every transition of every state was taken
    seconds: float = 0.0

    def add(self, other: Found) -> None:
        """Count another search's finds with these; states are counted by whoever knows which are the same."""
        self.runs += other.runs
        self.steps += other.steps
        self.failure_points += other.failure_points
        self.seconds += other.seconds
        self.violation = self.violation or other.violation
        self.complete = self.complete and other.complete
        for end, count in other.ends.items():
            self.ends[end] = self.ends.get(end, 0) + count


class _Node:
    """A state: what can happen in it, and which of it was taken."""

    __slots__ = ("asleep", "taken", "untaken")

    def __init__(self, offered: Sequence[Transition], asleep: frozenset[Transition]) -> None:
        self.asleep = asleep
        self.untaken = [each for each in offered if each not in asleep]
        self.taken: set[Transition] = set()

    def wake(self, asleep: frozenset[Transition]) -> None:
        """Another way has come here, on which only these may be left out."""
        woken = self.asleep - asleep
        if woken:
            self.untaken += sorted(woken)
            self.asleep &= asleep


class Explorer:
    """The chooser of all runs of one configuration, and the map of states that they make."""

    def __init__(self, suspect: int | None, *, reduced: bool) -> None:
        self._suspect = suspect
        self._reduced = reduced
        self._nodes: dict[int, _Node] = {}  # by state
        self._asleep: frozenset[Transition] = frozenset()  # where this run is: see above
        self._frontier: deque[tuple[int, Prefix]] = deque()  # states with untaken transitions, perhaps, and the way
        self._goal: tuple[int, Prefix] | None = None  # of this run, until it has come there
        self._taken: list[Transition] = []  # of this run
        self.found = Found()

    def explore(self, run: Callable[[Explorer], str], more: Callable[[], bool] = lambda: True) -> Found:
        """Run until nothing is left, a property breaks, or ``more`` says that the time is up.

        ``run`` makes one run with this explorer as its chooser, and says how it ended; empty where that is known.
        """
        while not self.found.violation and more():
            self._taken, self._asleep = [], frozenset()
            end = run(self)
            self.found.runs += 1
            if end:
                self.found.ends[end] = self.found.ends.get(end, 0) + 1
            self._goal = self._next_goal()
            if self._goal is None:
                self.found.complete = not self.found.violation
                break
        self.found.states = len(self._nodes)
        return self.found

    @property
    def states(self) -> Set[int]:
        """All that were met, as hashes."""
        return self._nodes.keys()

    def _next_goal(self) -> tuple[int, Prefix] | None:
        while self._frontier:
            key, prefix = self._frontier.popleft()
            if self._nodes[key].untaken:
                return key, prefix
        return None

    def choose(self, simulation: Simulation, possible: Sequence[Transition]) -> Transition | None:
        """The next transition; None where all behind is known."""
        self.found.steps += 1
        offered = self._offered(simulation, possible)
        if self._goal is not None:
            if len(offered) == 1:
                return offered[0]
            key, prefix = self._goal
            if len(self._taken) < len(prefix):
                return self._again(prefix[len(self._taken)], offered)
            if simulation.key() != key:
                raise RuntimeError("a run does not repeat itself: the same transitions have led to another state")
            self._goal, self._asleep = None, self._nodes[key].asleep
        return self._untaken_one(simulation, offered)

    def _again(self, chosen: Transition, offered: Sequence[Transition]) -> Transition:
        if chosen not in offered:
            raise RuntimeError(f"a run does not repeat itself: {chosen} is not among {', '.join(map(str, offered))}")
        self._taken.append(chosen)
        return chosen

    def _untaken_one(self, simulation: Simulation, offered: Sequence[Transition]) -> Transition | None:
        key = simulation.key()
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = _Node(offered, self._asleep)
        else:
            node.wake(self._asleep)
        if not node.untaken:
            return None
        chosen = node.untaken.pop(0)
        if node.untaken:
            self._frontier.append((key, tuple(self._taken)))
        if len(offered) > 1:
            self._taken.append(chosen)
        if chosen.how in (RAISE, DIE):
            self.found.failure_points += 1
        if self._reduced:
            self._asleep = frozenset(each for each in node.asleep | node.taken if _commute(simulation, each, chosen))
        node.taken.add(chosen)
        return chosen

    # what is offered of what is possible

    def _offered(self, simulation: Simulation, possible: Sequence[Transition]) -> Sequence[Transition]:
        if not self._reduced:
            return possible
        if not simulation.is_calm():
            return next(([each] for each in possible if _concerns_nobody_else(simulation, each)), possible)
        ready = [each for each in possible if each.how == GO]
        if not ready:
            return possible
        first = min(ready, key=lambda each: self._turn(simulation, each.rank))
        offered = [each for each in possible if each.rank == first.rank and each.how in (GO, SLOW)]
        if not simulation.path or simulation.path[-1].rank == self._suspect:  # it has just come here
            offered += [each for each in possible if each.how in (RAISE, DIE)]
        return offered

    def _turn(self, simulation: Simulation, rank: int) -> tuple[bool, int, int]:
        """The suspect first, then whoever has started least: the suspect waits for nobody else."""
        return rank != self._suspect, simulation.messages.started_by(rank), rank


def _concerns_nobody_else(simulation: Simulation, transition: Transition) -> bool:
    """Whether a step neither changes what another rank can do nor depends on what others do from now on."""
    step = simulation.ranks[transition.rank].pending
    return transition.how == GO and step is not None and step.kind in ("wait", "point")


def _commute(simulation: Simulation, one: Transition, other: Transition) -> bool:
    """Whether two transitions that are both possible lead to the same state in either order."""
    if one.rank == other.rank or not {one.how, other.how} <= {GO, LOOK}:
        return False
    first, second = simulation.ranks[one.rank].pending, simulation.ranks[other.rank].pending
    if first is None or second is None:
        return False
    if "start" in (first.kind, second.kind):
        return LOOK not in (one.how, other.how)  # it may end the wait from which the other one would look up
    return not _meet_in_the_store(first, second)


def _meet_in_the_store(first: Step, second: Step) -> bool:
    return bool((first.writes or second.writes) and first.words & second.words)
