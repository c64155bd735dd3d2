"""Hooks and gradients of other layouts and kinds: what a bucket shows of them, and what becomes of them."""

import torch
from torch import nn

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures.comm_hooks import TINY_MIB, alone, done, gap, hooked, step, steps
from conformance.fixtures.models import TwoTables, divisible_scalar, rows
from conformance.fixtures.training import private
from conformance.ranks import Caught, caught

ITERATIONS = 5


def ramp(tensor, first=1.0):
    return torch.arange(first, first + tensor.numel(), device=tensor.device).view(tensor.shape)


class Layouts(nn.Module):
    """Parameters of several layouts; every element has a gradient of its own."""

    def __init__(self):
        super().__init__()
        made = [
            torch.ones(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
            torch.ones(3, 4).t(),
            torch.ones(5),
            torch.ones(1, 2, 2, 2, 3).contiguous(memory_format=torch.channels_last_3d),
            torch.ones(2, 3, 4).permute(2, 0, 1),
            torch.ones(3, 4)[:, ::2],
        ]
        self.each = nn.ParameterList([nn.Parameter(value) for value in made])

    def forward(self, x):
        return torch.stack([(x.sum() * ramp(parameter) * parameter).sum() for parameter in self.each])


def write_in_order(ctx, as_view, replaced):
    """A hook that reads and writes each gradient element by element; whether it found and left what belongs there."""
    found = []

    def hook(_state, bucket):
        if replaced:
            bucket.set_buffer(bucket.buffer().clone())
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            right = x * ramp(parameter)
            dense = not any(parameter is each for each in list(model.module.each)[5:])
            laid_out = not dense or gradient.stride() == parameter.stride()
            found.append((gradient.shape == parameter.shape, laid_out, torch.equal(gradient, right)))
            gradient.copy_(ramp(parameter, numbers[parameter]))
        return done(bucket.buffer())

    model = hooked(ctx, None, hook, Layouts(), gradient_as_bucket_view=as_view)
    numbers = {parameter: 100.0 * place for place, parameter in enumerate(model.module.each)}
    left = []
    for iteration in range(ITERATIONS):
        x = divisible_scalar(ctx.rank, iteration).to(ctx.device).sum()
        step(model, x.view(1, 1))
        left.append(all(torch.equal(each.grad, ramp(each, numbers[each])) for each in model.module.each))
    return found, left


def write_in_all_ways(ctx):
    return {
        (as_view, replaced): write_in_order(ctx, as_view, replaced)
        for as_view in (False, True) for replaced in (False, True)
    }  # fmt: skip


@check("COMM-016", worlds=(1, 2))
def test_gradients_in_a_bucket_are_those_of_their_parameters_element_by_element_in_every_layout(ranks):
    for told in ranks(write_in_all_ways):
        for way, (found, left) in told.items():
            assert set(found) == {(True, True, True)}, f"shape, strides, numbers of gradients(): {way}"
            assert left == [True] * ITERATIONS, f"what a hook wrote is not what parameters have: {way}"


def library(ctx):
    """By name: a state and a hook of the library that averages without loss here, or nearly."""
    subject, whole = ctx.subject, 8
    plain = subject.default_hooks
    low_rank = subject.powerSGD_hook.PowerSGDState(
        ctx.group, start_powerSGD_iter=3, matrix_approximation_rank=whole, min_compression_rate=0.1
    )
    in_bfloat = plain.bf16_compress_wrapper(plain.allreduce_hook)
    local = subject.post_localSGD_hook.PostLocalSGDState(ctx.group, ctx.group, 2)
    return {
        "all-reduce": (ctx.group, plain.allreduce_hook),
        "half": (ctx.group, plain.fp16_compress_hook),
        "half around": (ctx.group, plain.fp16_compress_wrapper(plain.allreduce_hook)),
        "bfloat around": (ctx.group, lambda state, bucket: in_bfloat(state, bucket)),  # accepted under another name
        "low rank": (low_rank, subject.powerSGD_hook.powerSGD_hook),
        "local": (local, subject.post_localSGD_hook.post_localSGD_hook),
    }


NEAR = {"half": 2e-3, "half around": 2e-3, "bfloat around": 2e-2, "low rank": 1e-4}


def train_in_every_layout(ctx):
    told = {}
    for name, (state, hook) in library(ctx).items():
        for as_view in (False, True):
            cap_mib = 25 if name == "low rank" else TINY_MIB
            model = hooked(ctx, state, hook, Layouts(), gradient_as_bucket_view=as_view, bucket_cap_mb=cap_mib)
            told[name, as_view] = steps(ctx, model, divisible_scalar, ITERATIONS)
    for kind in ("ALLREDUCE", "FP16_COMPRESS"):
        model = ctx.subject.DistributedDataParallel(Layouts(), bucket_cap_mb=TINY_MIB)
        private(model, "_register_builtin_comm_hook")(getattr(ctx.subject.BuiltinCommHookType, kind))
        told["half" if kind == "FP16_COMPRESS" else "built in", kind] = steps(ctx, model, divisible_scalar, ITERATIONS)
    return told


@check("COMM-017", "COMM-019", "COMM-020", "COMM-021", "COMM-026", "COMM-028", worlds=MANY, beyond=False)
def test_hooks_of_the_library_average_parameters_of_every_layout(ranks):
    exact = alone(range(ranks.world), batch=divisible_scalar, model=Layouts, count=ITERATIONS)
    for rank, told in enumerate(ranks(train_in_every_layout)):
        for name, seen in told.items():
            far = gap(seen, exact)
            assert far <= NEAR.get(name[0], 1e-6), f"rank {rank}, {name}: {far} apart"


def train_in_eight_bits(ctx):
    hooks = ctx.subject.quantization_hooks
    return [
        steps(ctx, hooked(ctx, ctx.group, hook, Layouts()), divisible_scalar, ITERATIONS)
        for hook in (hooks.quantization_pertensor_hook, hooks.quantization_perchannel_hook)
    ]


@check("COMM-029", worlds=(1, 2, 3))
def test_hooks_of_eight_bits_take_parameters_of_every_layout(ranks):
    exact = alone(range(ranks.world), batch=divisible_scalar, model=Layouts, count=ITERATIONS)
    for told in ranks(train_in_eight_bits):
        for seen in told:
            assert gap(seen, exact) <= 0.02


# -- other kinds of gradients


class OfKind(nn.Module):
    """A double vector beside a single one; every element has a gradient of its own."""

    KINDS = (torch.float64, torch.float32, torch.float64)

    def __init__(self):
        super().__init__()
        self.each = nn.ParameterList([nn.Parameter(torch.ones(4, dtype=kind)) for kind in self.KINDS])

    def forward(self, x):
        return torch.stack([(x.sum() * ramp(each) * each).sum().double() for each in self.each])


def train_doubles(ctx):
    """By hook: the dtypes of the gradients, and how far they are from the mean."""
    told = {}
    for name, (state, hook) in library(ctx).items():
        if name == "low rank":
            continue
        for as_view in (False, True):
            model = hooked(ctx, state, hook, OfKind(), gradient_as_bucket_view=as_view)
            seen = steps(ctx, model, divisible_scalar, ITERATIONS)
            told[name, as_view] = seen, [str(each.grad.dtype) for each in model.module.each]
    model = ctx.subject.DistributedDataParallel(OfKind(), bucket_cap_mb=TINY_MIB)
    private(model, "_register_builtin_comm_hook")(ctx.subject.BuiltinCommHookType.FP16_COMPRESS)
    seen = steps(ctx, model, divisible_scalar, ITERATIONS)
    told["half", "built in"] = seen, [str(each.grad.dtype) for each in model.module.each]
    return told


@check("COMM-018", "COMM-020", "COMM-021", worlds=(1, 2, 3))
def test_hooks_give_gradients_back_in_the_dtype_that_they_came_in(ranks):
    exact = alone(range(ranks.world), batch=divisible_scalar, model=OfKind, count=ITERATIONS)
    for rank, told in enumerate(ranks(train_doubles)):
        for name, (seen, dtypes) in told.items():
            assert dtypes == [str(kind) for kind in OfKind.KINDS], f"rank {rank}, {name}"
            far = gap(seen, exact)
            assert far <= NEAR.get(name[0], 1e-6), f"rank {rank}, {name}: {far} apart"


def look_up_and_answer_densely(ctx):
    """A table's gradients where a hook answers with a dense tensor: none are there before the first backward, then
    those of before, cleared and not."""
    told, follows = [], []

    def dense(_state, bucket):
        bucket.set_buffer(bucket.buffer().to_dense() * 2)
        follows.extend(torch.equal(each, bucket.buffer()) for each in bucket.gradients())  # there may be none
        return done(bucket.buffer())

    model = hooked(ctx, None, dense, nn.Embedding(4, 2, sparse=True))
    for iteration in range(3):
        if iteration == 1:
            model.zero_grad(set_to_none=False)
        looked_up = model(torch.tensor([ctx.rank % 4, iteration, iteration], device=ctx.device)).sum()
        error = caught(looked_up.backward)
        if error is not None:
            return error, follows
        told.append(model.module.weight.grad.to_dense().tolist())
    return told, follows


@check("COMM-001", "COMM-016", worlds=(1, 2), beyond=False)
def test_dense_answers_for_sparse_gradients_are_taken_or_refused(ranks):
    for rank, (told, follows) in enumerate(ranks(look_up_and_answer_densely)):
        if isinstance(told, Caught):
            assert told.is_a(RuntimeError), f"rank {rank}: {told}"
            ranks.at_limit("a dense answer for sparse gradients is refused")
            continue
        found, expected = torch.zeros(4, 2), []
        for iteration in range(3):
            found = found * (iteration != 1)
            for row in (rank, iteration, iteration):
                found[row] += 1
            found = found * 2
            expected.append(found.tolist())
        assert told == expected, f"rank {rank}: {told}, expected {expected}"
        assert all(follows), "gradients() does not show the dense tensor that has replaced the buffer"


def look_up_with_a_hook(ctx):
    """A sparse table beside a dense layer, with the library's hook and with a user's, which notes what it gets."""
    told, given = [], []

    def doubling(_state, bucket):
        bucket.set_buffer(bucket.buffer() * 2)
        buffer, first = bucket.buffer(), bucket.gradients()[:1]  # of sparse ones there may be none
        flat = buffer.to_dense().flatten()
        follows = all(torch.equal(each.to_dense().flatten(), flat[: each.numel()]) for each in first)
        given.append((buffer.is_sparse, len(bucket.parameters()), follows))
        return done(buffer)

    for state, hook in ((ctx.group, ctx.subject.default_hooks.allreduce_hook), (None, doubling)):
        model = hooked(ctx, state, hook, TwoTables())
        for iteration in range(3):
            model.zero_grad(set_to_none=True)
            model(rows(ctx.rank, iteration)).backward()
            held = [each.grad for each in model.parameters()]
            told.append([(each.is_sparse, each.to_dense().flatten().tolist()) for each in held])
    return told, set(given)


@check("COMM-001", "COMM-016", "COMM-019", worlds=(1, 2, 4), beyond=False)
def test_hooks_take_sparse_gradients_and_what_they_return_is_what_tables_have(ranks):
    model = TwoTables()
    kinds = [name.endswith(("table.weight", "bag.weight")) for name, _ in model.named_parameters()]
    for rank, (told, given) in enumerate(ranks(look_up_with_a_hook)):
        expected = []
        for members, factor in ((range(ranks.world), 1 / ranks.world), ([rank], 2)):
            for iteration in range(3):
                found = [oracle.local_gradients(model, rows(each, iteration)) for each in members]
                sums = [sum(each[name].to_dense() for each in found) * factor for name, _ in model.named_parameters()]
                expected.append([(kind, total.flatten().tolist()) for kind, total in zip(kinds, sums, strict=True)])
        assert told == expected, f"rank {rank}"
        assert {sparse for sparse, *_ in given} == {True, False}
        counts = [count for sparse, count, _ in given if sparse]
        assert set(counts) == {1}, f"so many parameters in each bucket with a sparse gradient: {counts}"
        assert all(follows for *_, follows in given), "gradients() does not show what has replaced the buffer"
