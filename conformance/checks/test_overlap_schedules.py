"""When the overlapped step does what: the order of reductions, partial steps and messages in both variants."""

import threading
from dataclasses import replace

from conformance.api.checking import MANY, check
from conformance.fixtures import overlapping
from conformance.fixtures.observing import reduced_elements, reductions, show_reductions, started
from conformance.fixtures.overlapping import Overlap, assert_as_alone, iteration, names_in, pair_of, published
from conformance.fixtures.training import parameters
from conformance.ranks import Caught, caught
from conformance.subjects import Unsupported

HOOKS = {"sequential": False, "interleaved": True}
DEADLINE_S = 5.0
READY = 4  # by then every implementation steps
LATE_S = 2.0  # how long a late future waits for what should precede it


class Timeline:
    """What happens on one rank during an iteration, in order: ("hook", bucket), ("step", names), ("late", bucket)."""

    def __init__(self):
        self.pair = None
        self.events = []
        self.buckets = {}
        self.stepped = threading.Event()

    def hook(self, state, bucket):
        self.events.append(("hook", bucket.index()))
        self.buckets[bucket.index()] = names_in(self.pair, bucket)
        return overlapping.settled(state, bucket)

    def spy(self):
        """From now on note which parameters each call of the local optimizer's ``step`` moves.

        Only those that this rank steps: what another owner sent before may arrive during the call.
        """
        optim = getattr(self.pair.zero, "optim", None)
        if optim is None:
            raise Unsupported("the optimizer has no attribute optim whose steps could be watched")
        step, own = optim.step, overlapping.stateful(self.pair)

        def watched(*args, **kwargs):
            before = parameters(self.pair.model)
            found = step(*args, **kwargs)
            after = parameters(self.pair.model)
            moved = [name for name in after if name in own and after[name] != before[name]]
            if moved:
                self.events.append(("step", tuple(moved)))
                self.stepped.set()
            return found

        optim.step = watched

    def clear(self):
        self.events, self.buckets = [], {}
        self.stepped.clear()

    def in_buckets(self):
        """The events with the numbers of the buckets whose parameters were stepped."""
        number = {name: index for index, names in self.buckets.items() for name in names}
        return [
            (what, sorted({number[name] for name in which}) if what == "step" else which) for what, which in self.events
        ]


def timed(ctx, how):
    """The events of an iteration in which every implementation steps."""
    line = Timeline()
    line.pair = pair = pair_of(ctx, replace(how, hook=line.hook))
    for number in range(READY):
        iteration(pair, number)
    line.spy()
    line.clear()
    iteration(pair, READY)
    return line.in_buckets()


def places(events, what):
    return [place for place, (kind, _) in enumerate(events) if kind == what]


@check("HOOK-030", scenarios={"whole buckets": False, "sharded": True}, deadline_s=DEADLINE_S)
def test_sequential_steps_come_after_the_last_reduction_in_bucket_order(ranks, scenario):
    stepped = set()
    for events in ranks(timed, Overlap(shard=scenario)):
        hooks, steps = places(events, "hook"), places(events, "step")
        assert len(hooks) > 1
        assert not steps or max(hooks) < min(steps), "a step before the last bucket's hook was called"
        order = [bucket for place in steps for bucket in events[place][1]]
        assert order == sorted(set(order)), "one step for each bucket, in order"
        stepped |= set(order)
    assert stepped == set(range(len(hooks)))


@check("HOOK-034", deadline_s=DEADLINE_S)
def test_interleaved_a_bucket_is_stepped_before_later_buckets_are_reduced(ranks):
    early = set()
    for events in ranks(timed, Overlap(True)):
        last = max(places(events, "hook"))
        count = len(places(events, "hook"))
        early |= {bucket for place in places(events, "step") if place < last for bucket in events[place][1]}
    # the last bucket cannot be early, and whoever steps on the thread of the backward lags one bucket behind
    assert count > 3
    assert set(range(count - 2)) <= early, f"stepped before the last of {count} buckets was reduced: {sorted(early)}"


# -- HOOK-031, HOOK-049: futures that complete late


class LastComesLate(Timeline):
    """The future of the last bucket completes once an earlier bucket has been stepped here, or after a long time."""

    def hook(self, state, bucket):
        future = super().hook(state, bucket)
        if not bucket.is_last() or not self.waits():
            return future
        late = overlapping.new_future(future.value())
        threading.Thread(target=self.complete, args=(late, bucket.index(), future.value()), daemon=True).start()
        return late

    def waits(self):
        """Whether this rank has a bucket to step beside the last one."""
        return self.watching and any(self.own & set(names) for names in list(self.buckets.values())[:-1])

    def complete(self, late, index, value):
        self.stepped.wait(LATE_S)
        self.events.append(("late", index))
        late.set_result(value)

    watching = False
    own = frozenset()


def step_before_the_last_is_done(ctx, how):
    line = LastComesLate()
    line.pair = pair = pair_of(ctx, replace(how, hook=line.hook))
    seen = [iteration(pair, number) for number in range(READY)]
    line.own, line.watching = overlapping.stateful(pair), True
    line.spy()
    line.clear()
    seen.append(iteration(pair, READY))
    return seen, line.in_buckets()


@check("HOOK-031", worlds=MANY, scenarios=HOOKS, deadline_s=DEADLINE_S)
def test_a_step_waits_for_its_own_bucket_only(ranks, scenario):
    results = ranks(step_before_the_last_is_done, Overlap(scenario))
    waited = 0
    for _, events in results:
        if places(events, "late"):
            waited += 1
            assert min(places(events, "step")) < min(places(events, "late")), "no step until the last was reduced"
    assert waited, "no rank had anything to step before the last bucket"
    assert_as_alone([seen for seen, _ in results], Overlap(scenario))


def train(ctx, how):
    return overlapping.iterations(pair_of(ctx, how))


@check("HOOK-049", worlds=MANY, deadline_s=DEADLINE_S)
def test_a_bucket_is_stepped_only_when_its_future_says_that_it_is_averaged(ranks):
    how = Overlap(hook=overlapping.late)
    assert True in assert_as_alone(ranks(train, how), how)


# -- HOOK-033: what the returned futures hold


def keep_futures(ctx, how):
    """For each iteration: whether what the hook returned holds what the wrapped hook's future holds, and gradients."""
    inner, same = {}, []

    def hook(state, bucket):
        inner[bucket.index()] = future = overlapping.settled(state, bucket)
        return future

    def outer(made):
        def registered(state, bucket):
            returned = made(state, bucket)
            theirs = inner[bucket.index()].wait()
            if not how.interleaved:  # the other one's depends on later buckets
                same.append(returned.wait().data_ptr() == theirs.data_ptr())
            return returned

        return registered

    pair = pair_of(ctx, replace(how, hook=hook), outer=outer)
    return overlapping.iterations(pair), same


@check("HOOK-033", deadline_s=DEADLINE_S)
def test_sequential_returned_futures_hold_what_the_wrapped_hooks_do(ranks):
    results = ranks(keep_futures, Overlap())
    assert True in assert_as_alone([seen for seen, _ in results], Overlap())
    for rank, (_, same) in enumerate(results):
        assert same, "no future was returned to look at"
        assert all(same), f"rank {rank}: {same.count(False)} of {len(same)} futures hold another tensor than the hook's"


# -- HOOK-036: completion by counting


def hand_out_backwards(group, bucket):
    """Averages at once, but takes the longer to hand a bucket out the earlier it came: the last ones come first."""
    value = overlapping.settled(group, bucket).value()
    future = overlapping.new_future(value)
    threading.Timer(max(0.0, 0.02 - 0.004 * bucket.index()), future.set_result, [value]).start()
    return future


def train_backwards(ctx, interleaved):
    return overlapping.iterations(pair_of(ctx, Overlap(interleaved, hook=hand_out_backwards)))


@check("HOOK-036", scenarios=HOOKS, deadline_s=DEADLINE_S)
def test_buckets_may_be_averaged_in_any_order(ranks, scenario):
    assert True in assert_as_alone(ranks(train_backwards, scenario), Overlap(scenario))


# -- HOOK-032: buckets in order


class Numbered:
    """A bucket of one of the model's parameters under any number."""

    def __init__(self, pair, index):
        self.parameter, self.number = next(iter(pair.model.parameters())), index
        self.flat = self.parameter.detach().flatten().clone()

    def index(self):
        return self.number

    def is_last(self):
        return False

    def buffer(self):
        return self.flat

    def parameters(self):
        return [self.parameter]

    def gradients(self):
        return [self.flat.view_as(self.parameter)]


def hand_out_of_order(ctx, index):
    """Call the modified hook itself with a bucket that is not due."""
    kept = []

    def hook(state, bucket):
        if isinstance(bucket, Numbered):
            return overlapping.completed(bucket.buffer())
        return overlapping.settled(state, bucket)

    def outer(made):
        kept.append(made)
        return made

    pair = overlapping.warmed(ctx, Overlap(hook=hook), outer=outer)
    return caught(kept[0], pair.group, Numbered(pair, index))


@check("HOOK-032", worlds=(1, 2), deadline_s=DEADLINE_S)
def test_a_bucket_that_is_not_due_is_refused(ranks):
    for index in (1, 2):
        for error in ranks(hand_out_of_order, index):
            assert isinstance(error, Caught)
            assert error.is_a(AssertionError)


# -- HOOK-048: the order of collectives


def collectives(ctx, how):
    """The order of an iteration's reductions (R) and messages with parameters (P)."""
    pair = pair_of(ctx, how)
    for number in range(READY):
        iteration(pair, number)
    elements = sum(parameter.numel() for parameter in pair.model.parameters())
    events = started(ctx, lambda: iteration(pair, READY))
    sent, reduced = published(events), reductions(events)
    order = "".join("P" if event in sent else "R" for event in events if event in sent or event in reduced)
    return order, reduced_elements(events) >= elements


@check("HOOK-048", worlds=MANY, scenarios=HOOKS, deadline_s=DEADLINE_S)
def test_the_variants_differ_in_the_order_of_their_collectives(ranks, scenario):
    ranks(show_reductions, trace=True)
    for order, whole in ranks(collectives, Overlap(scenario, hook=overlapping.settled), trace=True):
        assert whole, f"not every gradient was reduced: {order}"
        assert order.count("R") > 3
        if scenario:
            assert "P" in order.rstrip("P"), f"no parameters were sent before the last reduction: {order}"
        else:
            assert "P" not in order.rstrip("P"), f"parameters were sent between reductions: {order}"
        assert "P" in order
