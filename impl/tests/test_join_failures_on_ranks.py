"""Contexts of impl that are left by an exception: the peers learn of it at once, nothing hangs or stays behind."""

import warnings

import pytest
import torch
import torch.distributed as dist

from conformance.ranks import Cluster
from impl.comm import collectives
from impl.errors import PeerFailed
from impl.join import FollowingHook, Join, JoinHook
from impl.tests.joinables import Plain

pytestmark = pytest.mark.slow


class Bad(Exception):
    """What the failing rank raises."""


class Unit(Plain):
    """Counts in a plain or a followed context; on the rank that fails, its hooks raise where they are told to."""

    def __init__(self, ctx, followed, fails_in=None):
        super().__init__(ctx.group)
        self.followed, self.fails_in = followed, fails_in
        self.hooks_run = []

    def fail(self, where):
        self.hooks_run.append(where)
        if self.fails_in == where:
            raise Bad(f"in the {where}")

    def join_hook(self, **kwargs):
        return Follows(self) if self.followed else Shadows(self)

    def step(self):
        """One iteration; in a followed context it has one act, whose all-reduce is watched as DDP's are."""
        if not self.followed:
            Join.notify_join_context(self)
            return
        session = self._join_session
        session.begin(self, 0)
        self.reduce(1.0)

    def reduce(self, value):
        session = self._join_session
        return collectives.all_reduce(session.team, torch.full((2,), value), "act").wait(session.watch)


class Shadows(JoinHook):
    def __init__(self, unit):
        self.unit = unit

    def main_hook(self):
        self.unit.fail("main hook")

    def post_hook(self, is_last_joiner):
        self.unit.fail("post hook")


class Follows(FollowingHook):
    acts = ("act",)

    def __init__(self, unit):
        self.unit = unit

    def follow(self, act):
        self.unit.fail("main hook")
        self.unit.reduce(0.0)

    def post_hook(self, is_last_joiner):
        self.unit.fail("post hook")
        if self.unit.followed:
            self.unit.reduce(1.0)  # as DDP's final synchronisation: the peers wait here for the rank that failed


def raise_on_one_rank(ctx, followed, throw, failing, iteration, where, error_name):
    """Rank ``failing`` raises; what every rank saw: error class, text, notes, hooks run, state restored."""
    mine = ctx.rank == failing
    unit = Unit(ctx, followed, where if mine else None)
    count = iteration if mine and where != "body" else 4
    ctx.meet("start")
    try:
        with Join([unit], throw_on_early_termination=throw):
            for i in range(count):
                if mine and where == "body" and i == iteration:
                    raise {"Bad": Bad, "KeyboardInterrupt": KeyboardInterrupt}[error_name]("in the body")
                unit.step()
    except BaseException as error:
        seen = (type(error).__name__, str(error), list(getattr(error, "__notes__", ())))
    else:
        seen = None
    ctx.meet("end")  # nobody's process ends while others may still wait for it: only the notes can tell
    return seen, unit.hooks_run, not unit._join_config.enable and unit._join_session is None


@pytest.fixture(scope="module")
def cluster():
    # fresh ranks for each run: a collective that a failed peer never met keeps its process group busy for good, and a
    # process that lives on meets that again when the group is collected
    with Cluster(deadline_s=40, stall_s=20) as made:
        yield made


def expect(by_rank, failing, error_name, where):
    for rank, (seen, hooks, restored) in enumerate(by_rank):
        assert restored
        assert seen is not None, f"rank {rank} noticed nothing"
        kind, text, _ = seen
        if rank == failing:
            assert (kind, text) == (error_name, f"in the {where}")
            assert hooks == [] if where == "body" else hooks[-1] == where
        else:
            assert kind == "PeerFailed"
            assert f"rank {failing} left the join context with {error_name}: in the {where}" in text
            assert "post hook" not in hooks or where == "post hook"


@pytest.mark.parametrize("followed", [False, True], ids=["plain", "followed"])
@pytest.mark.parametrize("throw", [False, True], ids=["", "throwing"])
@pytest.mark.parametrize("iteration", [0, 2], ids=["before its first notification", "later"])
@pytest.mark.parametrize("failing", [0, 2])
def test_an_exception_in_the_body_reaches_every_peer(cluster, followed, throw, iteration, failing):
    order = (followed, throw, failing, iteration, "body", "Bad")
    expect(cluster.run(raise_on_one_rank, order, world=3, subject="impl").values(), failing, "Bad", "body")


@pytest.mark.parametrize("followed", [False, True], ids=["plain", "followed"])
def test_an_interrupt_from_the_keyboard_reaches_every_peer(cluster, followed):
    order = (followed, False, 1, 1, "body", "KeyboardInterrupt")
    by_rank = cluster.run(raise_on_one_rank, order, world=2, subject="impl").values()
    expect(by_rank, 1, "KeyboardInterrupt", "body")


@pytest.mark.parametrize("followed", [False, True], ids=["plain", "followed"])
@pytest.mark.parametrize("iteration", [0, 2], ids=["at once", "later"])
def test_an_exception_in_a_main_hook_reaches_every_peer(cluster, followed, iteration):
    order = (followed, False, 0, iteration, "main hook", "Bad")
    expect(cluster.run(raise_on_one_rank, order, world=3, subject="impl").values(), 0, "Bad", "main hook")


def test_an_exception_in_a_post_hook_reaches_peers_that_wait_in_theirs(cluster):
    order = (True, False, 1, 4, "post hook", "Bad")
    expect(cluster.run(raise_on_one_rank, order, world=3, subject="impl").values(), 1, "Bad", "post hook")


def test_an_exception_in_a_post_hook_without_communication_stays_where_it_is_and_nobody_hangs(cluster):
    order = (False, False, 1, 4, "post hook", "Bad")
    by_rank = cluster.run(raise_on_one_rank, order, world=3, subject="impl").values()
    assert [seen and seen[0] for seen, *_ in by_rank] == [None, "Bad", None]
    assert all(restored for _, _, restored in by_rank)


def raise_everywhere(ctx):
    unit = Unit(ctx, followed=False)
    before = 0
    try:
        with Join([unit]):
            unit.step()
            before = len(ctx.trace())
            raise KeyError("mine")
    except KeyError as error:
        return len(ctx.trace()) - before, unit.hooks_run, str(error), error.__cause__ is error.__context__ is None
    return None


def test_ranks_that_all_raise_each_keep_their_own_error_and_start_no_collective(cluster):
    run = cluster.run(raise_everywhere, (), world=3, subject="impl", trace=True)
    assert run.values() == [(0, [], "'mine'", True)] * 3


def fail_after_a_peer(ctx):
    unit = Unit(ctx, followed=False)
    try:
        with Join([unit]):
            unit.step()
            if ctx.rank == 0:
                raise ValueError("the cause")
            ctx.store.wait(["left"])
            raise RuntimeError("connection reset")
    except (ValueError, RuntimeError) as error:
        if ctx.rank == 0:
            ctx.store.set("left", "1")
        return str(error), getattr(error, "__notes__", [])


def test_an_error_that_follows_from_a_peers_names_the_first_rank_that_failed(cluster):
    first, *others = cluster.run(fail_after_a_peer, (), world=3, subject="impl").values()
    assert first == ("the cause", [])
    for text, notes in others:
        assert text == "connection reset"
        assert len(notes) == 1
        assert "rank 0 left the join context with ValueError: the cause" in notes[0]


def fail_then_go_on(ctx):
    """After a context that failed on all ranks, the next one works: notes of the past are not read again."""
    results = []
    for attempt in range(3):
        unit = Unit(ctx, followed=attempt % 2 == 0)
        team = dist.new_group(list(range(ctx.world)))  # the old group's collectives no longer match
        unit.group = team
        try:
            with Join([unit]):
                for _ in range(1 + ctx.rank):
                    unit.step()
                if attempt == 0:
                    raise Bad("everywhere")
            results.append(unit.hooks_run.count("post hook"))
        except (Bad, PeerFailed):  # a rank may learn of the peer that failed before it fails itself
            results.append("failed")
    return results


def test_a_failure_does_not_follow_into_the_next_context(cluster):
    assert cluster.run(fail_then_go_on, (), world=2, subject="impl").values() == [["failed", 1, 1]] * 2


def throw_inside_another(ctx):
    """Ranks 0 and 1 stop in a throwing context of their own; rank 2 waits for them in the one around it."""
    pair = dist.new_group([0, 1])
    outer, inner = Unit(ctx, followed=False), Unit(ctx, followed=True)
    inner.group = pair
    try:
        with Join([outer]):
            outer.step()
            if ctx.rank < 2:
                with Join([inner], throw_on_early_termination=True):
                    for _ in range(1 + ctx.rank):
                        inner.step()
    except RuntimeError as error:
        return type(error).__name__, str(error)
    return None


def test_an_error_that_all_ranks_of_an_inner_context_know_is_told_to_those_of_the_outer(cluster):
    zero, one, two = cluster.run(throw_inside_another, (), world=3, subject="impl").values()
    assert zero[0] == one[0] == "InputsExhausted"
    assert two[0] == "PeerFailed"
    assert "left the join context with InputsExhausted" in two[1]


def warn_as_error(ctx, iterations):
    """A warning turned into an error is an exception like any other: the peers are told."""
    unit = Unit(ctx, followed=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with Join([unit]):
                for _ in range(iterations if ctx.rank else 0):
                    unit.step()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def test_a_skew_warning_that_is_an_error_is_told_to_the_peers(cluster):
    first, second = cluster.run(warn_as_error, (1001,), world=2, subject="impl").values()
    assert first[0] == "UserWarning"
    assert second[0] == "PeerFailed"
    assert "UserWarning" in second[1]
