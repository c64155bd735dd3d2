"""Buffer hooks: what they are given, where they run, what they may return, and when they are not called."""

import threading
import time
import warnings
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import done
from conformance.fixtures.observing import assert_refused, mean_of_all, mine, trained, wrapped
from conformance.fixtures.training import private, whole
from conformance.ranks import Caught, caught


def step_of(rank):
    """What a forward on this rank adds to the counter: 1, 11, 21 …"""
    return 1.0 + 10.0 * rank


def counting(ctx, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return wrapped(ctx, models.Counting(step_of(ctx.rank)), **options)


def place(ctx, name):
    return getattr(private(ctx.subject.ddp, "_BufferCommHookLocation"), name)


def register(ctx, model, state, hook, location=None):
    """Register a buffer hook; without a location, at the default one."""
    where = () if location is None else (place(ctx, location),)
    return private(model, "_register_buffer_comm_hook")(state, hook, *where)


def add_up(_state, buffers):
    for buffer in buffers.values():
        dist.all_reduce(buffer)


# -- DDP-091, DDP-093, DDP-094: what a hook is given, and where it runs


def register_at_torchs_location(ctx, name):
    """How often a hook ran before and in a forward, where the location is a member of torch's enumeration."""
    model, calls = counting(ctx), []
    model.module.register_forward_hook(lambda *_: calls.append("forward"))
    where = getattr(torch.nn.parallel.distributed._BufferCommHookLocation, name)
    private(model, "_register_buffer_comm_hook")(None, lambda *_: calls.append("hook"), where)
    trained(model, mine(ctx))
    return calls


@check("DDP-094", worlds=(1, 2), scenarios={"before": "PRE_FORWARD", "after": "POST_FORWARD"})
def test_the_location_may_be_a_member_of_torchs_enumeration(ranks, scenario):
    expected = ["hook", "forward"] if scenario == "PRE_FORWARD" else ["forward", "hook"]
    assert ranks(register_at_torchs_location, scenario) == [expected] * ranks.world


def train_with(ctx, location, hook_name):
    """Three iterations; what the hook saw, what forwards saw, and the counter after each backward."""
    model = counting(ctx)
    state, seen, ends = object(), [], []

    def hook(given, buffers):
        whole = {name: buffer.item() for name, buffer in buffers.items()}
        same = buffers["count"] is model.module.count or buffers["count"].data_ptr() == model.module.count.data_ptr()
        seen.append((given is state, same, whole, len(model.module.seen)))
        if hook_name == "add up":
            add_up(given, buffers)

    register(ctx, model, state, hook, location)
    for _ in range(3):
        trained(model, mine(ctx))
        ends.append(model.module.count.item())
    return seen, model.module.seen, ends


@check("DDP-093")
def test_a_hook_is_given_its_state_and_the_buffers_by_name(ranks):
    for seen, _, _ in ranks(train_with, "PRE_FORWARD", "nothing"):
        assert [(state, same, set(whole)) for state, same, whole, _ in seen] == [(True, True, {"count"})] * 3


@check("DDP-093", scenarios={"before": "PRE_FORWARD", "after": "POST_FORWARD"})
def test_beside_a_hook_nothing_is_broadcast(ranks, scenario):
    for rank, (_, forwards, _) in enumerate(ranks(train_with, scenario, "nothing")):
        assert forwards == [step_of(rank) * iteration for iteration in range(3)], f"rank {rank}"


def added_up(world, iterations):
    """The counter before and after each forward, where a hook adds the ranks' counters up once an iteration."""
    before, after, summed = [], [], 0.0
    for _ in range(iterations):
        before.append(summed)
        after.append([summed + step_of(rank) for rank in range(world)])
        summed = sum(after[-1])
    return before, after


@check("DDP-091", "DDP-094", "DDP-093", scenarios={"after": "POST_FORWARD", "by default": None})
def test_a_hook_after_the_forward_sees_what_the_forward_did(ranks, scenario):
    before, after = added_up(ranks.world, 3)
    for rank, (seen, forwards, ends) in enumerate(ranks(train_with, scenario, "add up")):
        assert [(whole["count"], calls) for _, _, whole, calls in seen] == [
            (after[iteration][rank], iteration + 1) for iteration in range(3)
        ], f"rank {rank}: (counter, forwards so far) at each call of the hook"
        assert forwards == before
        assert ends == [sum(each) for each in after]


@check("DDP-094", "DDP-093")
def test_a_hook_before_the_forward_runs_before_it(ranks):
    before, after = added_up(ranks.world, 3)
    for rank, (seen, forwards, ends) in enumerate(ranks(train_with, "PRE_FORWARD", "add up")):
        expected = [(0.0, 0), (after[0][rank], 1), (after[1][rank], 2)]
        assert [(whole["count"], calls) for _, _, whole, calls in seen] == expected, f"rank {rank}"
        assert forwards == before
        assert ends == [each[rank] for each in after]


# -- DDP-086: the graphs of forwards that have saved the buffers


class Normalised(nn.Module):
    """Its graph keeps the running statistics, which backward does not read."""

    def __init__(self):
        super().__init__()
        self.a = models.scalar()
        self.norm = nn.BatchNorm1d(1, affine=False, momentum=0.5)

    def forward(self, x):
        return self.a(self.norm(self.a(x)))


STATISTICS = ("running_mean", "running_var")


def three_rows(rank, place):
    return torch.tensor([[1.0], [2.0 + rank], [4.0 + place]])


def weighted(output):
    return (output * torch.tensor([[1.0], [-2.0], [4.0]])).sum()


def average_statistics(ctx, location):
    """Gradient and statistics after each of two iterations of two forwards and one backward."""
    model = wrapped(ctx, Normalised())

    def average(_state, buffers):
        for name in STATISTICS:
            dist.all_reduce(buffers[f"norm.{name}"].div_(ctx.world))

    register(ctx, model, None, average, location)
    told = []
    for _ in range(2):
        model.zero_grad()
        (weighted(model(three_rows(ctx.rank, 0))) + weighted(model(three_rows(ctx.rank, 1)))).backward()
        statistics = [getattr(model.module.norm, name).item() for name in STATISTICS]
        told.append([model.module.a.weight.grad.item(), *statistics])
    return told


def averaged_statistics(world, location):
    """The same for every rank's replica in one process."""
    replicas, told = [Normalised() for _ in range(world)], []

    def average():
        for name in STATISTICS:
            mean = torch.stack([getattr(each.norm, name) for each in replicas]).mean(0)
            for each in replicas:
                setattr(each.norm, name, mean.clone())

    for _ in range(2):
        losses = [torch.zeros(())] * world
        for place in range(2):
            if location == "PRE_FORWARD":
                average()
            losses = [loss + weighted(replicas[rank](three_rows(rank, place))) for rank, loss in enumerate(losses)]
            if location == "POST_FORWARD":
                average()
        gradient = sum(
            torch.autograd.grad(loss, each.a.weight)[0].item() for loss, each in zip(losses, replicas, strict=True)
        )
        told.append([
            [gradient / world, *(getattr(each.norm, name).item() for name in STATISTICS)] for each in replicas
        ])
    return told


@check("DDP-086", scenarios={"after": "POST_FORWARD", "before": "PRE_FORWARD"})
def test_a_hook_that_changes_buffers_leaves_the_graphs_that_saved_them_usable(ranks, scenario):
    expected = averaged_statistics(ranks.world, scenario)
    for rank, told in enumerate(ranks(average_statistics, scenario)):
        for iteration, found in enumerate(told):
            assert found == pytest.approx(expected[iteration][rank], rel=1e-4), f"rank {rank}, iteration {iteration}"


# -- DDP-092: refusals


def register_what_cannot_be_called(ctx):
    model = counting(ctx)
    register_it = private(model, "_register_buffer_comm_hook")
    errors = [caught(register_it, None, wrong) for wrong in (None, 3, "hook")]
    return errors, [trained(model, mine(ctx))["a.weight"] for _ in range(2)], model.module.seen


@check("DDP-092", worlds=(1, 2))
def test_what_cannot_be_called_is_refused_and_leaves_the_broadcast_in_place(ranks):
    for errors, gradients, seen in ranks(register_what_cannot_be_called):
        assert_refused(errors, AssertionError)
        assert gradients == [[mean_of_all(ranks.world)]] * 2
        assert seen == [0.0, 1.0]


def register_at_no_place(ctx):
    model = counting(ctx)
    return caught(private(model, "_register_buffer_comm_hook"), None, add_up, "later")


@check("DDP-094", worlds=(1,))
def test_an_unknown_location_is_refused_with_the_names_of_those_that_there_are(ranks):
    assert ranks.subject.PeerFailed  # others take it, and never call the hook
    (error,) = ranks(register_at_no_place)
    assert_refused([error], TypeError)
    assert "PRE_FORWARD" in error.text, error
    assert "POST_FORWARD" in error.text, error


# -- DDP-095: futures


def return_futures(ctx, location):
    model = counting(ctx)

    def start(_state, buffers):
        time.sleep(0 if ctx.rank == 0 else 0.05)  # so that on rank 0 nothing is done when the hook returns

        def settle(buffer, slow):
            def later(future):
                time.sleep(0.1 if slow else 0)
                buffer.add_(1000)
                return future.value()

            return later

        return [
            dist.all_reduce(buffer, async_op=True).get_future().then(settle(buffer, slow=ctx.rank == 0))
            for buffer in buffers.values()
        ]

    register(ctx, model, None, start, location)
    ends = []
    for _ in range(2):
        gradient = trained(model, mine(ctx))["a.weight"]
        ends.append(model.module.count.item())
    return ends, model.module.seen, gradient


@check("DDP-095", worlds=MANY)
def test_futures_of_a_hook_are_done_when_backward_returns(ranks):
    first = sum(step_of(rank) for rank in range(ranks.world)) + 1000
    second = sum(first + step_of(rank) for rank in range(ranks.world)) + 1000
    assert ranks(return_futures, "POST_FORWARD") == [
        ([first, second], [0.0, first], [mean_of_all(ranks.world)])
    ] * ranks.world


def return_futures_of_two_forwards(ctx):
    model, ended = counting(ctx), []
    pauses = [0.2, 0.0]  # only what the first forward started is still under way when the reduction has ended

    def start(_state, _buffers):
        future, pause = torch.futures.Future(), pauses.pop(0)

        def end():
            time.sleep(pause)
            ended.append(pause)
            future.set_result(None)

        threading.Thread(target=end).start()
        return [done(None), future]

    register(ctx, model, None, start)
    (model(mine(ctx)) + model(mine(ctx))).sum().backward()
    return sorted(ended)


@check("DDP-095", worlds=MANY)
def test_futures_of_all_forwards_before_a_backward_are_done_when_it_returns(ranks):
    assert ranks(return_futures_of_two_forwards) == [[0.0, 0.2]] * ranks.world


LATE_S = 0.1  # after which a future is done
WAYS = {"plain": {}, "a search": {"find_unused_parameters": True}, "a static graph": {"static_graph": True}}


def return_late_futures_under_no_sync(ctx):
    """A buffer when a local backward returns, for whose forward a hook has returned a late future; and the gradient."""
    told = {}
    for name, options in WAYS.items():
        model, calls = counting(ctx, **options), []

        def start(_state, buffers, calls=calls):
            future = torch.futures.Future()
            calls.append(future)

            def end():
                time.sleep(LATE_S if len(calls) > 1 else 0)
                buffers["count"].fill_(1000.0 * len(calls))
                future.set_result(None)

            threading.Thread(target=end).start()
            return [future]

        register(ctx, model, None, start)
        trained(model, mine(ctx))
        with model.no_sync():  # what its first forward does is decided by the one before
            gradient = trained(model, mine(ctx))["a.weight"]
        told[name] = len(calls), model.module.count.item(), gradient
        for future in calls:
            future.wait()
    return told


@check("DDP-095", worlds=MANY)
def test_futures_of_a_hook_are_done_when_a_backward_under_no_sync_returns(ranks):
    for rank, told in enumerate(ranks(return_late_futures_under_no_sync)):
        for name, (calls, buffer, gradient) in told.items():
            assert gradient == [12.0 * (rank + 1)], f"rank {rank}, {name}"
            text = f"the future of rank {rank} is not done under no_sync, {name}: the buffer is {buffer}"
            assert buffer == 1000.0 * calls, text


PATIENCE_S = 3.0  # after which an implementation that waits too early is let go


def complete_between(ctx):
    """Futures that the loop itself completes, when forward has returned or in the middle of the backward."""
    told = []
    for location in ("PRE_FORWARD", "POST_FORWARD"):
        model, futures, done = counting(ctx), [], [True]

        def start(_state, _buffers, futures=futures, done=done):
            futures.extend(torch.futures.Future() for _ in range(2))
            for future in futures[-2:] if done else ():
                future.set_result(None)
            return futures[-2:]

        register(ctx, model, None, start, location)
        for turn in range(4):  # the first two may take long, for they may be compiled: nothing waits in them
            if turn == 2:
                done.clear()
            futures.clear()
            ended = threading.Event()
            late = threading.Thread(target=complete_late, args=(futures, ended))
            late.start()
            model.zero_grad()
            out = model(mine(ctx))
            waited = [future.done() for future in futures]
            ended.set()
            late.join()
            if not futures:
                return "the hook was not called"
            complete_unless_done(futures[0], None)
            out.register_hook(partial(complete_unless_done, futures[1]))
            out.sum().backward()
            if not done:
                told.append((waited, [future.done() for future in futures], whole(model.module.a.weight.grad).item()))
            if any(waited) and not done:
                return told  # too early, and as slow again each time
    return told


def complete_unless_done(future, _gradient):
    if not future.done():
        future.set_result(None)


def complete_late(futures, ended):
    if not ended.wait(PATIENCE_S):
        for future in futures:
            complete_unless_done(future, None)


@check("DDP-095", worlds=MANY)
def test_a_future_may_be_completed_after_the_forward_for_it_is_backward_that_waits(ranks):
    expected = ([False] * 2, [True] * 2, mean_of_all(ranks.world))
    assert ranks(complete_between) == [[expected] * 4] * ranks.world


# -- DDP-096: when hooks are not called


def count_calls_at_both(ctx):
    return {location: count_calls(ctx, location) for location in ("PRE_FORWARD", "POST_FORWARD")}


def count_calls(ctx, location):
    told = {}

    def heard(module, act, **options):
        calls, forwards = [], []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            model = wrapped(ctx, module, **options)
        model.register_forward_pre_hook(lambda *_: forwards.append(0))
        register(ctx, model, None, lambda _state, buffers: calls.append((len(forwards), len(buffers))), location)
        act(model)
        return calls

    def train(model):
        for _ in range(2):
            trained(model, mine(ctx))

    def accumulate(model):
        with model.no_sync():  # what a forward begins with is decided by the one before
            for _ in range(3):
                model(mine(ctx)).sum().backward()
        model(mine(ctx)).sum().backward()
        trained(model, mine(ctx))

    def accumulate_once(model):
        trained(model, mine(ctx))
        with model.no_sync():
            model(mine(ctx)).sum().backward()
        for _ in range(2):
            model(mine(ctx)).sum().backward()

    told["ordinary"] = heard(models.Counting(1.0), train)
    told["switched off"] = heard(models.Counting(1.0), train, broadcast_buffers=False)
    told["no buffers"] = heard(models.scalar(), train)
    told["accumulating"] = heard(models.Counting(1.0), accumulate)
    told["accumulating once"] = heard(models.Counting(1.0), accumulate_once)
    return told


@check("DDP-096")
def test_hooks_are_called_only_where_buffers_would_be_broadcast(ranks):
    for both in ranks(count_calls_at_both):
        for told in both.values():
            assert told["ordinary"] == [(1, 1), (2, 1)], "(forward, buffers) by call"
            assert told["switched off"] == []
            assert told["no buffers"] == []
            assert told["accumulating"] == [(1, 1), (5, 1)], "of five forwards the first and the last synchronise"
            assert told["accumulating once"] == [(1, 1), (2, 1), (4, 1)], "of four forwards all but the third do"


# -- DDP-097, DDP-098: signatures, and a second hook


def annotated(state: nn.Module, buffers: dict[str, torch.Tensor]) -> None:
    add_up(state, buffers)


def as_documented(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    add_up(state, bucket)
    return None


def register_annotated(ctx):
    told = []
    for hook in (annotated, as_documented):
        model = counting(ctx)
        error = caught(register, ctx, model, model, hook)
        told.append((error, [trained(model, mine(ctx))["a.weight"] for _ in range(2)], model.module.seen))
    return told


@check("DDP-097", worlds=(1, 2, 3))
def test_a_buffer_hook_may_be_annotated_in_any_way(ranks):
    before, _ = added_up(ranks.world, 2)
    expected = (None, [[mean_of_all(ranks.world)]] * 2, before)
    assert ranks(register_annotated) == [[expected, expected]] * ranks.world


def return_one_future(ctx):
    """A buffer when a backward returns whose hook has returned a single future, as documented, or an error."""
    model = counting(ctx)

    def start(_state, buffers):
        future = torch.futures.Future()

        def end():
            time.sleep(LATE_S)
            buffers["count"].fill_(1000.0)
            future.set_result(None)

        threading.Thread(target=end).start()
        return future

    register(ctx, model, None, start)
    error = caught(trained, model, mine(ctx))
    return error, model.module.count.item()


@check("DDP-097", worlds=(1, 2))
def test_a_hook_that_returns_one_future_is_waited_for_or_refused(ranks):
    for error, buffer in ranks(return_one_future):
        if error is not None:
            assert error.is_a(TypeError), error
            ranks.at_limit("a single future is refused")
        else:
            assert buffer == 1000.0, "the future is not done"


def keep_a_buffer_of_inference_mode(ctx):
    """Buffers after each iteration under a hook; one was made in inference mode, and takes no part in anything."""
    model, seen = counting(ctx), []
    with torch.inference_mode():
        model.module.register_buffer("fixed", torch.full((1,), 3.0))

    def add_up_one(_state, buffers):
        dist.all_reduce(buffers["count"])

    register(ctx, model, None, add_up_one)
    for _ in range(2):
        error = caught(trained, model, mine(ctx))
        if error is not None:
            return error
        seen.append((model.module.count.item(), model.module.fixed.item()))
    return seen


@check("DDP-093", "DDP-086", worlds=(1, 2, 3), beyond=False)
def test_under_a_hook_there_may_be_a_buffer_of_inference_mode_or_it_is_refused(ranks):
    first = sum(step_of(rank) for rank in range(ranks.world))
    second = sum(first + step_of(rank) for rank in range(ranks.world))
    for seen in ranks(keep_a_buffer_of_inference_mode):
        if isinstance(seen, Caught):
            assert "inference" in seen.text.lower(), seen
            ranks.at_limit("a buffer of inference mode is refused beside a buffer hook")
        else:
            assert seen == [(first, 3.0), (second, 3.0)]


def register_two(ctx):
    model = counting(ctx)
    calls = []
    register(ctx, model, None, lambda *_: calls.append("first"))
    error = caught(register, ctx, model, None, lambda *_: calls.append("second"), "PRE_FORWARD")
    trained(model, mine(ctx)), trained(model, mine(ctx))
    return error, calls


@check("DDP-098", worlds=(1, 2))
def test_a_second_buffer_hook_is_refused_or_takes_the_place_of_the_first(ranks):
    for error, calls in ranks(register_two):
        if error is not None:
            assert_refused([error], RuntimeError, "hook")
            assert calls == ["first"] * 2
        else:
            assert calls == ["second"] * 2
            ranks.at_limit("a second buffer hook replaces the first without a word")
