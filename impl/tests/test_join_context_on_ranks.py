"""Join of impl as an object: what it accepts, how it nests and is entered again, what it leaves behind, its handle."""

import warnings

import pytest
import torch
import torch.distributed as dist

from conformance.ranks import Cluster, caught
from impl.join import FollowingHook, Join, JoinHook
from impl.tests.joinables import Plain

pytestmark = pytest.mark.slow


class Unit(Plain):
    def __init__(self, group, followed=False, device="cpu"):
        super().__init__(group)
        self.followed, self.device = followed, device
        self.hooks_run, self.hooks_made = [], 0

    def join_hook(self, **kwargs):
        self.hooks_made += 1
        return Follows(self) if self.followed else Shadows(self)

    @property
    def join_device(self):
        return torch.device(self.device)

    def step(self):
        if self.followed:
            self._join_session.begin(self)
        else:
            Join.notify_join_context(self)

    def state(self):
        return tuple(self._join_config), self._join_session is not None, bool(self._join_bindings)


class Shadows(JoinHook):
    def __init__(self, unit):
        self.unit = unit

    def main_hook(self):
        self.unit.hooks_run.append("main")

    def post_hook(self, is_last_joiner):
        self.unit.hooks_run.append(is_last_joiner)


class Follows(FollowingHook):
    acts = ("act",)

    def __init__(self, unit):
        self.unit = unit

    def follow(self, act):
        raise AssertionError("no act was announced")

    def post_hook(self, is_last_joiner):
        self.unit.hooks_run.append(is_last_joiner)


OFF = ((False, False, False), False, False)


@pytest.fixture(scope="module")
def cluster():
    with Cluster(deadline_s=40, persistent=True) as made:
        yield made


def on_ranks(cluster, function, *args, world=2, **options):
    return cluster.run(function, args, world=world, subject="impl", **options).values()


def enter_again(ctx, followed):
    unit = Unit(ctx.group, followed)
    context, states = Join([unit]), []
    for turn in range(3):
        with context:
            for _ in range(1 + (ctx.rank + turn) % 2):
                unit.step()
        states.append(unit.state())
    return [entry for entry in unit.hooks_run if entry != "main"], states, unit.hooks_made


@pytest.mark.parametrize("followed", [False, True], ids=["plain", "followed"])
def test_one_context_can_be_entered_again_and_again(cluster, followed):
    zero, one = on_ranks(cluster, enter_again, followed)
    assert zero == ([False, True, False], [OFF] * 3, 1)
    assert one == ([True, False, True], [OFF] * 3, 1)


def nest(ctx, followed):
    unit, states = Unit(ctx.group, followed), []
    with Join([unit], throw_on_early_termination=True):
        outside = unit._join_session
        for _ in range(2):
            unit.step()
            with Join([unit]):
                for _ in range(ctx.rank):
                    unit.step()
            states.append((unit.state()[0], unit._join_session is outside))
            with Join([unit], enable=False):
                states.append((unit.state()[0], unit._join_session is None))
                if not followed:
                    unit.step()
            states.append((unit.state()[0], unit._join_session is outside))
    return states, [entry for entry in unit.hooks_run if entry != "main"], unit.state()


@pytest.mark.parametrize("followed", [False, True], ids=["plain", "followed"])
def test_nested_contexts_give_the_joinable_back_to_the_one_around_them(cluster, followed):
    outer, off = ((True, True, True), True), ((False, False, True), True)
    for rank, (states, ends, after) in enumerate(on_ranks(cluster, nest, followed)):
        assert states == [outer, off, outer] * 2
        assert ends == [rank == 1, rank == 1, True]
        assert after == OFF


def enter_while_open(ctx):
    context = Join([Unit(ctx.group)])
    with context:
        return caught(context.__enter__)


def test_a_context_that_is_open_cannot_be_entered(cluster):
    for error in on_ranks(cluster, enter_while_open, world=1):
        assert error.is_a(RuntimeError)
        assert "entered already" in error.text


def accept(ctx):
    units = [Unit(ctx.group), Unit(ctx.group)]
    for kind in (list, tuple, iter, lambda them: (unit for unit in them)):
        with Join(kind(units)):
            for _ in range(ctx.rank):
                Join.notify_join_context(units[0])
    return [unit.hooks_run for unit in units]


def test_any_iterable_of_joinables_will_do(cluster):
    zero, one = on_ranks(cluster, accept)
    assert zero == [["main", False] * 4] * 2
    assert one == [[True] * 4] * 2


class Methods(Unit):
    """Writes device and group as methods instead of properties."""

    def join_device(self):
        return torch.device("cpu")


class GroupMethod(Unit):
    def join_process_group(self):
        return self.group


class Forgetful(Unit):
    def join_hook(self, **kwargs):
        super().join_hook(**kwargs)  # and returns nothing


class Duck:
    """Looks like a joinable and is none."""

    join_device = torch.device("cpu")
    join_process_group = None

    def join_hook(self):
        return JoinHook()


def refuse(ctx):
    group, other = ctx.group, dist.new_group(list(range(ctx.world)))
    bystander = Unit(group)
    lists = {
        "empty": [],
        "one joinable, no list": bystander,
        "no list at all": 3,
        "not joinable": [bystander, object()],
        "a duck": [bystander, Duck()],
        "twice": [bystander, Unit(group), bystander],
        "two groups": [bystander, Unit(other)],
        "device method": [Methods(group), bystander],
        "group method": [bystander, GroupMethod(group)],
        "a set": {bystander, Unit(group)},
        "no hook": [Forgetful(group), bystander],
        "no group": [bystander, Unit(dist.GroupMember.NON_GROUP_MEMBER)],
    }
    return {
        (name, enable): (caught(Join, joinables, enable), bystander.state() == OFF and not bystander.hooks_made)
        for name, joinables in lists.items()
        for enable in (True, False)
    }


def test_a_list_that_is_refused_leaves_no_trace_and_says_what_to_do(cluster):
    wanted = {
        "empty": (ValueError, "at least one joinable"),
        "one joinable, no list": (TypeError, "write Join([it])"),
        "no list at all": (TypeError, "got a int"),
        "not joinable": (TypeError, "entry 1 of the list is a object"),
        "a duck": (TypeError, "entry 1 of the list is a Duck"),
        "twice": (ValueError, "as entries 0 and 2"),
        "two groups": (ValueError, "joinable 1 (Unit) has another one than joinable 0 (Unit)"),
        "device method": (TypeError, "make it a property"),
        "group method": (TypeError, "make it a property"),
        "a set": (TypeError, "order differs between ranks"),
        "no hook": (TypeError, "returned a NoneType"),
        "no group": (ValueError, "not a member"),
    }
    (seen,) = on_ranks(cluster, refuse, world=1)
    assert len(seen) == 2 * len(wanted)
    for (name, _), (error, untouched) in seen.items():
        kind, words = wanted[name]
        assert error is not None, name
        assert error.is_a(kind), name
        assert words in error.text, name
        assert untouched, name


def use_the_handle(ctx, throw):
    unit, seen = Unit(ctx.group), []
    with Join([unit], throw_on_early_termination=throw):
        for _ in range(2 if throw else 1 + ctx.rank):
            handle = Join.notify_join_context(unit)
            waited = handle.wait()
            future = handle.get_future().wait()
            seen.append((isinstance(handle, dist.Work), waited, handle.is_completed(), handle.result()[0].tolist(),
                         future[0].tolist()))
    return seen


@pytest.mark.parametrize("throw", [False, True])
def test_the_handle_is_a_work_whose_result_is_the_number_of_active_ranks(cluster, throw):
    for rank, seen in enumerate(on_ranks(cluster, use_the_handle, throw)):
        active = [2.0, 2.0] if throw else [2.0, 1.0][: 1 + rank]
        assert seen == [(True, True, True, [number], [number]) for number in active]


def use_the_handle_of_a_followed_context(ctx):
    plain, follower, seen = Unit(ctx.group), Unit(ctx.group, followed=True), []
    with Join([plain, follower]):
        for _ in range(1 + ctx.rank):
            handle = Join.notify_join_context(plain)
            follower.step()  # the next message is on its way before the handle of this one is looked at
            count, nothing = handle.result()[0].tolist(), Join.notify_join_context(follower)
            seen.append((count, nothing, follower._join_session.active))
    return seen, plain.hooks_run, follower.hooks_run


def test_in_a_followed_context_the_handle_says_the_same(cluster):
    zero, one = on_ranks(cluster, use_the_handle_of_a_followed_context)
    assert zero == ([([2.0], None, 2)], ["main", False], [False])
    assert one == ([([2.0], None, 2), ([1.0], None, 1)], [True], [True])


class StepsAgain(Unit):
    """Its main hook is its ordinary step, notification included."""

    def join_hook(self, **kwargs):
        made = super().join_hook()
        made.main_hook = self.step
        return made

    def step(self):
        self.hooks_run.append(Join.notify_join_context(self) is not None)
        dist.all_reduce(torch.ones(1))


def step_again(ctx, schedule):
    unit = StepsAgain(ctx.group)
    with Join([unit]):
        for _ in range(schedule[ctx.rank]):
            unit.step()
    return unit.hooks_run


@pytest.mark.parametrize("schedule", [(0, 1), (1, 3), (3, 1), (2, 2)])
def test_a_notification_from_a_main_hook_is_vacuous(cluster, schedule):
    for rank, notified in enumerate(on_ranks(cluster, step_again, schedule)):
        live, shadowed = schedule[rank], max(schedule) - schedule[rank]
        assert notified == [True] * live + [False] * shadowed + [not shadowed]  # the post hook's flag comes last


class StepsAtTheEnd(Unit):
    """Its post hook notifies where this rank was among the last."""

    def join_hook(self, **kwargs):
        made = super().join_hook()
        made.post_hook = self.end
        return made

    def end(self, is_last_joiner):
        if is_last_joiner:
            self.hooks_run.append(Join.notify_join_context(self))


def step_at_the_end(ctx, schedule):
    unit = StepsAtTheEnd(ctx.group)
    with Join([unit]):
        for _ in range(schedule[ctx.rank]):
            unit.step()
    return unit.hooks_run


def test_a_notification_from_the_post_hook_of_the_last_ranks_alone_waits_for_nobody(cluster):
    mains = ["main", "main"]
    assert on_ranks(cluster, step_at_the_end, (1, 3)) == [mains, [None]]


def count_by_hand(ctx):
    unit = Unit(ctx.group)
    unit._join_config = type(unit._join_config)(True, False, True)
    return [Join.notify_join_context(unit).result()[0].item() for _ in range(2)]


def test_a_joinable_that_is_enabled_by_hand_does_the_bare_handshake(cluster):
    assert on_ranks(cluster, count_by_hand) == [[2.0, 2.0]] * 2


def skew(ctx, followed, iterations):
    unit = Unit(ctx.group, followed)
    before = list(warnings.filters)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with Join([unit]):
            for _ in range(iterations if ctx.rank else 0):
                unit.step()
    places = [warning.filename == __file__ for warning in seen]
    return [str(warning.message) for warning in seen], all(places), warnings.filters == before


@pytest.mark.parametrize("followed", [False, True], ids=["plain", "followed"])
@pytest.mark.parametrize(("iterations", "times"), [(1000, 0), (1001, 1), (1500, 1)])
def test_a_joined_rank_warns_of_a_skew_above_a_thousand_once_at_the_line_of_the_user(
    cluster, followed, iterations, times
):
    (texts, here, untouched), (others, *_) = on_ranks(cluster, skew, followed, iterations)
    assert len(texts) == times
    assert all("Rank 0" in text and "1000" in text for text in texts)
    assert here
    assert untouched
    assert others == []


def count_in_detail(ctx):
    unit, follower = Unit(ctx.group), Unit(ctx.group, followed=True)
    for joinables in ([unit], [follower]):
        with Join(joinables):
            for _ in range(1 + ctx.rank):
                joinables[0].step()
    return unit.hooks_run, follower.hooks_run


@pytest.mark.parametrize("level", ["INFO", "DETAIL"])
def test_contexts_work_at_the_debug_levels_of_torch_distributed(level):
    with Cluster(deadline_s=40) as fresh:
        found = on_ranks(fresh, count_in_detail, env={"TORCH_DISTRIBUTED_DEBUG": level})
    assert found == [(["main", False], [False]), ([True], [True])]


def first_device(ctx):
    cpu, meta = Unit(ctx.group), Unit(ctx.group, device="meta")
    return [Join([cpu, meta])._device.type, Join([meta, cpu])._device.type]


def test_the_device_of_the_first_joinable_serves_for_the_context(cluster):
    assert on_ranks(cluster, first_device, world=1) == [["cpu", "meta"]]


def ask_for_the_result_at_once(ctx):
    """Rank 0 asks before rank 1 has notified, which it does once rank 0 is about to wait."""
    unit = Unit(ctx.group)
    with Join([unit]):
        if ctx.rank:
            ctx.store.wait(["asking"])
        handle = Join.notify_join_context(unit)
        if not ctx.rank:
            ctx.store.set("asking", "1")
        return handle.result()[0].item()


def test_a_result_that_is_asked_for_at_once_waits_for_all_ranks(cluster):
    assert on_ranks(cluster, ask_for_the_result_at_once) == [2.0, 2.0]
