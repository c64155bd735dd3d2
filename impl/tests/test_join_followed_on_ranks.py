"""Contexts with followers of impl: joined ranks do what live ranks announce, whatever the program of the live ranks."""

import warnings
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.ranks import Cluster, caught
from impl.ddp import DistributedDataParallel
from impl.join import FollowingHook, Join, JoinHook
from impl.tests.joinables import Plain

pytestmark = pytest.mark.slow

QUICK = settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

ACTS = ("first", "second")


# a joinable for every kind, each of whose acts is an all-reduce of a size of its own: a mismatch cannot go unseen


class FollowHook(FollowingHook):
    acts = ACTS

    def __init__(self, thing, leads):
        self.thing = thing
        self.leads = leads

    def follow(self, act):
        if not self.thing.owes:
            assert self.thing._join_session.shadowing
            self.thing._join_session.begin(self.thing, act)  # vacuous on a joined rank, as is the next
            self.thing._join_session.announce(self.thing, act)
        self.thing.act(act, 0)

    def main_hook(self):
        """Followers are told what to do, and never asked to guess."""

    def post_hook(self, is_last_joiner):
        session = self.thing._join_session
        self.thing.ends.append((is_last_joiner, (session.source, session.active), session.shadowing))


class MainHook(JoinHook):
    def __init__(self, thing):
        self.thing = thing

    def main_hook(self):
        assert Join.notify_join_context(self.thing) is None
        if self.thing.steps:
            self.thing.act(0, 0)

    def post_hook(self, is_last_joiner):
        self.thing.ends.append((is_last_joiner, None, False))


class Thing(Plain):
    """Joinable number ``place`` of its list; ``kind`` is lead, end or plain. All things of a rank share one log."""

    def __init__(self, place, kind, group, log):
        super().__init__(group)
        self.place, self.kind, self.log = place, kind, log
        self.ends = []
        self.owes = False  # whether a live rank may be asked to follow
        self.steps = True  # whether it does so at all; else there is nothing to shadow

    def join_hook(self, **kwargs):
        return MainHook(self) if self.kind == "plain" else FollowHook(self, self.kind == "lead")

    def act(self, number, value):
        buffer = torch.full((1 + 3 * self.place + number,), float(value))
        session = self._join_session
        dist.all_reduce(buffer, group=self.group)
        self.log.append((self.place, number, buffer[0].item(), session.active, session.source))

    def step(self, acts, at_once, value):
        """One iteration of this joinable: begin, then its acts. ``at_once`` announces the first with the roll call."""
        if self.kind == "plain":
            Join.notify_join_context(self)
            self.act(0, value)
            return
        session = self._join_session
        session.begin(self, acts[0] if acts and at_once else None)
        for place, number in enumerate(acts):
            if place or not at_once:
                session.announce(self, number)
            self.act(number, value)


@dataclass(frozen=True)
class Case:
    """Kinds of the joinables, in list order; counts by rank; per iteration the steps (place, acts, at once)."""

    kinds: tuple[str, ...]
    schedule: tuple[int, ...]
    program: tuple[tuple[tuple[int, tuple[int, ...], bool], ...], ...]


def play(ctx, cases, throw=False, upper=False):
    """Each case in a context of its own; by case: log, number of whole iterations, ends, error, collectives."""
    group = dist.new_group(list(range(1, ctx.world))) if upper else ctx.group
    if upper and ctx.rank == 0:
        return None
    return [play_one(case, group, throw) for case in cases]


def play_one(case, group, throw):
    rank, log, done = dist.get_rank(group), [], 0
    things = [Thing(place, kind, group, log) for place, kind in enumerate(case.kinds)]
    for thing in things:
        thing.steps = any(place == thing.place for steps in case.program for place, _, _ in steps)

    def run():
        nonlocal done
        with Join(things, throw_on_early_termination=throw):
            for steps in case.program[: case.schedule[rank]]:
                for place, acts, at_once in steps:
                    things[place].step(acts, at_once, 1 + rank)
                done += 1

    error = caught(run)
    assert all(thing._join_session is None and not thing._join_config.enable for thing in things)
    return log, done, [thing.ends for thing in things], error


def expected_log(case):
    """What one process says every rank's log must be: the acts in program order with their sums over active ranks."""
    log = []
    for iteration, steps in enumerate(case.program):
        active = [rank for rank, count in enumerate(case.schedule) if count > iteration]
        if active:
            for place, acts, _ in steps:
                numbers = acts if case.kinds[place] != "plain" else (0,)
                told = float(sum(1 + rank for rank in active)), len(active), max(active)
                log += [(place, number, *told) for number in numbers]
    return log


def examine(case, seen):
    busiest = max(case.schedule)
    last = tuple(rank for rank, count in enumerate(case.schedule) if count == busiest)
    for rank, (log, done, ends, error) in enumerate(seen):
        assert error is None, f"rank {rank} of {case}: {error}"
        assert done == case.schedule[rank]
        assert log == expected_log(case), f"rank {rank} of {case}"
        for place, told in enumerate(ends):
            plain = case.kinds[place] == "plain"
            assert told == [(rank in last, None if plain else (last[-1], len(seen)), False)], f"rank {rank} of {case}"


@st.composite
def cases(draw, world):
    kinds = tuple(draw(st.lists(st.sampled_from(["lead", "lead", "end", "plain"]), min_size=1, max_size=3)))
    if not {"lead", "end"} & set(kinds):
        kinds += ("lead",)
    schedule = tuple(draw(st.lists(st.integers(0, 4), min_size=world, max_size=world)))
    openers = [place for place, kind in enumerate(kinds) if kind != "end" or "lead" not in kinds]
    closers = [place for place in range(len(kinds)) if place not in openers]
    acts = st.lists(st.sampled_from(range(len(ACTS))), max_size=3).map(tuple)  # none at all: an evaluation

    def steps(places, at_least):
        one = st.tuples(st.sampled_from(places), acts, st.booleans())
        return draw(st.lists(one, min_size=at_least, max_size=3)) if places else []

    # an iteration: steps of those that may open one, in any order and number; then steps of those that end one
    program = tuple(tuple(steps(openers, 1) + steps(closers, 0)) for _ in range(max(schedule)))
    return Case(kinds, schedule, once_an_iteration(kinds, program))


def once_an_iteration(kinds, program):
    """Without the further steps of a plain joinable before somebody that leads steps again: its hook runs once."""
    leading = "lead" if "lead" in kinds else "end"
    stepped, kept = set(), []
    for steps in program:
        mine = []
        for step in steps:
            place = step[0]
            if kinds[place] == leading:
                stepped.clear()
            if kinds[place] == "plain" and place:
                if place in stepped:
                    continue
                stepped.add(place)
            mine.append(step)
        if not mine:  # somebody steps in each
            mine.append((kinds.index(leading), (), False))
            stepped.clear()
        kept.append(tuple(mine))
    return tuple(kept)


@pytest.fixture(scope="module")
def cluster():
    with Cluster(deadline_s=60, persistent=True) as made:
        yield made


def played(cluster, several, world, **options):
    by_rank = cluster.run(play, (several, *options.values()), world=world, subject="impl").values()
    return [value for value in by_rank if value is not None]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_joined_ranks_perform_each_act_that_live_ranks_perform_in_the_same_order(cluster, world):
    @QUICK
    @given(st.lists(cases(world), min_size=5, max_size=5))
    def holds(several):
        by_rank = played(cluster, several, world)
        for case, *seen in zip(several, *by_rank, strict=True):
            examine(case, seen)

    holds()


def steady(kinds, steps, schedule):
    return Case(kinds, schedule, (steps,) * max(schedule))


LEAD = (0, (0, 1), False)
EVALUATION = (0, (), False)
NAMED = {
    "one leader": (("lead",), (LEAD,)),
    "evaluations only": (("lead",), (EVALUATION,)),
    "an evaluation in every iteration": (("lead",), (EVALUATION, LEAD)),
    "two steps before the end": (("lead",), (LEAD, (0, (1,), True))),
    "a leader and one that ends": (("lead", "end"), (LEAD, (1, (0,), True))),
    "listed the other way round": (("end", "lead"), ((1, (0, 1), True), (0, (1,), False))),
    "one that ends, alone": (("end",), ((0, (0,), True),)),
    "several that end, one opens": (("end", "end"), ((0, (0,), True), (1, (0,), False))),
    "the one that ends steps first": (("lead", "end"), ((1, (0,), True), (0, (0, 1), False))),
    "plain first": (("plain", "lead"), ((0, (), False), (1, (0, 1), True))),
    "plain first in the list, last in the loop": (("plain", "lead"), ((1, (0, 1), True), (0, (), False))),
    "plain last": (("lead", "plain"), (LEAD, (1, (), False))),
    "leaders that take turns": (("lead", "lead"), (LEAD, (1, (1, 0), True))),
}
SCHEDULES = [(0, 0, 0), (2, 2, 2), (0, 1, 3), (3, 1, 0), (1, 3, 3), (3, 3, 1), (0, 0, 2)]


@pytest.mark.parametrize("name", NAMED)
def test_programs_that_people_write(cluster, name):
    several = [steady(*NAMED[name], schedule) for schedule in SCHEDULES]
    for case, *seen in zip(several, *played(cluster, several, 3), strict=True):
        examine(case, seen)


def test_models_that_train_in_alternate_iterations(cluster):
    program = (((0, (0, 1), False),), ((1, (0,), True),)) * 2
    several = [Case(("lead", "lead"), schedule, program) for schedule in [(1, 4), (4, 1), (2, 3), (0, 4)]]
    for case, *seen in zip(several, *played(cluster, several, 2), strict=True):
        examine(case, seen)


def test_a_plain_joinable_that_steps_only_in_the_beginning(cluster):
    """It has been shadowed as often as it needed to be: who has run out owes it nothing in the end."""
    program = ((LEAD, (1, (), False)), (LEAD,), (LEAD,))
    several = [Case(("lead", "plain"), schedule, program) for schedule in [(1, 3, 2), (0, 1, 3), (3, 3, 1)]]
    for case, *seen in zip(several, *played(cluster, several, 3), strict=True):
        examine(case, seen)


def test_a_subgroup_counts_its_own_ranks(cluster):
    several = [steady(*NAMED["a leader and one that ends"], schedule) for schedule in [(3, 1), (1, 3), (0, 2)]]
    for case, *seen in zip(several, *played(cluster, several, 3, throw=False, upper=True), strict=True):
        examine(case, seen)


@pytest.mark.parametrize("name", [name for name in NAMED if "first in the list" not in name])
def test_in_throwing_mode_all_ranks_stop_before_the_first_uneven_iteration(cluster, name):
    several = [steady(*NAMED[name], schedule) for schedule in SCHEDULES]
    for case, *seen in zip(several, *played(cluster, several, 3, throw=True), strict=True):
        least = min(case.schedule)
        if least == max(case.schedule):
            examine(case, seen)
            continue
        for rank, (log, done, ends, error) in enumerate(seen):
            assert error is not None
            assert error.is_a(RuntimeError)
            who = f"Rank {rank} exhausted" if case.schedule[rank] == least else "one rank that exhausted inputs"
            assert who in error.text
            assert done == least
            assert not any(ends)
            assert log == expected_log(Case(case.kinds, (least,) * 3, case.program[:least]))


# what rank 1 and rank 2 do in a context in which rank 0 has joined
DISAGREEMENTS = {
    "they begin different models": lambda session, rank, a, b: session.begin(a if rank == 1 else b),
    "they announce different acts": lambda session, rank, a, _: session.begin(a, rank - 1),
    "one begins, one announces": lambda session, rank, a, _: session.begin(a) if rank == 1 else session.announce(a, 1),
}


def part_ways(ctx, way):
    log = []
    things = [Thing(place, "lead", ctx.group, log) for place in range(2)]

    def run():
        with Join(things):
            if ctx.rank:
                things[0].step((0,), True, 1)  # rank 0 has joined: from here on acts are announced
                DISAGREEMENTS[way](things[0]._join_session, ctx.rank, *things)
                things[0]._join_session.announce(things[0], 0)  # nobody gets past this

    error = caught(run)
    return error, len(log), [thing._join_config.enable for thing in things]


@pytest.mark.parametrize("way", DISAGREEMENTS)
def test_live_ranks_that_disagree_all_get_a_clear_error_and_so_do_joined_ranks(cluster, way):
    for error, acts, enabled in cluster.run(part_ways, (way,), world=3, subject="impl").values():
        assert error is not None
        assert error.kinds[0] == "RanksDisagree"
        assert error.is_a(RuntimeError)
        assert "disagree about what comes next" in error.text
        assert acts == 1
        assert enabled == [False, False]


def skip_the_buffers(ctx, skipping):
    """In its second iteration one rank accumulates; so in the third the other sends buffers, and nobody takes them."""
    layer = torch.nn.Linear(1, 1)
    layer.register_buffer("count", torch.zeros(1))
    model = DistributedDataParallel(layer)

    def run():
        with model.join():
            for iteration in range(3):
                with model.no_sync() if (ctx.rank, iteration) == (skipping, 1) else nullcontext():
                    loss = model(torch.ones(1, 1)).sum()
                if (ctx.rank, iteration) != (skipping, 1):
                    loss.backward()

    return caught(run)


@pytest.mark.parametrize("skipping", [0, 1])
def test_a_rank_that_waits_where_others_never_come_is_told_that_they_disagree(cluster, skipping):
    first, second = cluster.run(skip_the_buffers, (skipping,), world=2, subject="impl").values()
    assert [error.kinds[0] for error in (first, second)] == ["RanksDisagree"] * 2
    assert all("'BUFFERS' of joinable 0" in error.text for error in (first, second))


def count_messages(ctx, schedule):
    thing = Thing(0, "lead", ctx.group, [])
    with Join([thing]):
        for _ in range(schedule[ctx.rank]):
            thing.step((0, 1), False, 1)
    return [(event.dtype, *event.shape) for event in ctx.trace()]


def test_a_steady_iteration_costs_one_message_and_announcements_come_with_the_first_joined_rank():
    with Cluster(deadline_s=60) as cluster:
        for events in cluster.run(count_messages, ((2, 4),), world=2, subject="impl", trace=True).values():
            message, *acts = ("int64", 1), ("float32", 1), ("float32", 2)
            steady_iteration = [message, *acts]
            announced_iteration = [message, message, acts[0], message, acts[1]]  # calls the roll, learns who has joined
            next_iteration = [message, acts[0], message, acts[1]]  # the roll is called with the first announcement
            assert events == steady_iteration * 2 + announced_iteration + next_iteration + [message]


def announce_early(ctx, comes):
    """Rank 0 has joined; in later iterations the others announce an act early that comes, or not. Error and log."""
    log = []
    thing = Thing(0, "lead", ctx.group, log)
    thing.owes = not comes and ctx.rank > 0

    def run():
        with Join([thing]):
            for iteration in range(3 if ctx.rank else 0):
                session = thing._join_session
                session.begin(thing)
                if iteration:
                    session.announce_early(thing, 1)
                if comes or not iteration:
                    session.announce(thing, 1)
                    thing.act(1, 1 + ctx.rank)

    error = caught(run)
    return None if error is None else error.text, [entry[2:4] for entry in log]


@pytest.mark.parametrize("comes", [True, False])
def test_an_act_that_is_announced_early_and_does_not_come_is_shadowed_by_all(cluster, comes):
    said = (2.0 + 3.0, 2)
    owed = said if comes else (0.0, 2)  # nobody adds anything
    for error, log in cluster.run(announce_early, (comes,), world=3, subject="impl").values():
        assert error is None
        assert log == [said, owed, owed]


def train_alone(ctx, schedule):
    """Rank 1 trains on when rank 0 has run out; shapes of what rank 1 sends, its weights, and who warned of skew."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)))
        with model.join():
            for _ in range(schedule[ctx.rank]):
                model.zero_grad()
                model(torch.ones(2, 4)).sum().backward()
    texts = [str(each.message) for each in shown if "skew" in str(each.message)]
    return [event.shape for event in ctx.trace()], [value.tolist() for value in model.state_dict().values()], texts


def test_a_rank_that_is_alone_sends_signs_of_life_only_and_its_iterations_are_counted():
    with Cluster(deadline_s=60) as cluster:
        short = cluster.run(train_alone, ((2, 6),), world=2, subject="impl", trace=True).values()
        long = cluster.run(train_alone, ((2, 1100),), world=2, subject="impl", trace=True).values()
    for one, other in (short, long):
        assert len(one[0]) == len(other[0])
        assert one[1] == other[1]
    assert len(long[0][0]) < len(short[0][0]) + 2 * 100  # an iteration at work sends three and more
    assert [bool(texts) for _, _, texts in long] == [True, False]
    assert [bool(texts) for _, _, texts in short] == [False, False]
