"""What DDP and a communication hook owe each other: when it is called, with what, and what becomes of its result."""

import threading

import torch

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import ITERATIONS, alone, done, hooked, step, steps, steps_and_traffic, summing
from conformance.fixtures.training import gradients, parameters
from conformance.ranks import caught

VIEWS = {"gradients copied": False, "gradients are views": True}


# -- COMM-001: called once per bucket; its result becomes the gradients


def stamp_each_bucket(ctx, as_view):
    """A hook that fills each bucket with a number of its own, in a new tensor."""
    calls = []

    def hook(_state, bucket):
        number = float(len(calls) + 1)
        calls.append([number, bucket.index(), [names[parameter] for parameter in bucket.parameters()]])
        return done(torch.full_like(bucket.buffer(), number))

    model = hooked(ctx, None, hook, gradient_as_bucket_view=as_view)
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    told = []
    for iteration in range(ITERATIONS):
        del calls[:]
        told.append((step(model, models.divisible(ctx.rank, iteration)), list(calls)))
    return told


@check("COMM-001", scenarios=VIEWS)
def test_each_bucket_is_given_to_the_hook_once_and_its_result_becomes_the_gradients(ranks, scenario):
    names = sorted(name for name, _ in models.Sum().named_parameters())
    for told in ranks(stamp_each_bucket, scenario):
        assert len(told[-1][1]) > 1, "one bucket: the check sees nothing"
        for seen, calls in told:
            assert sorted(name for _, _, inside in calls for name in inside) == names
            for number, _, inside in calls:
                for name in inside:
                    assert set(seen[name]) == {number}


def finish_late(ctx, as_view):
    """A hook whose futures are completed by another thread, in the wrong order, well after it has returned."""
    waiting = []

    def complete(futures):
        for future, value in reversed(futures):
            future.set_result(value)

    def hook(_state, bucket):
        future = torch.futures.Future()
        waiting.append((future, bucket.buffer() * 2))
        if bucket.is_last():
            threading.Timer(0.2, complete, [list(waiting)]).start()
            del waiting[:]
        return future

    return steps(ctx, hooked(ctx, None, hook, gradient_as_bucket_view=as_view))


@check("COMM-001", worlds=(1, 2), scenarios=VIEWS)
def test_backward_waits_for_futures_that_complete_late_and_out_of_order(ranks, scenario):
    for rank, seen in enumerate(ranks(finish_late, scenario)):
        assert [_halved(each) for each in seen] == alone([rank])


def _halved(seen):
    return {name: [value / 2 for value in values] for name, values in seen.items()}


# -- COMM-002: nobody divides for the hook


def sum_and_watch(ctx):
    arrived = []

    def hook(state, bucket):
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            arrived.append((names[parameter], gradient.flatten().tolist()))
        return summing(state, bucket)

    model = hooked(ctx, None, hook)
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    told = []
    for iteration in range(ITERATIONS):
        del arrived[:]
        told.append((step(model, models.divisible(ctx.rank, iteration)), dict(arrived)))
    return told


@check("COMM-002", "COMM-001")
def test_the_hook_gets_raw_local_gradients_and_its_sum_is_not_divided(ranks):
    total = alone(range(ranks.world), divisor=1)
    for rank, told in enumerate(ranks(sum_and_watch)):
        local = alone([rank])
        for iteration, (seen, arrived) in enumerate(told):
            assert arrived == local[iteration]
            assert seen == total[iteration]


def accumulate_then_sum(ctx):
    model = hooked(ctx, None, summing)
    with model.no_sync():
        model(models.divisible(ctx.rank, 0)).sum().backward()
    model(models.divisible(ctx.rank, 1)).sum().backward()
    return gradients(model)


@check("COMM-002", worlds=MANY)
def test_what_was_accumulated_without_synchronisation_reaches_the_hook_once(ranks):
    first, second = alone(range(ranks.world), divisor=1, count=2)
    both = {name: [a + b for a, b in zip(first[name], second[name], strict=True)] for name in first}
    assert ranks(accumulate_then_sum) == [both] * ranks.world


# -- COMM-012: the state


def watch_states(ctx):
    given = [object(), None, threading.Lock(), {"calls": 0}]
    told = []
    for state in given:
        same = []

        def hook(handed, bucket, state=state, same=same):
            given = f"a {type(handed).__name__} for the {type(state).__name__} that was registered"
            same.append("" if handed is state else f"bucket {bucket.index()} with {given}")
            if isinstance(handed, dict):
                handed["calls"] += 1
            return done(bucket.buffer())

        # the defaults above must not be mistaken for parameters of a hook
        steps(ctx, hooked(ctx, state, lambda handed, bucket, hook=hook: hook(handed, bucket)))
        told.append(same)
    return told, given[-1]["calls"]


@check("COMM-012", worlds=(1, 2, 4))
def test_every_bucket_of_every_iteration_is_called_with_the_very_same_state(ranks):
    for told, counted in ranks(watch_states):
        for same in told:
            assert len(same) > ITERATIONS, "one bucket: the check sees nothing"
            others = [each for each in same if each]
            assert not others, f"{len(others)} of {len(same)} calls got another state: {others[0]}"
        assert counted == len(told[-1]), f"{len(told[-1])} calls counted to {counted} in the state that they share"


# -- COMM-013: no communication


def skip_communication(ctx):
    hook = lambda _state, bucket: done(bucket.buffer())  # noqa: E731 -- registered once for each model
    return [steps_and_traffic(ctx, hooked(ctx, None, hook, gradient_as_bucket_view=each)) for each in (False, True)]


@check("COMM-013", worlds=MANY)
def test_a_hook_that_does_not_communicate_leaves_gradients_local_and_the_wire_silent(ranks):
    for rank, ways in enumerate(ranks(skip_communication, trace=True)):
        for told in ways:
            assert [seen for seen, _ in told] == alone([rank])
            assert [collectives for _, collectives in told] == [0] * ITERATIONS


# -- COMM-014: malformed results


def _list(buffer):
    return done([buffer])


def _number(_buffer):
    return done(3)


def _half(buffer):
    return done(buffer[: buffer.numel() // 2].clone())


def _longer(buffer):
    return done(torch.cat([buffer, buffer]))


def _nothing(_buffer):
    return None


def _no_future(buffer):
    return buffer


def return_malformed(ctx, what):
    model = hooked(ctx, None, lambda _state, bucket: what(bucket.buffer()))
    return caught(lambda: model(models.divisible(ctx.rank, 0)).sum().backward())


@check("COMM-014", worlds=(1, 2), scenarios={
    "list": _list, "number": _number, "too short": _half, "too long": _longer,
})  # fmt: skip
def test_a_future_of_anything_but_a_tensor_like_the_bucket_raises_runtime_error(ranks, scenario):
    for error in ranks(return_malformed, scenario):
        assert error is not None, "backward accepted it"
        assert error.is_a(RuntimeError), str(error)


@check("COMM-014", worlds=(1, 2), scenarios={"None": _nothing, "tensor": _no_future})
def test_a_result_that_is_no_future_raises_instead_of_ending_the_process(ranks, scenario):
    for error in ranks(return_malformed, scenario):
        assert error is not None, "backward accepted it"


# -- COMM-015: errors


class OwnError(Exception):
    """An error class that no implementation knows."""


def raise_in_hook(ctx, kind, place):
    """The first iterations go well, the last one fails in the bucket at ``place``."""
    failing = False

    def hook(_state, bucket):
        if failing and bucket.index() == place:
            raise kind("only here")
        return done(bucket.buffer())

    model = hooked(ctx, None, hook)
    steps(ctx, model)
    failing = True
    return caught(lambda: model(models.divisible(ctx.rank, 0)).sum().backward())


@check("COMM-015", worlds=(1, 2), scenarios={"KeyError": KeyError, "own class": OwnError})
def test_an_error_of_the_hook_comes_out_of_backward_as_it_is(ranks, scenario):
    for place in (0, 1):
        for error in ranks(raise_in_hook, scenario, place):
            assert error is not None, "backward swallowed it"
            assert error.kinds[0] == scenario.__name__, str(error)
            assert "only here" in error.text


def fail_in_a_future(ctx, later):
    """The last iteration fails in the future of its second bucket: at once, or while backward waits for it."""
    failing = False

    def hook(_state, bucket):
        if not failing or bucket.index() != 1:
            return done(bucket.buffer())
        future = torch.futures.Future()
        threading.Timer(0.1 if later else 0.0, future.set_exception, [OwnError("only here")]).start()
        return future

    model = hooked(ctx, None, hook)
    steps(ctx, model)
    failing = True
    return caught(lambda: model(models.divisible(ctx.rank, 0)).sum().backward())


@check("COMM-015", worlds=(1, 2))
def test_an_error_of_the_hooks_future_comes_out_of_backward(ranks):
    for later in (False, True):
        for error in ranks(fail_in_a_future, later):
            assert error is not None, "backward swallowed it"
            assert "only here" in error.text, str(error)


# -- COMM-016: the bucket


def look_at_buckets(ctx, as_view):
    told = []

    def hook(_state, bucket):
        buffer, views, parameters = bucket.buffer(), bucket.gradients(), bucket.parameters()
        before = [view.clone() for view in views]
        for number, view in enumerate(views):
            view.fill_(100 * (number + 1))
        pieces = sorted(buffer.tolist())
        expected = sorted(100.0 * (number + 1) for number, view in enumerate(views) for _ in range(view.numel()))
        for view, values in zip(views, before, strict=True):
            view.copy_(values)
        told[-1].append(
            {
                "index": bucket.index(),
                "last": bucket.is_last(),
                "dimensions": buffer.dim(),
                "dtype": str(buffer.dtype),
                "shapes": [tuple(view.shape) for view in views] == [tuple(p.shape) for p in parameters],
                "views": pieces == expected,
                "names": [names[parameter] for parameter in parameters],
            }
        )
        views.clear()  # the lists are the hook's own
        parameters.clear()
        return done(buffer)

    model = hooked(ctx, None, hook, gradient_as_bucket_view=as_view)
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    seen = []
    for iteration in range(ITERATIONS):
        told.append([])
        seen.append(step(model, models.divisible(ctx.rank, iteration)))
    return told, seen


@check("COMM-016", scenarios=VIEWS)
def test_a_bucket_shows_its_place_its_flat_buffer_and_views_of_it_by_parameter(ranks, scenario):
    names = sorted(name for name, _ in models.Sum().named_parameters())
    for rank, (told, seen) in enumerate(ranks(look_at_buckets, scenario)):
        for buckets in told:
            assert [bucket["index"] for bucket in buckets] == list(range(len(buckets)))
            assert [bucket["last"] for bucket in buckets] == [False] * (len(buckets) - 1) + [True]
            for bucket in buckets:
                assert (bucket["dimensions"], bucket["dtype"]) == (1, "torch.float32")
                assert bucket["shapes"], "gradients() are not shaped like parameters()"
                assert bucket["views"], "writing into gradients() does not show in buffer()"
            assert sorted(name for bucket in buckets for name in bucket["names"]) == names
        assert len(told[-1]) > 1, "one bucket: the check sees nothing"
        assert seen == alone([rank])


def replace_buffers(ctx, as_view):
    told = []

    def hook(_state, bucket):
        old = bucket.buffer()
        new = old * 3
        bucket.set_buffer(new)
        shown = bucket.buffer()
        told.append(shown.data_ptr() == new.data_ptr() and shown.shape == old.shape)
        first = bucket.gradients()[0]
        held = first.clone()
        first.fill_(-7)
        told.append((shown == -7).sum().item() >= first.numel())  # the views follow the buffer
        first.copy_(held)
        return done(shown)

    return steps(ctx, hooked(ctx, None, hook, gradient_as_bucket_view=as_view)), told


@check("COMM-016", worlds=(1, 2), scenarios=VIEWS)
def test_a_hook_may_replace_the_buffer_and_the_views_follow(ranks, scenario):
    for rank, (seen, told) in enumerate(ranks(replace_buffers, scenario)):
        assert all(told), told
        local = alone([rank])
        assert seen == [{name: [3 * v for v in values] for name, values in each.items()} for each in local]


def behind(flat):
    return torch.cat([flat.new_zeros(5), flat])[5:]


def every_second(flat):
    return torch.stack([flat, flat + 1], -1)[:, 0]


def answer_with_a_part(ctx, kind, part_of_larger, replaced, as_view):
    """A hook whose answer is not all of its storage; whether the bucket's gradients are found in it."""
    told = []

    def hook(_state, bucket):
        part = part_of_larger(bucket.buffer() * 3)
        if replaced:
            bucket.set_buffer(part)
            told.append(torch.equal(torch.cat([each.flatten() for each in bucket.gradients()]), part))
        return done(part)

    return steps(ctx, hooked(ctx, None, hook, kind(), gradient_as_bucket_view=as_view)), all(told)


PARTS = {
    f"{told} · {part.__name__} · {name}": (part, replaced, as_view)
    for told, replaced in (("by its future", False), ("in the bucket", True))
    for part in (behind, every_second)
    for name, as_view in VIEWS.items()
}


def answer_with_parts(ctx, kind):
    return {way: answer_with_a_part(ctx, kind, *how) for way, how in PARTS.items()}


@check("COMM-001", "COMM-016", worlds=(1, 2))
def test_a_hook_may_answer_with_a_part_of_a_larger_tensor(ranks):
    for kind, results in ranks.each(answer_with_parts, (models.Sum, models.Complex)):
        for rank, told in enumerate(results):
            local = alone([rank], model=kind)
            for way, (seen, found) in told.items():
                assert seen == [{name: [3 * v for v in values] for name, values in each.items()} for each in local], way
                assert found, f"gradients() are not where buffer() is: {way}"


def replace_by_fewer(ctx, as_view):
    """A hook that puts into the bucket what it would send, which is every second element."""
    told = []

    def hook(_state, bucket):
        local = bucket.buffer()
        bucket.set_buffer(local[::2].clone())
        told.append(bucket.buffer().numel() == (local.numel() + 1) // 2)
        return done(local * 3)

    return steps(ctx, hooked(ctx, None, hook, gradient_as_bucket_view=as_view)), told


@check("COMM-016", "COMM-001", worlds=(1, 2), scenarios=VIEWS)
def test_what_a_hook_puts_into_a_bucket_may_have_fewer_elements(ranks, scenario):
    for rank, (seen, told) in enumerate(ranks(replace_by_fewer, scenario)):
        assert all(told), f"rank {rank}: the bucket does not hold what was put there"
        local = alone([rank])
        assert seen == [{name: [3 * v for v in values] for name, values in each.items()} for each in local]


def replace_again_and_again(ctx):
    """A hook that replaces the buffer several times, once by fewer elements; whether the last one is shown."""
    told = []

    def hook(_state, bucket):
        local = bucket.buffer()
        for others in ([behind(local * 2)], [behind(local * 2), local[::2].clone()]):
            for new in (*others, local * 3):
                bucket.set_buffer(new)
            told.append(torch.equal(torch.cat([each.flatten() for each in bucket.gradients()]), local * 3))
        return done(bucket.buffer())

    return steps(ctx, hooked(ctx, None, hook)), told


@check("COMM-016", worlds=(1, 2))
def test_a_hook_may_replace_the_buffer_again_and_again(ranks):
    for rank, (seen, told) in enumerate(ranks(replace_again_and_again)):
        assert all(told), f"rank {rank}: gradients() are not where buffer() is"
        assert seen == [{name: [3 * v for v in values] for name, values in each.items()} for each in alone([rank])]


# -- a group whose ranks are not those of the world


def sum_in_a_subgroup(ctx):
    members = list(range(1, ctx.world))
    group = torch.distributed.new_group(members)
    if ctx.rank == 0:
        return None
    return steps(ctx, hooked(ctx, group, summing, group=group))


@check("COMM-002", "COMM-012", worlds=(3, 4))
def test_on_a_subgroup_the_hook_is_called_on_its_members_only(ranks):
    total = alone(range(1, ranks.world), divisor=1)
    assert ranks(sum_in_a_subgroup) == [None] + [total] * (ranks.world - 1)


# -- training to the end: two layers, so that gradients depend on the weights; numbers stay small and exact


def train_with_sum(ctx):
    model = hooked(ctx, None, summing, model=models.chain(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for iteration in range(2):
        step(model, small(ctx.rank, iteration))
        optimizer.step()
    return parameters(model)


def small(rank, iteration):
    return models.integers(2, 4, seed=10 * iteration + rank, low=-1, high=2)


@check("COMM-001", "COMM-002")
def test_training_with_a_summing_hook_leaves_one_process_with_the_same_weights(ranks):
    model = models.chain(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for iteration in range(2):
        summed = oracle.averaged_gradients(model, [small(rank, iteration) for rank in range(ranks.world)], 1)
        for name, parameter in model.named_parameters():
            parameter.grad = summed.get(name)
        optimizer.step()
    assert ranks(train_with_sum) == [parameters(model)] * ranks.world
