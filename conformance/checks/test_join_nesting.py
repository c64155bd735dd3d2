"""Contexts inside contexts, what a notification's handle tells, models in post hooks, and iterations that break off."""

import time
from contextlib import ExitStack

import torch
import torch.distributed as dist

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.api.schedules import linear
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import done
from conformance.fixtures.joinables import recorder, total
from conformance.fixtures.observing import assert_told
from conformance.fixtures.training import ddp, gradient, gradients, private, scalar_means
from conformance.ranks import caught

SPILLED = "spilled the tea"
MANY_INSIDE = 6  # contexts, each inside the one before

# -- JOIN-038: contexts inside each other


def flags(*joinables):
    return [tuple(each._join_config) for each in joinables]


def nest(ctx):
    """Three contexts over one joinable or two of them, left in the order of nesting; the flags on the way."""
    a, b = recorder(ctx), recorder(ctx, "b")
    told = []
    with ctx.subject.Join([a, b]):
        a.step(), b.step()
        told.append(flags(a, b))
        with ctx.subject.Join([b], throw_on_early_termination=True):
            b.step()
            told.append(flags(a, b))
            with ctx.subject.Join([b], enable=False):
                b.step()
                told.append(flags(a, b))
                ctx.subject.Join([a, b])  # and never entered
            b.step()
            told.append(flags(a, b))
        a.step(), b.step()
        told.append(flags(a, b))
        if ctx.rank:  # rank 0 is out of inputs, and shadows
            a.step(), b.step()
    return [*told, flags(a, b)], a.log, b.log


@check("JOIN-038", worlds=(1, 2, 3), deadline_s=8)
def test_after_a_context_inside_another_the_outer_ones_flags_are_back(ranks):
    outer = [(True, False, True), (True, False, False)]
    inner, off = [(True, False, True), (True, True, True)], [(True, False, True), (False, False, True)]
    none = [(False, False, False)] * 2
    for rank, (told, a, b) in enumerate(ranks(nest)):
        last = rank == ranks.world - 1 or rank > 0
        end = [*(["step" if rank else "main"] if ranks.world > 1 else []), f"post {last}"]
        assert told == [outer, inner, off, inner, outer, none], f"after leaving: {told}"
        assert a == ["a step"] * 2 + [f"a {each}" for each in end], f"after leaving: {a}"
        assert b == ["b step"] * 4 + ["b post True", "b step"] + [f"b {each}" for each in end], f"after leaving: {b}"


def build_two_inside(ctx):
    """Two contexts are built inside another before either is entered; the flags after each, and what the ranks did."""
    a, told = recorder(ctx), []
    with ctx.subject.Join([a]):
        first, second = ctx.subject.Join([a]), ctx.subject.Join([a], enable=False)
        for inner in (second, first):
            with inner:
                a.step()
            told.append(flags(a))
        if ctx.rank:
            a.step()
    return [*told, flags(a)], a.log


@check("JOIN-038", worlds=(2, 3), deadline_s=8)
def test_after_a_context_that_was_built_beside_another_inside_a_third_that_ones_flags_are_back(ranks):
    outer, none = [(True, False, True)], [(False, False, False)]
    for rank, (told, log) in enumerate(ranks(build_two_inside)):
        assert told == [outer, outer, none], f"after leaving: {told}"
        end = ["a step", "a post True"] if rank else ["a main", "a post False"]
        assert log == ["a step", "a step", "a post True", *end], f"after leaving: {log}"


def train_nested(ctx):
    """A model in contexts, in two of which rank 0 runs out before the others; by iteration, what reaches them."""
    model, seen = ddp(ctx, models.Counting(1.0)), []

    def train():
        model.zero_grad()
        model(models.divisible_scalar(ctx.rank, len(seen))).sum().backward()
        seen.append(gradient(model.module.a.weight))

    with ctx.subject.Join([model]):
        train()
        with ExitStack() as inner:
            for _ in range(MANY_INSIDE):
                inner.enter_context(ctx.subject.Join([model]))
            for _ in range(2 if ctx.rank else 1):
                train()
        if ctx.rank:
            train()
    return seen


@check("JOIN-038", worlds=(2, 3), beyond=False)
def test_after_a_context_inside_another_a_model_is_shadowed_in_the_outer_one(ranks):
    means = scalar_means((2, *(4,) * (ranks.world - 1)))
    assert ranks(train_nested) == [means[:2]] + [means] * (ranks.world - 1)


def train_before_an_inner_block(ctx):
    """A model and a joinable go through an iteration after an inner context was built, before it is entered.

    By iteration, the gradients and what the handles say when all is over.
    """
    a, model, seen, handles = recorder(ctx), ddp(ctx, models.scalar()), [], []

    def train():
        model.zero_grad()
        handles.append(a.step())
        model(models.divisible_scalar(ctx.rank, len(seen))).sum().backward()
        seen.append(gradient(model.module.weight))

    with ctx.subject.Join([a, model]):
        train()
        inner = ctx.subject.Join([a, model])
        train()
        with inner:
            for _ in range(1 + ctx.rank):
                train()
    return seen, [total(handle) for handle in handles]


@check("JOIN-013", "JOIN-031", worlds=(1, *MANY), deadline_s=8, beyond=False)
def test_an_iteration_between_building_and_entering_an_inner_context_counts_as_one_in_there(ranks):
    schedule = linear(ranks.world, 3)
    means = scalar_means(schedule)
    active = [len(oracle.active_ranks(schedule, iteration)) for iteration in range(max(schedule))]
    assert ranks(train_before_an_inner_block) == [(means[:count], active[:count]) for count in schedule]


# -- JOIN-040: contexts inside each other, each with a model of its own


def train_in_contexts(ctx, schedule, depth, used, plain=None):
    """So many contexts inside each other, on a group of their own; an iteration trains the models of those used.

    The context ``plain`` has a plain joinable in place of a model. The error, and by iteration the gradients of each.
    """
    group, seen = dist.new_group(), []
    beside = recorder(ctx, group=group)
    crowd = [] if plain is None else [recorder(ctx, group=group) for _ in range(24)]  # messages are of several numbers
    kinds = [(models.Sum, models.divisible)] * (depth - 1) + [(models.scalar, models.divisible_scalar)]
    several = [(ddp(ctx, kind(), process_group=group), batch) for kind, batch in kinds]

    def train():
        with ExitStack() as contexts:
            for place, (model, _) in enumerate(several):
                contexts.enter_context(ctx.subject.Join([beside] if place == plain else [model, *crowd]))
            for iteration in range(schedule[ctx.rank]):
                for place in used:
                    if place == plain:
                        beside.step()
                        continue
                    model, batch = several[place]
                    model.zero_grad()
                    model(batch(ctx.rank, iteration)).sum().backward()
                    seen.append(list(model.parameters())[-1].grad.flatten()[0].item())

    return caught(train), seen


def train_in_contexts_each(ctx, jobs):
    return [train_in_contexts(ctx, *job) for job in jobs]


@check("JOIN-040", worlds=(2, 3), deadline_s=8, beyond=False)
def test_models_of_contexts_inside_each_other_train_right_or_every_rank_is_told(ranks):
    rest = ranks.world - 1
    even, uneven = (2, *[2] * rest), (1, *[3] * rest)
    jobs = [(even, 3, (0, 1, 2)), (uneven, 2, (0, 1)), (uneven, 3, (0, 1, 2)), (uneven, 3, (1, 2)), (uneven, 4, (2, 3))]
    jobs += [(schedule, 2, used, plain) for schedule in (even, uneven) for used in ((0, 1), (1, 0)) for plain in (0, 1)]
    trains_right_or_is_told(ranks, jobs)


@check("JOIN-040", worlds=(4,), deadline_s=8)
def test_four_ranks_may_be_in_four_contexts_each(ranks):
    """What all of them say about where they are adds up to more than two or three ranks can say."""
    trains_right_or_is_told(ranks, [((2, 2, 2, 2), 4, (3, 2, 1, 0)), ((1, 3, 3, 3), 4, (3,))])


def trains_right_or_is_told(ranks, jobs):
    for rank, told in enumerate(ranks(train_in_contexts_each, jobs)):
        for (schedule, depth, used, *plain), (error, seen) in zip(jobs, told, strict=True):
            about = f"rank {rank}, schedule {schedule}, {depth} contexts, of which {used} are used, {plain=}: {error}"
            # the last bias of a Sum counts the rows of all batches, four times over
            means = [
                mean if place == depth - 1 else 48.0 * len(oracle.active_ranks(schedule, iteration)) / ranks.world
                for iteration, mean in enumerate(scalar_means(schedule)[: schedule[rank]])
                for place in used
                if place not in plain
            ]
            assert seen == (means if error is None else means[: len(seen)]), about
            assert error is None or len(set(schedule)) > 1, about
            assert error is None or (error.is_a(RuntimeError) and "context" in error.text), about


# -- JOIN-048, JOIN-031: the handle


def answer(handle, question, otherwise):
    """What a handle says; ``otherwise`` where it has no such method, or none that answers."""
    try:
        return getattr(handle, question, lambda: otherwise)()
    except (NotImplementedError, TypeError):  # as the works of NCCL answer, and torch 2.11 where none failed
        return otherwise


def ask_the_handle(ctx, beside):
    """What a handle can be asked, in a context of a plain joinable and in one that also holds a model.

    The documents say that it is a work handle; those of torch may lack some of its methods.
    """
    a = recorder(ctx)
    told = []
    with ctx.subject.Join([a, ddp(ctx, models.scalar())] if beside else [a]):
        for _ in range(2):
            handle = a.notify()
            handle.wait()
            answer(handle, "synchronize", None)
            ended = handle.is_completed(), answer(handle, "is_success", True), answer(handle, "exception", None)
            told.append((*ended, [number.item() for number in handle.result()]))
    return told


@check("JOIN-048", worlds=(1, 2, 3))
def test_a_handle_that_was_waited_for_says_that_it_is_complete_and_what_it_found(ranks):
    for beside, results in ranks.each(ask_the_handle, (False, True)):
        for rank, told in enumerate(results):
            for completed, success, error, found in told:
                about = f"rank {rank}, {'beside a model' if beside else 'alone'}: the handle that was waited for"
                assert completed, f"{about} says that it is not completed"
                assert success, f"{about} says that it was no success"
                assert error is None, f"{about} says that it ended in an error"
                assert found == [float(ranks.world)], f"{about} found {found}"


# -- JOIN-055: a model in a post hook


def train_in_a_post_hook(ctx, schedule, by_all, hooked):
    """Every rank trains and evaluates the model of the context once more in a post hook of a joinable after it.

    ``hooked``: gradients are averaged by a hook, over another group of the same ranks.
    """
    model = ddp(ctx, models.Counting(1.0))
    if hooked:
        model.register_comm_hook(dist.new_group(range(ctx.world)), ctx.subject.default_hooks.allreduce_hook)
    seen = []

    def again(*_):
        model.zero_grad()
        model(models.divisible_scalar(ctx.rank, 9)).sum().backward()
        seen.append(gradient(model.module.a.weight))
        with torch.no_grad():
            seen.append(model(torch.ones(1, 1)).item())

    beside = recorder(ctx, post=again)
    with ctx.subject.Join([model, beside], divide_by_initial_world_size=by_all):
        for iteration in range(schedule[ctx.rank]):
            model.zero_grad()
            model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
    return seen


@check("JOIN-055", "DDPJ-035", worlds=(1, *MANY), deadline_s=8, beyond=False)
def test_in_a_post_hook_all_ranks_may_train_a_model_of_the_context_again(ranks):
    mean = scalar_means((10,) * ranks.world)[9]
    uneven = linear(ranks.world, 1)
    several = (([2] * ranks.world, True, False), (uneven, False, False), (uneven, False, True))
    for (schedule, by_all, hooked), told in ranks.each(train_in_a_post_hook, several, spread=True):
        assert told == [[mean, 1.0]] * ranks.world, f"schedule {schedule}, {by_all=}, {hooked=}"


# -- JOIN-024: iterations that an exception breaks off, caught inside the block


class Failing(torch.nn.Module):
    """A scalar layer whose forward, or whose backward, fails when it is told to."""

    def __init__(self):
        super().__init__()
        self.a, self.fails = models.scalar(), ""

    def forward(self, x):
        if self.fails == "forward":
            raise KeyError(SPILLED)
        x = self.a(x)
        if self.fails == "backward":
            x.register_hook(self.fail)  # behind the output, so that the backward has begun for the wrapper, too
        return 1 * x

    def fail(self, _gradient):
        raise KeyError(SPILLED)


def break_off(ctx, where, beside=False):
    """Rank 0 catches an error of its second iteration inside the block and goes on; its peers have none, or fail too.

    Every rank says what it ended with. ``beside``: rank 0 goes on with another joinable of the context.
    """
    model, other = ddp(ctx, Failing()), recorder(ctx)

    def iterate():
        model.zero_grad()
        model(models.divisible_scalar(ctx.rank, 0)).sum().backward()

    def epoch():
        with ctx.subject.Join([model, other] if beside else [model]):
            iterate()
            if ctx.rank == 0:
                model.module.fails = "forward" if where == "everywhere" else where
                assert caught(iterate).is_a(KeyError)
                model.module.fails = ""
                if where == "everywhere":
                    ctx.store.wait(["left"])
                if beside:
                    other.step()
            elif where == "everywhere":
                model.module.fails = "forward"
            iterate()
            iterate()

    notes = []

    def noted():
        try:
            epoch()
        except Exception as error:
            notes.extend(getattr(error, "__notes__", []))
            raise

    error = caught(noted)
    if ctx.rank == ctx.world - 1:
        ctx.store.set("left", "1")
    ctx.meet("ended")  # a process that ended before would be taken for one that died
    assert ctx.rank or where == "everywhere" or not notes, f"rank 0 blames another for its own failure: {notes}"
    return error


@check("JOIN-024", worlds=(2, 3), deadline_s=6, beyond=False)
def test_a_rank_whose_backward_was_broken_off_cannot_go_on_and_its_peers_are_told(ranks):
    for beside in (False, True):
        for error in ranks(break_off, "backward", beside):
            assert_told(error, 0)


def be_refused_and_stay(ctx):
    """Rank 0 catches a broken backward inside the block, and the refusal of what comes next as well; it stays there
    until its peers have been told."""
    model, peers = ddp(ctx, Failing()), [f"{rank} is told" for rank in range(1, ctx.world)]

    def iterate():
        model.zero_grad()
        model(models.divisible_scalar(ctx.rank, 0)).sum().backward()

    def epoch():
        with model.join():
            iterate()
            if ctx.rank == 0:
                model.module.fails = "backward"
                assert caught(iterate).is_a(KeyError)
                model.module.fails = ""
                assert caught(iterate) is not None
                ctx.store.wait(peers)
            iterate()
            iterate()

    error = caught(epoch)
    ctx.store.set(f"{ctx.rank} is told", "")
    ctx.meet("ended")
    return error


@check("JOIN-024", worlds=(2, 3), deadline_s=6, beyond=False)
def test_peers_of_a_rank_that_cannot_go_on_are_told_though_it_stays_in_its_block(ranks):
    assert ranks.subject.PeerFailed
    for error in ranks(be_refused_and_stay):
        assert_told(error, 0)


@check("JOIN-024", worlds=(2,), deadline_s=6, beyond=False)
def test_a_rank_that_cannot_go_on_names_the_peer_that_failed_before_it(ranks):
    first, second = ranks(break_off, "everywhere")
    assert_told(first, 1)
    assert second is not None
    assert second.is_a(KeyError), second


def fail_at_different_depths(ctx):
    """Every rank fails, the lowest around a context that the others are in. The gradients of contexts after it."""
    outer, inner, seen = ddp(ctx, models.scalar()), ddp(ctx, models.scalar()), []

    def fail():
        with outer.join():
            outer(models.divisible_scalar(ctx.rank, 0)).sum().backward()
            if ctx.rank:
                with inner.join():
                    raise KeyError(SPILLED)
            raise KeyError(SPILLED)

    assert caught(fail).is_a(KeyError)
    for iteration in range(3):
        for model in (outer, inner):
            with model.join():
                model.zero_grad()
                time.sleep(0.2 * ctx.rank * (iteration == 0))  # the lowest waits, and looks around meanwhile
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            seen.append(model.module.weight.grad.item())
    return seen


@check("JOIN-024", worlds=(2, 3), deadline_s=8, beyond=False)
def test_a_group_whose_ranks_have_failed_inside_different_contexts_goes_on(ranks):
    means = [mean for mean in scalar_means((3,) * ranks.world) for _ in range(2)]
    assert ranks(fail_at_different_depths) == [means] * ranks.world


def go_on_alone(ctx, ways):
    """The only rank of its group catches an error inside the block and goes on; by way, the gradients after it."""
    told = []
    for way in ways:
        model, seen = ddp(ctx, Failing()), []

        def reduce(_state, bucket, model=model):
            if model.module.fails == "hook":
                raise KeyError(SPILLED)
            return done(bucket.buffer())

        model.register_comm_hook(None, reduce)
        with model.join():
            for iteration in range(4):
                model.module.fails = way if iteration == 1 else ""
                model.zero_grad()
                error = caught(lambda x, model=model: model(x).sum().backward(), models.divisible_scalar(0, iteration))
                seen.append(error.is_a(KeyError) if iteration == 1 else (error, gradients(model)["a.weight"]))
        told.append(seen)
    return told


@check("JOIN-024", worlds=(1,))
def test_who_is_alone_in_its_group_may_go_on_behind_an_error_that_it_has_caught(ranks):
    ways = ("forward", "backward", "hook")
    right = [True if i == 1 else (None, [models.divisible_scalar(0, i).item()]) for i in range(4)]
    for way, seen in zip(ways, *ranks(go_on_alone, ways), strict=True):
        assert seen == right, f"behind an error in its {way}: {seen}"


def leave_out_a_batch_alone(ctx):
    """When all others have run out of inputs, the forward of the last rank fails once, which its loop catches; the
    gradients of its other iterations."""
    model, seen = ddp(ctx, Failing()), []
    with model.join():
        for iteration in range(6 if ctx.rank == ctx.world - 1 else 3):  # then nothing but the backward waits for others
            model.zero_grad()
            model.module.fails = "forward" if iteration == 3 else ""
            error = caught(lambda x: model(x).sum().backward(), models.divisible_scalar(ctx.rank, iteration))
            seen.append(error.is_a(KeyError) if iteration == 3 else (error, gradient(model.module.a.weight)))
    return seen


@check("JOIN-024", worlds=(2, 3), deadline_s=6, beyond=False)
def test_the_last_rank_with_inputs_may_leave_out_a_batch_that_fails(ranks):
    assert ranks.subject.PeerFailed
    last, schedule = ranks.world - 1, (*[3] * (ranks.world - 1), 6)
    means = [True if number == 3 else (None, mean) for number, mean in enumerate(scalar_means(schedule))]
    assert ranks(leave_out_a_batch_alone) == [means[:3]] * last + [means]


# -- DDPJ-016: the final model, asked for by its name


def settle_by_hand(ctx, candidates):
    model = ddp(ctx, models.Counting(1.0))
    with torch.no_grad():
        model.module.a.weight.fill_(10.0 + ctx.rank)
        model.module.count.fill_(20.0 + ctx.rank)
    private(model, "_sync_final_model")(ctx.rank in candidates)
    return model.module.a.weight.item(), model.module.count.item()


@check("DDPJ-016", "DDPJ-017", "DDPJ-019", worlds=(1, *MANY), beyond=False)
def test_outside_a_context_too_the_highest_candidate_gives_all_ranks_its_model(ranks):
    last = ranks.world - 1
    for candidates, told in ranks.each(settle_by_hand, ([0], [0, last], [last])):
        source = max(candidates)
        assert told == [(10.0 + source, 20.0 + source)] * ranks.world
