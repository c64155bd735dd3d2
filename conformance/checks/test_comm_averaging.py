"""Hooks that average every bucket as it is (built in, in Python, in half precision), and the one that does nothing."""

import math

import torch
import torch.distributed as dist

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import (
    ITERATIONS,
    TINY_MIB,
    alone,
    gap,
    generic,
    hooked,
    step,
    steps,
    steps_and_traffic,
)
from conformance.fixtures.training import EVERY_WAY, average_of_parts, ddp, private

HALF_STEP = 2.0**-11  # the largest relative error of rounding a number to float16


def _without_hook(ctx, batch=models.divisible, model=None):
    return steps(ctx, ddp(ctx, models.Sum() if model is None else model, bucket_cap_mb=TINY_MIB), batch)


def _assert_exact_or_close(seen, expected, world):
    """Bitwise where the division is exact, else within the rounding of a sum in float32."""
    if world in (1, 2, 4):
        assert seen == expected
    else:
        assert gap(seen, expected) <= 1e-6


# -- COMM-017, COMM-018: built in


def train_built_in(ctx, kind, batch):
    """Rank 0 names the hook by the subject's member, the others by torch's own, as a script written for that does."""
    kinds = dist.BuiltinCommHookType if ctx.rank else ctx.subject.BuiltinCommHookType
    model = ddp(ctx, models.Sum(), bucket_cap_mb=TINY_MIB)
    private(model, "_register_builtin_comm_hook")(getattr(kinds, kind))
    seen = steps(ctx, model, batch)
    return seen, {str(parameter.grad.dtype) for parameter in model.parameters()}, _without_hook(ctx, batch)


@check("COMM-017")
def test_the_built_in_all_reduce_gives_the_averages_of_no_hook(ranks):
    for seen, _, _ in ranks(train_built_in, "ALLREDUCE", models.divisible):
        _assert_exact_or_close(seen, alone(range(ranks.world)), ranks.world)
    for seen, _, plain in ranks(train_built_in, "ALLREDUCE", generic):
        assert gap(seen, plain) <= 1e-6


def train_in_every_way(ctx):
    """Under each option, the averages with the built-in hook and with the library's."""
    told = []
    for options in EVERY_WAY:
        built_in = ddp(ctx, models.Sum(), bucket_cap_mb=TINY_MIB, **options)
        private(built_in, "_register_builtin_comm_hook")(ctx.subject.BuiltinCommHookType.ALLREDUCE)
        library = hooked(ctx, ctx.group, ctx.subject.default_hooks.allreduce_hook, **options)
        told.append([steps(ctx, model) for model in (built_in, library)])
    return told


@check("COMM-017", "COMM-019", worlds=MANY)
def test_hooks_that_average_do_so_under_every_option(ranks):
    expected = alone(range(ranks.world))
    for told in ranks(train_in_every_way):
        for options, runs in zip(EVERY_WAY, told, strict=True):
            for seen in runs:
                assert gap(seen, expected) <= (0 if ranks.world in (2, 4) else 1e-6), options


@check("COMM-018")
def test_the_built_in_compression_averages_in_half_precision_and_returns_the_dtype(ranks):
    exact = alone(range(ranks.world), batch=generic)
    for seen, dtypes, _ in ranks(train_built_in, "FP16_COMPRESS", generic):
        assert dtypes == {"torch.float32"}
        assert 0 < gap(seen, exact) <= 2 * (ranks.world + 1) * HALF_STEP


def forty_thousand(_rank, _iteration):
    """The local gradient of ``scalar`` is 40000: two of them overflow float16, their mean does not."""
    return torch.full((1, 1), 40000.0)


@check("COMM-018", "COMM-020", worlds=MANY, scenarios={"built in": True, "Python": False})
def test_large_gradients_are_divided_before_they_are_summed(ranks, scenario):
    expected = alone(range(ranks.world), batch=forty_thousand, model=models.scalar, count=1)
    for seen in ranks(train_large, scenario):
        assert gap(seen, expected) <= 4 * (ranks.world + 1) * HALF_STEP


def train_large(ctx, built_in):
    model = ddp(ctx, models.scalar())
    if built_in:
        private(model, "_register_builtin_comm_hook")(ctx.subject.BuiltinCommHookType.FP16_COMPRESS)
    else:
        model.register_comm_hook(ctx.group, ctx.subject.default_hooks.fp16_compress_hook)
    return steps(ctx, model, forty_thousand, 1)


# -- COMM-019: the Python all-reduce


def train_with_library(ctx, name, batch, in_subgroup=False):
    """The gradients with a hook of the library, its group as the state; None on ranks outside."""
    group = dist.new_group(list(range(1, ctx.world))) if in_subgroup else ctx.group
    if in_subgroup and ctx.rank == 0:
        return None
    return steps(ctx, hooked(ctx, group, getattr(ctx.subject.default_hooks, name), group=group), batch)


@check("COMM-019")
def test_the_python_all_reduce_gives_the_averages_of_no_hook(ranks):
    for seen in ranks(train_with_library, "allreduce_hook", models.divisible):
        _assert_exact_or_close(seen, alone(range(ranks.world)), ranks.world)


def train_side_by_side(ctx):
    """Two models, one with the hook, trained on the same data by SGD."""
    found = []
    for with_hook in (False, True):
        model = ddp(ctx, models.chain(3), bucket_cap_mb=TINY_MIB)
        if with_hook:
            model.register_comm_hook(ctx.group, ctx.subject.default_hooks.allreduce_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        seen = []
        for iteration in range(2 * ITERATIONS):
            seen.append(step(model, generic(ctx.rank, iteration)))
            optimizer.step()
        found.append(seen)
    return gap(found[1], found[0])


@check("COMM-019")
def test_training_with_the_python_all_reduce_follows_training_without_a_hook(ranks):
    assert max(ranks(train_side_by_side)) <= 1e-5


def train_unevenly(ctx, schedule):
    model = hooked(ctx, ctx.group, ctx.subject.default_hooks.allreduce_hook)
    with model.join():
        return steps(ctx, model, count=schedule[ctx.rank])


@check("COMM-019", worlds=MANY)
def test_on_uneven_inputs_the_python_all_reduce_gives_the_averages_of_no_hook(ranks):
    several = (list(range(1, ranks.world + 1)), [3, *[1] * (ranks.world - 1)])
    for schedule, runs in ranks.each(train_unevenly, several):
        for iteration in range(max(schedule)):
            active = oracle.active_ranks(schedule, iteration)
            expected = alone(active, divisor=ranks.world, count=iteration + 1)[iteration]
            for rank in active:
                _assert_exact_or_close([runs[rank][iteration]], [expected], ranks.world)


@check("COMM-019", "COMM-020", worlds=(3, 4), scenarios={"all-reduce": "allreduce_hook", "fp16": "fp16_compress_hook"})
def test_on_a_subgroup_the_divisor_is_the_size_of_the_group(ranks, scenario):
    expected = alone(range(1, ranks.world))
    first, *others = ranks(train_with_library, scenario, models.divisible, True)
    assert first is None
    for seen in others:
        assert gap(seen, expected) <= (1e-6 if scenario == "allreduce_hook" else 3e-3)


# -- COMM-020, COMM-021: compression


def compress(ctx, name):
    """Train with a compression hook and look at what its futures hold; None where the hook is refused."""
    told = []
    inner = getattr(ctx.subject.default_hooks, name)

    def watching(state, bucket):
        buffer = bucket.buffer()

        def look(future):
            result = future.value()
            told.append((result.data_ptr() == buffer.data_ptr(), str(result.dtype)))
            return result

        return inner(state, bucket).then(look)

    seen = steps(ctx, hooked(ctx, ctx.group, watching), generic), told
    return *seen, step(hooked(ctx, ctx.group, watching, models.scalar()), torch.full((1, 1), HUGE))["weight"][0]


HUGE = 1e30  # no float16, but nearly a bfloat16


@check("COMM-020", scenarios={
    "fp16": ("fp16_compress_hook", HALF_STEP), "bf16": ("bf16_compress_hook", 2.0**-8),
})  # fmt: skip
def test_compression_rounds_to_half_precision_and_casts_back_in_place(ranks, scenario):
    name, rounding = scenario
    exact = alone(range(ranks.world), batch=generic)
    # wrapped in another function, the bfloat16 hook is accepted anywhere; Gloo can reduce bfloat16
    for seen, told, huge in ranks(compress, name):
        assert told, "the hook was never called"
        assert set(told) == {(True, "torch.float32")}
        assert 0 < gap(seen, exact) <= 2 * (ranks.world + 1) * rounding
        assert math.isfinite(huge) == (name == "bf16_compress_hook"), f"{name} has made {huge} of {HUGE}"


def compare_wrappers(ctx):
    return {name: compare_wrapper(ctx, name) for name in ("fp16", "bf16")}


def compare_wrapper(ctx, name):
    library = ctx.subject.default_hooks
    wrapper, hook = getattr(library, f"{name}_compress_wrapper"), getattr(library, f"{name}_compress_hook")
    wrapped = wrapper(library.allreduce_hook)
    runs = []
    for each in (wrapped, hook):
        model = hooked(ctx, ctx.group, lambda state, bucket, each=each: each(state, bucket))
        runs.append((steps(ctx, model, generic), {str(parameter.grad.dtype) for parameter in model.parameters()}))
    return runs


@check("COMM-021")
def test_a_wrapped_all_reduce_equals_the_compression_hook_bit_by_bit(ranks):
    for told in ranks(compare_wrappers):
        for name, ((wrapped, dtypes), (direct, _)) in told.items():
            assert wrapped == direct, name
            assert dtypes == {"torch.float32"}, name


def wrap_own_hook(ctx):
    """The wrapper around a hook of the user's: what it is shown, and what becomes of a result in a new tensor."""
    shown = []

    def doubling(_state, bucket):
        shown.append((str(bucket.buffer().dtype), sorted({str(view.dtype) for view in bucket.gradients()})))
        future = torch.futures.Future()
        future.set_result(bucket.buffer() * 2)
        return future

    wrapped = ctx.subject.default_hooks.fp16_compress_wrapper(doubling)
    model = hooked(ctx, None, lambda state, bucket: wrapped(state, bucket))
    seen = steps(ctx, model)
    return shown, seen, {str(parameter.grad.dtype) for parameter in model.parameters()}


@check("COMM-021", worlds=(1, 2))
def test_any_hook_can_be_wrapped_and_sees_half_precision(ranks):
    for rank, (shown, seen, dtypes) in enumerate(ranks(wrap_own_hook)):
        assert set(map(str, shown)) == {str(("torch.float16", ["torch.float16"]))}
        assert dtypes == {"torch.float32"}
        local = alone([rank])  # small integers: exact in float16 too
        assert seen == [{name: [2 * v for v in values] for name, values in each.items()} for each in local]


def wrap_beside_unused(ctx):
    """The last layer is used by the first rank only; by wrapper the gradients, and their dtypes."""
    library, told = ctx.subject.default_hooks, {}
    for name in ("fp16", "bf16"):
        inner = getattr(library, f"{name}_compress_wrapper")(library.allreduce_hook)
        parts = models.Parts()
        parts.use = "ab" if ctx.rank else "abc"
        outer = lambda state, bucket, inner=inner: inner(state, bucket)  # noqa: E731  # bfloat16 is for NCCL
        model = hooked(ctx, ctx.group, outer, parts, find_unused_parameters=True)
        told[name] = steps(ctx, model), {str(parameter.grad.dtype) for parameter in model.parameters()}
    return told


@check("COMM-021")
def test_a_wrapper_restores_the_dtype_where_only_another_rank_uses_a_parameter(ranks):
    uses = ["abc", *["ab"] * (ranks.world - 1)]
    expected = [average_of_parts(uses, iteration) for iteration in range(ITERATIONS)]
    for told in ranks(wrap_beside_unused):
        for name, (seen, dtypes) in told.items():
            assert dtypes == {"torch.float32"}, f"gradients behind {name}'s wrapper are of {sorted(dtypes)}"
            assert gap(seen, expected) <= (ranks.world + 1) * 2.0**-7, name


# -- COMM-022: nothing


def train_with_noop(ctx):
    hook = ctx.subject.debugging_hooks.noop_hook
    return [steps_and_traffic(ctx, hooked(ctx, None, hook, gradient_as_bucket_view=each)) for each in (False, True)]


@check("COMM-022", worlds=MANY)
def test_the_no_op_hook_leaves_local_gradients_and_starts_no_collective(ranks):
    for rank, ways in enumerate(ranks(train_with_noop, trace=True)):
        for told in ways:
            assert [seen for seen, _ in told] == alone([rank])
            assert [collectives for _, collectives in told] == [0] * ITERATIONS


# -- COMM-024: no state


def train_pairs_without_state(ctx, name):
    """Two DDPs on groups of their own, {0, 1} and {2, 3}: hooks over the whole world would mix them, not hang."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = hooked(ctx, None, getattr(ctx.subject.default_hooks, name), group=pairs[ctx.rank // 2])
    return steps(ctx, model)


@check("COMM-024", worlds=(4,), beyond=False, scenarios={"all-reduce": "allreduce_hook", "fp16": "fp16_compress_hook"})
def test_without_a_state_a_hook_averages_over_the_group_of_its_ddp(ranks, scenario):
    for rank, seen in enumerate(ranks(train_pairs_without_state, scenario)):
        first = rank // 2 * 2
        expected = alone([first, first + 1])
        assert gap(seen, expected) <= (0 if scenario == "allreduce_hook" else 3e-3)


FURTHER = ("a wrapper", "another wrapper", "low rank", "low rank by bucket")


def train_pairs_with_further_hooks(ctx):
    """As before, one after the other; low rank before it compresses and where its rank is that of all gradients."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    library, low = ctx.subject.default_hooks, ctx.subject.powerSGD_hook
    in_bfloat = library.bf16_compress_wrapper(library.allreduce_hook)
    hooks = {
        "a wrapper": lambda: (None, library.fp16_compress_wrapper(library.allreduce_hook)),
        "another wrapper": lambda: (None, lambda state, bucket: in_bfloat(state, bucket)),
        "low rank": lambda: (low.PowerSGDState(None, 4, 2, 0.1), low.powerSGD_hook),
        "low rank by bucket": lambda: (low.PowerSGDState(None, 4, 100, 0.1), low.batched_powerSGD_hook),
    }
    return {
        name: steps(ctx, hooked(ctx, *hooks[name](), group=pairs[ctx.rank // 2], bucket_cap_mb=25)) for name in FURTHER
    }


@check("COMM-024", worlds=(4,), beyond=False, deadline_s=15)
def test_without_a_state_wrappers_and_low_rank_hooks_average_over_the_group_of_their_ddp(ranks):
    for rank, told in enumerate(ranks(train_pairs_with_further_hooks)):
        first = rank // 2 * 2
        expected = alone([first, first + 1])
        for name, seen in told.items():
            far = gap(seen, expected)
            assert far <= (2e-2 if "wrapper" in name else 1e-4), f"rank {rank}: {name}: {far} apart"


def train_part_without_state(ctx):
    """A DDP on some ranks, while the others do something else: a hook over the whole world would wait for them."""
    members = list(range(1, ctx.world))
    group = dist.new_group(members)
    if ctx.rank == 0:
        ctx.meet("done")
        return None
    seen = steps(ctx, hooked(ctx, None, ctx.subject.default_hooks.allreduce_hook, group=group))
    ctx.meet("done")
    return seen


@check("COMM-024", worlds=(3,), deadline_s=15)
def test_without_a_state_a_hook_does_not_wait_for_ranks_outside_its_ddp(ranks):
    assert ranks(train_part_without_state) == [None] + [alone([1, 2])] * 2
