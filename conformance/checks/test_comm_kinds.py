"""Hooks of the library and buckets that are unlike others: sparse, empty, half as wide, of zeros, of one gradient."""

import functools
import itertools

import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import Stepping, done, hooked, step
from conformance.fixtures.observing import assert_refused, mean_of_all, mine
from conformance.fixtures.training import ddp, private
from conformance.ranks import caught

PATIENCE_S = 12.0


class Kinds(nn.Module):
    """A sparse table, a layer, and a parameter without elements in front, whose bucket may be empty."""

    def __init__(self, dtype=torch.float32, factor=12):
        super().__init__()
        self.factor = factor
        self.nothing = nn.Parameter(torch.zeros(0, 3, dtype=dtype))
        self.table = nn.Embedding(8, 2, sparse=True, dtype=dtype)
        self.layer = nn.Linear(2, 2, dtype=dtype)
        for parameter in self.parameters():
            nn.init.ones_(parameter)

    def forward(self, rows):
        nothing = self.nothing.sum()  # first, so that its gradient comes last: in a bucket of its own
        return self.factor * (self.layer(self.table(rows)).sum() + nothing)


def looked_up(rank):
    return torch.tensor([rank % 8, 2, 2])


def dense(model):
    return {name: p.grad.to_dense().flatten().tolist() for name, p in model.named_parameters()}


def averages(world, dtype=torch.float32, factor=12):
    alone = Kinds(dtype, factor)
    for rank in range(world):
        alone(looked_up(rank)).backward()
    return {name: [value / world for value in values] for name, values in dense(alone).items()}


def train_kinds(ctx, dtype, make, factor=12):
    told = {}
    for name, (state, hook) in make(ctx).items():
        model = ddp(ctx, Kinds(dtype, factor), bucket_cap_mb=1e-6)
        if hook is not None:
            model.register_comm_hook(state, hook)
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            model(looked_up(ctx.rank)).backward()
        told[name] = dense(model.module), model.module.table.weight.grad.is_sparse
    return told


def eight_bits(ctx):
    hooks = ctx.subject.quantization_hooks
    narrow = functools.partial(hooks.quantization_perchannel_hook, bucket_size=3)
    return {
        "one scale": (ctx.group, hooks.quantization_pertensor_hook),
        "narrow channels": (ctx.group, lambda state, bucket: narrow(state, bucket)),
        "the narrowest": (ctx.group, lambda state, bucket: hooks.quantization_perchannel_hook(state, bucket, 1)),
    }


def low_rank(ctx):
    """Hooks that have begun to compress, where there is anything to compress."""
    library, told = ctx.subject.powerSGD_hook, {}
    for hook in (library.powerSGD_hook, library.batched_powerSGD_hook):
        options = {"start_powerSGD_iter": 0, "use_error_feedback": False, "warm_start": False}
        told[hook.__name__] = library.PowerSGDState(ctx.group, 8, min_compression_rate=100, **options), hook
    return told


def in_half(ctx):
    hooks = ctx.subject.default_hooks
    return {"none": (None, None), "all-reduce": (ctx.group, hooks.allreduce_hook)}


def assert_near(runs, right, steps):
    for told in runs:
        for hook, (found, sparse) in told.items():
            assert sparse, hook
            for name, values in right.items():
                furthest = max(map(abs, values), default=0.0) * steps
                errors = [abs(a - b) for a, b in zip(found[name], values, strict=True)]
                assert max(errors, default=0.0) <= furthest, f"{hook}, {name}: {found[name]} instead of {values}"


@check("COMM-029", worlds=(1, *MANY), deadline_s=PATIENCE_S, beyond=False)
def test_hooks_of_eight_bits_take_sparse_and_empty_buckets(ranks):
    assert_near(ranks(train_kinds, torch.float32, eight_bits), averages(ranks.world), 2 / 255)


@check("COMM-026", worlds=(1, 2), deadline_s=PATIENCE_S, beyond=False)
def test_low_rank_compression_takes_sparse_and_empty_buckets(ranks):
    assert_near(ranks(train_kinds, torch.float32, low_rank), averages(ranks.world), 1e-5)


@check("DDP-057", "COMM-019", worlds=(1, 2, 4), deadline_s=PATIENCE_S, beyond=False)
def test_sparse_gradients_of_half_the_width_are_averaged_with_and_without_a_hook(ranks):
    right = averages(ranks.world)
    assert_near(ranks(train_kinds, torch.bfloat16, in_half), right, 0.0)


def in_two_bytes_each(ctx):
    hooks = ctx.subject.default_hooks
    return {
        "float16": (ctx.group, hooks.fp16_compress_hook),
        "wrapped": (ctx.group, hooks.fp16_compress_wrapper(hooks.allreduce_hook)),
    }


@check("COMM-020", "COMM-021", worlds=(1, 2, 4), deadline_s=PATIENCE_S, beyond=False)
def test_sparse_gradients_that_are_compressed_come_back_as_they_were(ranks):
    # with the second factor two bytes hold the mean of the ranks and not their sum
    several = [(torch.float32, in_two_bytes_each, factor) for factor in (12, 9_000)]
    for (*_, factor), runs in ranks.each(train_kinds, several, spread=True):
        assert_near(runs, averages(ranks.world, factor=factor), 2.0**-10)


class Gathered(nn.Module):
    """Single elements of a complex table, whose gradient then is sparse in its columns, too."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 3, sparse=True, dtype=torch.complex64)
        nn.init.ones_(self.table.weight)

    def forward(self, places):
        return torch.view_as_real((12 + 24j) * torch.gather(self.table.weight, 1, places, sparse_grad=True)).sum()


def gathered_from(rank):
    return torch.tensor([[rank % 3, 0], [1, 2]])


def gather_complex(ctx):
    """By hook: an error, or what a gradient that is complex and sparse in both dimensions has become."""
    told = {}
    everyone = {"none": (None, None), "all-reduce": (ctx.group, ctx.subject.default_hooks.allreduce_hook)}
    for name, (state, hook) in (everyone | in_two_bytes_each(ctx)).items():
        model = ddp(ctx, Gathered().to(ctx.device))
        if hook is not None:
            model.register_comm_hook(state, hook)
        error = caught(lambda model=model: model(gathered_from(ctx.rank).to(ctx.device)).backward())
        held = model.module.table.weight.grad
        told[name] = error, held.is_sparse, held.to_dense().tolist()
        ctx.meet(name)
    return told


@check("DDP-057", "COMM-020", worlds=(1, 2, 4), deadline_s=PATIENCE_S, beyond=False)
def test_complex_gradients_that_are_sparse_in_both_dimensions_are_averaged_or_refused(ranks):
    alone = Gathered()
    for rank in range(ranks.world):
        alone(gathered_from(rank)).backward()
    right = (alone.table.weight.grad.to_dense() / ranks.world).tolist()
    for rank, told in enumerate(ranks(gather_complex)):
        if (error := told["none"][0]) is not None:  # and then with a hook as well
            assert error.is_a(RuntimeError), f"rank {rank}: {error}"
            ranks.at_limit("gradients that are complex and sparse are refused")
        else:
            assert told == dict.fromkeys(told, (None, True, right)), f"rank {rank}"


# -- COMM-016: an optimizer in the hook, and parameters of other kinds


def step_kinds(ctx):
    """What parameters are once an optimizer in the hook has stepped them: complex ones, and a sparse table."""
    library, inner, told = ctx.subject.optimizer_overlap_hooks, ctx.subject.default_hooks, []
    for reducing in (inner.allreduce_hook, inner.fp16_compress_hook):
        for model, fed in ((Turning(), mine(ctx)), (Kinds(), looked_up(ctx.rank))):
            state = private(library, "_OptimizerHookState")(Stepping())
            hook = private(library, "_hook_then_optimizer")(reducing, state)
            wrapped = hooked(ctx, ctx.group, hook, model)
            wrapped(fed).sum().backward()
            told.append({name: parameter.detach().flatten().tolist() for name, parameter in model.named_parameters()})
    return told


def kinds_stepped_alone(world):
    gradients = [dict(zip(("each.0", "each.1"), complex_means(world, 1), strict=True)), averages(world)]
    return [
        {name: [1 - 0.5 * value for value in values] for name, values in each.items()} for each in gradients
    ]  # fmt: skip


@check("COMM-016", worlds=(1, 2, 4), deadline_s=PATIENCE_S, beyond=False)
def test_an_optimizer_in_the_hook_steps_complex_parameters_and_sparse_tables(ranks):
    for rank, told in enumerate(ranks(step_kinds)):
        for found, right in zip(told, kinds_stepped_alone(ranks.world) * 2, strict=True):
            assert found == right, f"rank {rank}"


# -- COMM-026: what is compressed when there is little to compress


class Masked(nn.Module):
    """One weight, whose gradient is what is fed."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6, 5, dtype=dtype))

    def forward(self, x):
        return (self.weight * x).sum()


WAYS = ((torch.float32, {}), (torch.float32, {"matrix_approximation_rank": 2}), (torch.bfloat16, {}))


def degenerate(iteration, dtype=torch.float32):
    """Gradients: three to begin with, then nothing, then a matrix that the factor kept from that has no part in."""
    whole = torch.arange(1.0, 31.0).view(6, 5)
    if iteration >= 4:
        whole[:, 0] = 0
    return (torch.zeros(6, 5) if iteration == 3 else whole).to(dtype)


def compress_in_every_way(ctx):
    return [compress(ctx, dtype, options) for dtype, options in WAYS]


def compress(ctx, dtype, options):
    library = ctx.subject.powerSGD_hook
    told = []
    for hook in (library.powerSGD_hook, library.batched_powerSGD_hook):
        given = {"start_powerSGD_iter": 2, "min_compression_rate": 0.5, "use_error_feedback": False, **options}
        model = hooked(ctx, library.PowerSGDState(ctx.group, **given), hook, Masked(dtype))
        told.append([step(model, degenerate(number, dtype) * (1 + ctx.rank))["weight"] for number in range(6)])
    return told


@check("COMM-026", worlds=(1, 2, 3), deadline_s=PATIENCE_S, beyond=False)
def test_what_is_compressed_is_a_projection_also_where_a_factor_is_zero(ranks):
    runs = ranks(compress_in_every_way)
    assert runs == [runs[0]] * ranks.world, "the ranks have different gradients"
    for way, told in zip(WAYS, runs[0], strict=True):
        for seen in told:
            for iteration, found in enumerate(seen):
                mean = degenerate(iteration).flatten() * (ranks.world + 1) / 2
                assert_projected(torch.tensor(found), mean, iteration, f"iteration {iteration}, {way}: {found}")


def assert_projected(left, mean, iteration, what):
    """``left`` is what an orthonormal projection leaves of ``mean``: to the iteration 2 all, and never nothing."""
    whole = mean.norm()
    assert left.isfinite().all(), what
    if iteration < 2:
        assert (left - mean).norm() <= 1e-2 * whole, what
    assert left.norm() <= 1.02 * whole, f"{what} is longer than the gradient"
    assert abs(torch.dot(left, mean - left)) <= 3e-2 * whole**2, f"{what}: what is lost is not upright on the rest"
    assert iteration in (3, 4) or left.norm() > 0.5 * whole, f"{what} has lost too much"


@check("COMM-025", "COMM-026", worlds=(1,))
def test_the_state_of_low_rank_compression_has_the_documented_defaults(ranks):
    assert ranks(defaults) == [
        {
            "matrix_approximation_rank": 1, "start_powerSGD_iter": 1000, "min_compression_rate": 2,
            "use_error_feedback": True, "warm_start": True, "orthogonalization_epsilon": 0,
            "compression_stats_logging_frequency": 10000, "batch_tensors_with_same_shape": False, "iter": 0,
        }
    ]  # fmt: skip


def defaults(ctx):
    state = ctx.subject.powerSGD_hook.PowerSGDState(ctx.group)
    return {name: getattr(state, name) for name in (
        "matrix_approximation_rank", "start_powerSGD_iter", "min_compression_rate", "use_error_feedback", "warm_start",
        "orthogonalization_epsilon", "compression_stats_logging_frequency", "batch_tensors_with_same_shape", "iter",
    )}  # fmt: skip


# -- COMM-004, COMM-005: annotations that are text, as a module of annotations not yet evaluated has them


def another_bucket(state, bucket: "dist.GradBuckets") -> "Future[Tensor]":  # noqa: F821
    return bucket


def another_result(state, bucket: "GradBucket") -> "Future[list[Tensor]]":  # noqa: F821
    return bucket


def full_names(state: "Unknown", bucket: "torch.distributed.GradBucket") -> "Future[Tensor]":  # noqa: F821
    return bucket


def one_and_the_rest(state: int, *rest: int):
    return rest


def annotate_as_text(ctx):
    told = [
        caught(ddp(ctx, models.scalar()).register_comm_hook, None, hook)
        for hook in (another_bucket, another_result, one_and_the_rest, full_names)
    ]
    builtin = caught(private(ddp(ctx, models.scalar()), "_register_builtin_comm_hook"), "ALLREDUCE")
    return told, builtin


@check("COMM-004", "COMM-005", worlds=(1,))
def test_annotations_that_are_text_and_name_something_else_are_refused_and_so_is_a_built_in_hook_by_name(ranks):
    (((*refused, of_the_rest, of_full_names), builtin),) = ranks(annotate_as_text)
    assert_refused(refused, ValueError)
    assert of_full_names is None
    if of_the_rest is not None:
        assert of_the_rest.is_a(KeyError), of_the_rest
        ranks.at_limit("parameters are known by their names")
    assert_refused([builtin], TypeError)


# -- COMM-016: a bucket of which a hook may ask what is documented, and nothing else


class Documented:
    """A bucket of one matrix and one vector, with the documented methods only."""

    def __init__(self, rank, iteration):
        shapes = [(8, 8), (3,)]
        flat = torch.cat([of_rank_one(), torch.tensor([2.0, 4.0, 1.0])]) * (1 + rank + iteration)
        self._parameters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
        self.set_buffer(flat)

    def index(self):
        return 0

    def is_last(self):
        return True

    def buffer(self):
        return self._flat

    def set_buffer(self, buffer):
        self._flat = buffer

    def gradients(self):
        parts = self._flat.split([parameter.numel() for parameter in self._parameters])
        return [part.view_as(parameter) for part, parameter in zip(parts, self._parameters, strict=True)]

    def parameters(self):
        return list(self._parameters)


def of_rank_one():
    return torch.outer(torch.arange(1.0, 9.0), torch.tensor([1.0, 2.0] * 4)).flatten()


def ask_what_is_documented(ctx):
    """By hook, in each of some iterations: by which part of the largest number the result is off."""
    library, low_rank = ctx.subject.default_hooks, ctx.subject.powerSGD_hook
    local, told = ctx.subject.post_localSGD_hook, {}
    options = {"start_powerSGD_iter": 2, "min_compression_rate": 1}
    for name, (state, hook) in {
        "all-reduce": (ctx.group, library.allreduce_hook),
        "half": (ctx.group, library.fp16_compress_hook),
        "around": (ctx.group, library.fp16_compress_wrapper(library.allreduce_hook)),
        "low rank": (low_rank.PowerSGDState(ctx.group, 1, **options), low_rank.powerSGD_hook),
        "in the end local": (local.PostLocalSGDState(ctx.group, ctx.group, 2), local.post_localSGD_hook),
    }.items():
        told[name] = []
        for iteration in range(4):
            found = hook(state, Documented(ctx.rank, iteration)).wait()
            mean = Documented((ctx.world - 1) / 2, iteration).buffer()
            told[name].append(((found - mean).abs().max() / mean.abs().max()).item())
    return told


@check("COMM-016", worlds=(1, 2, 3), beyond=False)
def test_hooks_of_the_library_ask_of_a_bucket_what_is_documented_and_nothing_else(ranks):
    for rank, told in enumerate(ranks(ask_what_is_documented)):
        for name, missed in told.items():
            allowed = 1e-3 if name in ("half", "around") else 1e-5
            assert max(missed) <= allowed, f"rank {rank}, {name}: off by {missed} of the largest number"


# -- COMM-001: whatever tensor a hook answers with, in whatever mode of the buckets


MODES = ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"bucket_cap_mb": 25})


def answer_anew(ctx):
    """A hook whose future holds new tensors: of the bucket's shape, or of another one of as many elements."""
    seen = []
    for options, shape in itertools.product(MODES, ((-1,), (1, -1))):

        def hook(_state, bucket, shape=shape):
            future = torch.futures.Future()
            future.set_result((bucket.buffer() * 2).view(shape))
            return future

        model = hooked(ctx, None, hook, **options)
        for iteration in range(3):
            model.zero_grad(set_to_none=iteration < 2)
            model(models.divisible(ctx.rank, iteration)).sum().backward()
            seen.append([p.grad.flatten().tolist() for p in model.parameters()])
    return seen


@check("COMM-001", worlds=(1, 2, 3), beyond=False)
def test_a_hook_may_answer_with_tensors_of_its_own_in_every_mode_of_the_buckets(ranks):
    model = models.Sum()
    for rank, seen in enumerate(ranks(answer_anew)):
        for place, found in enumerate(seen):
            model.zero_grad()
            model(models.divisible(rank, place % 3)).sum().backward()
            right = [parameter.grad.mul(2).flatten().tolist() for parameter in model.parameters()]
            assert found == right, f"rank {rank}, {MODES[place // 6]}, iteration {place % 3}"


# -- COMM-020, COMM-021, COMM-029: complex gradients, of which a cast to real numbers would lose a part


class Turning(nn.Module):
    """Two complex parameters; the gradient of an element is its place, from 1 on, times ``x + 2j x``."""

    def __init__(self, kind=torch.complex64):
        super().__init__()
        self.each = nn.ParameterList([nn.Parameter(torch.ones(3, dtype=kind)) for _ in range(2)])

    def forward(self, x):
        ramp = torch.arange(1.0, 4.0)
        return torch.stack([(x.sum() * ramp * (each.real + 2 * each.imag)).sum().double() for each in self.each]).sum()


def in_two_bytes(ctx):
    hooks = ctx.subject.default_hooks

    def by_hand(group, bucket):
        narrow = bucket.buffer().to(torch.float16)
        work = dist.all_reduce(narrow, group=group, async_op=True)
        return work.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]).div_(ctx.world))

    return {
        "float16": hooks.fp16_compress_hook,
        "bfloat16": lambda group, bucket: hooks.bf16_compress_hook(group, bucket),  # wherever it is registered
        "wrapped": hooks.fp16_compress_wrapper(hooks.allreduce_hook),
        "by hand": by_hand,
    }


def in_one_byte(ctx):
    hooks = ctx.subject.quantization_hooks
    return {"one scale": hooks.quantization_pertensor_hook, "channels": hooks.quantization_perchannel_hook}


def compress_complex(ctx, make):
    told = {}
    for (name, hook), kind in itertools.product(make(ctx).items(), (torch.complex64, torch.complex128)):
        model = hooked(ctx, ctx.group, hook, Turning(kind))
        for times in (1, 2):
            model.zero_grad()
            model(mine(ctx, times)).sum().backward()
            told[name, str(kind), times] = [each.grad.tolist() for each in model.module.each]
    return told


def complex_means(world, times):
    mean = mean_of_all(world, times)
    return [[complex(place * mean, 2 * place * mean) for place in (1, 2, 3)]] * 2


@check("COMM-020", "COMM-021", "COMM-016", worlds=(1, 2, 3), beyond=False)
def test_compression_keeps_both_parts_of_complex_gradients(ranks):
    for told in ranks(compress_complex, in_two_bytes):
        for (hook, kind, times), found in told.items():
            assert found == complex_means(ranks.world, times), f"{hook}, {kind}"


@check("COMM-029", worlds=(1, 2, 3), deadline_s=PATIENCE_S, beyond=False)
def test_hooks_of_eight_bits_keep_both_parts_of_complex_gradients(ranks):
    for told in ranks(compress_complex, in_one_byte):
        for (hook, kind, times), found in told.items():
            right = torch.tensor(complex_means(ranks.world, times))
            furthest = 2 * 6 * 12 * ranks.world * times / 255
            assert (torch.tensor(found) - right).abs().max() <= furthest, f"{hook}, {kind}: {found}"


def one_by_one(ctx):
    """Hooks that average the parameters' gradients one after the other, in several buffers."""

    def each(group, bucket):
        for gradient in bucket.gradients():
            mean = gradient / ctx.world
            dist.all_reduce(mean, group=group)
            gradient.copy_(mean)
        return done(bucket.buffer())

    def in_its_own(group, bucket):
        bucket.set_buffer(bucket.buffer().clone())
        return each(group, bucket)

    wrapper = ctx.subject.default_hooks.fp16_compress_wrapper
    return {"in the bucket's": each, "in its own": in_its_own, "in one half as wide": wrapper(each)}


@check("COMM-016", worlds=MANY, beyond=False)
def test_complex_gradients_of_a_bucket_may_be_averaged_one_by_one(ranks):
    for told in ranks(compress_complex, one_by_one):
        for (hook, kind, times), found in told.items():
            assert found == complex_means(ranks.world, times), f"{hook}, {kind}"
