"""The hooks on real ranks, on buckets made by hand: what each makes of every rank's gradients."""

from __future__ import annotations

import functools
import pickle
import time

import pytest
import torch
import torch.distributed as dist

from impl.ddp import DistributedDataParallel
from impl.ddp.buckets import GradBucket
from impl.ddp.hooks import default_hooks, optimizer_overlap_hooks, post_localSGD_hook, quantization_hooks
from impl.ddp.hooks import powerSGD_hook as powersgd
from impl.tests.tracing import tracing

from .comm_hook_ranks import run_on_ranks

pytestmark = pytest.mark.slow


def bucket_of(gradients, *, group=None, divisor=None, index=0, last=True):
    """A bucket of our own class that holds these gradients."""
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    views, offset = [], 0
    for gradient in gradients:
        views.append(flat[offset : offset + gradient.numel()].view(gradient.shape))
        offset += gradient.numel()
    group = group or dist.group.WORLD
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    names = [f"{index}.{place}" for place in range(len(parameters))]
    return GradBucket(index, last, flat, views, parameters, names, group, divisor or dist.get_world_size(group))


def random(rank, *shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1000 * seed + rank), dtype=dtype)


def mean_of(world, make):
    return sum(make(rank) for rank in range(world)) / world


# -- plain and compressed all-reduce


def reduce_flat(rank, world, hook_name, value, dtype):
    bucket = bucket_of([torch.full((3,), value * (rank + 1), dtype=dtype)])
    buffer = bucket.buffer()
    result = getattr(default_hooks, hook_name)(None, bucket).wait()
    return result.tolist(), result.dtype, result is buffer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("hook", ["allreduce_hook", "fp16_compress_hook", "bf16_compress_hook"])
def test_the_mean_comes_back_in_the_buffer_itself_and_in_its_dtype(hook, dtype):
    assert run_on_ranks(reduce_flat, 4, hook, 1.0, dtype) == [([2.5] * 3, dtype, True)] * 4  # exact: a power of two


def test_large_gradients_do_not_overflow_in_half_precision():
    results = run_on_ranks(reduce_flat, 3, "fp16_compress_hook", 20000.0, torch.float32)
    assert all(abs(result[0][0] - 40000) <= 32 for result in results)


def subgroup_mean(rank, world):
    pair = dist.new_group([1, 2])
    if rank == 0:
        return None
    by_default = default_hooks.allreduce_hook(None, bucket_of([torch.full((2,), float(rank))], group=pair)).wait()
    asked = bucket_of([torch.full((2,), float(rank))], group=pair, divisor=1)
    return by_default.tolist(), default_hooks.allreduce_hook(pair, asked).wait().tolist()


def test_no_state_means_the_group_of_the_ddp_and_its_divisor_counts():
    assert run_on_ranks(subgroup_mean, 3)[1:] == [([1.5, 1.5], [3.0, 3.0])] * 2


def outsider(rank, world):
    pair = dist.new_group([0, 1])
    try:
        default_hooks.allreduce_hook(pair, bucket_of([torch.zeros(1)]))
    except ValueError as error:
        return str(error)
    return ""


def test_a_group_without_this_process_is_refused_instead_of_reducing_nothing():
    assert "not a member" in run_on_ranks(outsider, 3)[2]


def reduce_sparse(rank, world):
    gradient = torch.sparse_coo_tensor([[rank, 2]], [[1.0, 2.0], [3.0, 3.0]], (4, 2))
    results = []
    for hook in (
        default_hooks.allreduce_hook,
        default_hooks.fp16_compress_hook,
        quantization_hooks.quantization_pertensor_hook,
    ):
        table = torch.nn.Parameter(torch.zeros(4, 2))
        bucket = GradBucket(0, True, gradient, [gradient], [table], ["table"], dist.group.WORLD, 2)
        result = hook(None, bucket).wait()
        results.append((result.is_sparse, result.dtype, result.to_dense().tolist()))
    return results


def test_sparse_gradients_are_averaged_and_stay_sparse():
    expected = (True, torch.float32, [[0.5, 1], [0.5, 1], [3, 3], [0, 0]])
    assert run_on_ranks(reduce_sparse, 2) == [[expected] * 3] * 2


def wrapped_bits(rank, world):
    gradients = [random(rank, 40, 7), random(rank, 9)]
    direct = default_hooks.fp16_compress_hook(None, bucket_of(gradients)).wait()
    wrapper = default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
    wrapped = wrapper(None, bucket_of(gradients)).wait()
    state = powersgd.PowerSGDState(None, start_powerSGD_iter=0, use_error_feedback=False, warm_start=False)
    low = default_hooks.fp16_compress_wrapper(powersgd.powerSGD_hook)(state, bucket_of(gradients)).wait()
    return torch.equal(direct, wrapped), wrapped.dtype, low


def test_wrapping_gives_the_bits_of_the_compression_hook_and_works_around_powersgd():
    results = run_on_ranks(wrapped_bits, 3)
    assert all(same and dtype == torch.float32 for same, dtype, _ in results)
    biases = mean_of(3, lambda rank: random(rank, 9))
    assert torch.allclose(results[0][2][-9:], biases, atol=2e-3)
    assert all(torch.equal(results[0][2], low) for _, _, low in results)


# -- PowerSGD


def gradients_of(rank, iteration, dtype=torch.float32):
    return [
        random(rank, 12, 10, seed=iteration, dtype=dtype),
        random(rank, 10, seed=50 + iteration, dtype=dtype),
        random(rank, 8, 3, 5, seed=70 + iteration, dtype=dtype),
        random(rank, 12, 10, seed=90 + iteration, dtype=dtype),
    ]


def train_powersgd(rank, world, hook_name, iterations, options, dtype=torch.float32):
    state = powersgd.PowerSGDState(None, **options)
    results = []
    for iteration in range(iterations):
        gradients = gradients_of(rank, iteration, dtype)
        first = bucket_of(gradients[:2], index=0, last=False)
        second = bucket_of(gradients[2:], index=1, last=True)
        with tracing() as labels:
            futures = [getattr(powersgd, hook_name)(state, bucket) for bucket in (first, second)]
        results.append(torch.cat([future.wait() for future in futures]))
    return results, state.iter, state.compression_stats(), labels


def flat_mean(world, iteration):
    return mean_of(world, lambda rank: torch.cat([g.reshape(-1) for g in gradients_of(rank, iteration)]))


@pytest.mark.parametrize("hook", ["powerSGD_hook", "batched_powerSGD_hook"])
@pytest.mark.parametrize(
    "options",
    [
        {"start_powerSGD_iter": 2},
        {"start_powerSGD_iter": 2, "matrix_approximation_rank": 3, "batch_tensors_with_same_shape": True},
        {"start_powerSGD_iter": 2, "use_error_feedback": False, "orthogonalization_epsilon": 1e-8},
    ],
)
def test_plain_mean_before_the_start_and_equal_bits_on_all_ranks_after_it(hook, options):
    world = 3
    results = run_on_ranks(train_powersgd, world, hook, 4, {"min_compression_rate": 1, **options})
    for iteration in range(4):
        average = flat_mean(world, iteration)
        mine = results[0][0][iteration]
        assert all(torch.equal(mine, other[0][iteration]) for other in results)
        assert torch.allclose(mine, average, atol=1e-5) == (iteration < 2)
        if hook == "powerSGD_hook":
            assert torch.allclose(mine[120:130], average[120:130], atol=1e-6)  # the bias is never compressed
    assert results[0][1] == 4
    rate, before, after = results[0][2]
    assert before == 2 * mine.numel()
    assert after < before
    assert rate == before / after
    assert [label.split(" bucket")[0][9:] for label in results[0][3]] == ["PowerSGD P", "PowerSGD Q and rest"] * 2


def feed_constant(rank, world, options, iterations, low_rank):
    state = powersgd.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1, **options)
    matrix = random(rank, 12, 10)
    if low_rank:
        matrix = torch.outer(random(0, 12), random(0, 10)) * (rank + 1)
    total = torch.zeros_like(matrix)
    for _ in range(iterations):
        total += powersgd.powerSGD_hook(state, bucket_of([matrix])).wait().view(12, 10)
    return total / iterations, matrix


def test_a_rank_one_matrix_is_reproduced():
    results = run_on_ranks(feed_constant, 3, {}, 5, True)
    average = sum(matrix for _, matrix in results) / 3
    assert torch.allclose(results[0][0], average, rtol=1e-4, atol=1e-5)


def test_with_error_feedback_what_is_lost_arrives_later():
    """The mean over many iterations comes as near to the true mean as one over the number of iterations; else never."""
    gaps = {}
    for feedback in (True, False):
        results = run_on_ranks(feed_constant, 2, {"use_error_feedback": feedback}, 200, False)
        average = sum(matrix for _, matrix in results) / 2
        gaps[feedback] = ((results[0][0] - average).norm() / average.norm()).item()
    assert gaps[True] < 0.1 < 0.5 < gaps[False]


def zero_then_live(rank, world):
    state = powersgd.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1, use_error_feedback=False)
    matrix = torch.outer(random(0, 12), random(0, 10))
    buckets = [bucket_of([matrix * scale]) for scale in (0, 0, 0, 0, 1, 1)]
    outcomes = [powersgd.powerSGD_hook(state, bucket).wait().view(12, 10) for bucket in buckets]
    return torch.isfinite(torch.stack(outcomes)).all().item(), torch.allclose(outcomes[-1], matrix, atol=1e-5)


def test_a_gradient_of_zeros_neither_gives_nans_nor_silences_the_parameter_for_good():
    assert run_on_ranks(zero_then_live, 2) == [(True, True)] * 2


def shrinking(rank, world):
    state = powersgd.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
    for columns in (10, 10, 10, 14, 14):  # the bucket is laid out anew while the state remembers
        matrix = torch.outer(random(0, 12), random(0, columns))
        result = powersgd.powerSGD_hook(state, bucket_of([matrix])).wait().view(12, columns)
    return torch.allclose(result, matrix, atol=1e-4)


def test_memory_that_does_not_fit_a_rebuilt_bucket_is_dropped():
    assert run_on_ranks(shrinking, 2) == [True] * 2


def lay_out_anew(rank, world):
    state = powersgd.PowerSGDState(None, start_powerSGD_iter=2, use_error_feedback=False)
    eye, found = torch.eye(16), []
    for order in ([0, 1], [0, 1], [0, 1], [1, 0], [1, 0]):
        for index, place in enumerate(order):
            bucket = bucket_of([torch.outer(eye[place], eye[place])], index=index, last=index == 1)
            bucket._names = [f"weight {place}"]
            found.append(powersgd.powerSGD_hook(state, bucket).wait().view(16, 16)[place, place].item())
    return found


def save_what_is_lost(rank, world):
    """Of two weights in one bucket the loud one loses something; after a restart each has a bucket of its own."""
    state = powersgd.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
    loud, quiet = random(rank, 12, 10), torch.zeros(12, 10)
    for _ in range(3):
        bucket = bucket_of([loud, quiet])
        bucket._names = ["loud", "quiet"]
        sent = powersgd.powerSGD_hook(state, bucket).wait()[:120].view(12, 10)
    state, arrived = pickle.loads(pickle.dumps(state)), []
    for index, (name, shape) in enumerate([("quiet", (12, 10)), ("loud", (12, 10)), ("loud", (6, 5))]):
        bucket = bucket_of([torch.zeros(shape)], index=index, last=index == 2)
        bucket._names = [name]
        arrived.append(powersgd.powerSGD_hook(state, bucket).wait().abs().max().item())
    return arrived, sent.abs().max().item()


def test_errors_of_a_saved_state_arrive_at_their_parameters_and_at_no_others():
    for (quiet, loud, of_another_shape), sent in run_on_ranks(save_what_is_lost, 2):
        assert quiet == of_another_shape == 0
        assert loud > sent / 10


def test_factors_of_other_parameters_are_not_started_from():
    for found in run_on_ranks(lay_out_anew, 2):
        assert found == pytest.approx([1.0] * 10)


def compress_under_autocast(rank, world):
    """One rank is late, now the one and now the other: callbacks run on this thread or on the backend's."""
    state = powersgd.PowerSGDState(None, start_powerSGD_iter=2)
    matrix, found = torch.outer(random(0, 32), random(0, 32, seed=1)), []
    for iteration in range(8):
        time.sleep(0.02 * (iteration % world == rank))
        with torch.autocast("cpu"):
            found.append(powersgd.powerSGD_hook(state, bucket_of([matrix])).wait().view_as(matrix))
    return ((torch.stack(found) - matrix).abs().max() / matrix.abs().max()).item()


def test_a_backward_under_autocast_is_compressed_in_full_precision_whoever_is_late():
    assert max(run_on_ranks(compress_under_autocast, 2)) < 1e-5


# -- post-local SGD


def train_locally(rank, world, average_locally):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    state = post_localSGD_hook.PostLocalSGDState(None, pairs[rank // 2], 2, average_locally)
    values = []
    for _ in range(4):
        for index in range(2):
            bucket = bucket_of([torch.full((2,), float(rank + index))], index=index, last=index == 1)
            values.append(post_localSGD_hook.post_localSGD_hook(state, bucket).wait()[0].item())
    return values


@pytest.mark.parametrize("average_locally", [True, False])
def test_global_mean_before_the_start_and_local_after_it(average_locally):
    for rank, values in enumerate(run_on_ranks(train_locally, 4, average_locally)):
        local = (rank // 2) * 2 + 0.5 if average_locally else rank
        assert values == [1.5, 2.5] * 2 + [local, local + 1] * 2


def train_on_the_machine(rank, world):
    team = dist.new_group([1, 2])
    if rank == 0:
        return None
    state = post_localSGD_hook.PostLocalSGDState(team, None, 0)
    result = post_localSGD_hook.post_localSGD_hook(state, bucket_of([torch.full((1,), float(rank))], group=team)).wait()
    return result.item(), dist.get_process_group_ranks(state.subgroup)


def test_without_a_subgroup_the_members_on_this_machine_average():
    assert run_on_ranks(train_on_the_machine, 3)[1:] == [(1.5, [1, 2])] * 2


# -- 8-bit


def quantise(rank, world, hook_name, size, divisor):
    buffer = random(rank, size)
    result = getattr(quantization_hooks, hook_name)(None, bucket_of([buffer], divisor=divisor)).wait()
    return result, buffer


@pytest.mark.parametrize("hook", ["quantization_pertensor_hook", "quantization_perchannel_hook"])
@pytest.mark.parametrize("size", [1, 512, 1300])
@pytest.mark.parametrize("divisor", [None, 2])
def test_the_eight_bit_mean_is_off_by_less_than_a_step_and_equal_everywhere(hook, size, divisor):
    results = run_on_ranks(quantise, 3, hook, size, divisor)
    exact = sum(buffer for _, buffer in results) / (divisor or 3)
    step = max((b.max().clamp(min=0) - b.min().clamp(max=0)).item() for _, b in results) / 255
    assert (results[0][0] - exact).abs().max().item() <= 0.51 * step * 3 / (divisor or 3)
    assert all(torch.equal(results[0][0], result) for result, _ in results)


def test_channels_are_finer_than_one_scale_for_all():
    """A bucket whose parts differ a thousandfold in size."""
    gaps = {}
    for hook in ("quantization_pertensor_hook", "quantization_perchannel_hook"):
        gaps[hook] = max(run_on_ranks(quantise_uneven, 2, hook))
    assert gaps["quantization_perchannel_hook"] * 100 < gaps["quantization_pertensor_hook"]


def quantise_uneven(rank, world, hook_name):
    buffer = torch.cat([random(rank, 512) / 1000, random(rank, 512, seed=1)])
    result = getattr(quantization_hooks, hook_name)(None, bucket_of([buffer])).wait()
    return (result[:512] - mean_of(world, lambda r: random(r, 512) / 1000)).abs().max().item()


# -- inside a join context, under our own DDP


def train_unevenly(rank, world, hook_name, by_initial):
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(12, 10), torch.nn.Linear(10, 8)), bucket_cap_mb=1e-4
    )
    hooks = {
        "allreduce": (None, default_hooks.allreduce_hook),
        "fp16": (None, default_hooks.fp16_compress_hook),
        "8 bit": (None, quantization_hooks.quantization_perchannel_hook),
        "powersgd": (powersgd.PowerSGDState(None, 1, 3, min_compression_rate=1), powersgd.powerSGD_hook),
        "local": (post_localSGD_hook.PostLocalSGDState(None, None, 100), post_localSGD_hook.post_localSGD_hook),
    }
    if hook_name:
        model.register_comm_hook(*hooks[hook_name])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = []
    with model.join(divide_by_initial_world_size=by_initial):
        for iteration in range(3 + 2 * rank):
            optimizer.zero_grad()
            model(random(rank, 6, 12, seed=iteration)).square().sum().backward()
            seen.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
            optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]), seen


@functools.cache
def trained_without_hook(by_initial):
    return run_on_ranks(train_unevenly, 3, None, by_initial)


@pytest.mark.parametrize("by_initial", [True, False])
@pytest.mark.parametrize(
    ("hook", "tolerance"), [("allreduce", 0), ("fp16", 3e-2), ("8 bit", 3e-2), ("local", 0), ("powersgd", None)]
)
def test_hooks_in_a_join_context_use_its_divisor_and_end_with_equal_replicas(hook, tolerance, by_initial):
    plain, hooked = trained_without_hook(by_initial), run_on_ranks(train_unevenly, 3, hook, by_initial)
    assert all(torch.equal(hooked[0][0], final) for final, _ in hooked)
    assert torch.isfinite(hooked[0][0]).all()
    if tolerance is not None:
        for (_, with_hook), (_, without) in zip(hooked, plain, strict=True):
            for ours, right in zip(with_hook, without, strict=True):
                assert (ours - right).abs().max() <= tolerance * right.abs().max()


# -- one rule for everybody


def average_two_bytes(rank, _world):
    """A gradient of 4096 random numbers in bfloat16, averaged in every way that there is."""

    def plain(model):
        pass

    def hook(name):
        return lambda model: model.register_comm_hook(None, getattr(default_hooks, name))

    def wrapped(model):
        bfloat16_wrapper = default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook)
        model.register_comm_hook(None, lambda state, bucket: bfloat16_wrapper(state, bucket))

    def compressed(model):
        model.register_comm_hook(None, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket))

    def one_by_one(model):
        model._register_accum_grad_hook()

    found = {}
    for prepare in (plain, hook("allreduce_hook"), wrapped, compressed, one_by_one):
        layer = torch.nn.Linear(4096, 1, bias=False, dtype=torch.bfloat16)
        model = DistributedDataParallel(layer)
        prepare(model)
        model(random(rank, 1, 4096).bfloat16()).sum().backward()
        found[prepare.__qualname__] = layer.weight.grad.clone()
    expected = found[plain.__qualname__]
    return {name: int((gradient != expected).sum()) for name, gradient in found.items()}


def test_in_two_bytes_every_way_to_average_gives_the_same_bits():
    for different in run_on_ranks(average_two_bytes, 3):
        assert len(different) == 5
        assert set(different.values()) == {0}, different


# -- sparse gradients, and results that are not in one piece


class Stepping:
    """A functional optimizer with learning rate 1, which leaves it to the hook that nothing is recorded."""

    def step_param(self, parameter, gradient):
        parameter.sub_(gradient.to_dense() if gradient.is_sparse else gradient)


def in_columns(_state, bucket):
    """The average, every second element of a larger tensor."""
    buffer = bucket.buffer()
    dist.all_reduce(buffer)
    future = torch.futures.Future()
    future.set_result(torch.stack([buffer / dist.get_world_size(), buffer], dim=1)[:, 0])
    return future


def step_in_the_hook(rank, world, hook, made, inputs):
    layer = made()
    torch.nn.init.zeros_(layer.weight)
    model = DistributedDataParallel(layer)
    state = optimizer_overlap_hooks._OptimizerHookState(Stepping())
    model.register_comm_hook(None, optimizer_overlap_hooks._hook_then_optimizer(hook, state))
    loss = model(inputs[rank]).sum()
    time.sleep(0.05 * rank)  # so that on rank 0 the step runs on the backend's thread, on rank 1 perhaps on this one
    loss.backward()
    gradient = layer.weight.grad
    return layer.weight.flatten().tolist(), (gradient.to_dense() if gradient.is_sparse else gradient).flatten().tolist()


def test_an_optimizer_in_the_hook_steps_a_sparse_table():
    table = functools.partial(torch.nn.Embedding, 3, 1, sparse=True)
    rows = [torch.tensor([rank, 2]) for rank in range(2)]
    results = run_on_ranks(step_in_the_hook, 2, default_hooks.allreduce_hook, table, rows)
    assert results == [([-0.5, -0.5, -1.0], [0.5, 0.5, 1.0])] * 2


@pytest.mark.parametrize("hook", [in_columns, default_hooks.allreduce_hook], ids=["not in one piece", "in place"])
def test_an_optimizer_in_the_hook_steps_with_the_hooks_result(hook):
    inputs = [torch.tensor([[1.0, 3.0]]) * (rank + 1) for rank in range(2)]
    layer = functools.partial(torch.nn.Linear, 2, 1, bias=False)
    results = run_on_ranks(step_in_the_hook, 2, hook, layer, inputs)
    assert results == [([-1.5, -4.5], [1.5, 4.5])] * 2


COMPRESSING = {
    "cast": default_hooks.fp16_compress_hook,
    "wrapped": default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
    "8 bits": quantization_hooks.quantization_pertensor_hook,
}


class LookUp(torch.autograd.Function):
    """An embedding of complex numbers with a sparse gradient, which torch's own does not have."""

    @staticmethod
    def forward(ctx, weight, rows):
        ctx.rows, ctx.shape = rows, weight.shape
        return weight[rows]

    @staticmethod
    def backward(ctx, gradient):
        return torch.sparse_coo_tensor(ctx.rows.unsqueeze(0), gradient, ctx.shape), None


class ComplexTable(torch.nn.Embedding):
    def forward(self, rows):
        return LookUp.apply(self.weight, rows)


def look_up_complex(rank, world, hook):
    table = ComplexTable(3, 1, sparse=True, dtype=torch.complex64)
    model = DistributedDataParallel(table)
    if hook is not None:
        model.register_comm_hook(None, COMPRESSING[hook])
    (model(torch.tensor([rank, 2])) * (1 + 2j)).imag.sum().backward()
    return table.weight.grad.is_sparse, table.weight.grad.to_dense().flatten().tolist()


@pytest.mark.parametrize("hook", [None, *COMPRESSING])
def test_sparse_complex_gradients_keep_what_is_imaginary(hook):
    assert run_on_ranks(look_up_complex, 2, hook) == [(True, [1 + 0.5j, 1 + 0.5j, 2 + 1j])] * 2


class Looked(torch.nn.Sequential):
    """A sparse table before a layer that PowerSGD compresses."""

    def __init__(self):
        super().__init__(torch.nn.Embedding(6, 12, sparse=True), torch.nn.Linear(12, 8))
        for seed, parameter in enumerate(self.parameters()):
            parameter.data.copy_(random(0, *parameter.shape, seed=seed))


def low_rank():
    return powersgd.PowerSGDState(None, start_powerSGD_iter=2)


PLAIN = default_hooks.allreduce_hook, lambda: None
STARTING_LATER = {
    "PowerSGD": (powersgd.powerSGD_hook, low_rank),
    "of the whole bucket": (powersgd.batched_powerSGD_hook, low_rank),
    "in half precision": (default_hooks.fp16_compress_wrapper(powersgd.powerSGD_hook), low_rank),
    "by machine": (post_localSGD_hook.post_localSGD_hook, lambda: post_localSGD_hook.PostLocalSGDState(None, None, 2)),
}


def look_up_past_the_start(rank, hook, state_of, options):
    """The gradients of five iterations, in which more and more rows are looked up."""
    model, told = DistributedDataParallel(Looked(), **options), []
    model.register_comm_hook(state_of(), hook)
    for iteration in range(5):
        model.zero_grad()
        model(torch.tensor([(rank + 2 * place) % 6 for place in range(1 + iteration)])).sum().backward()
        told.append([parameter.grad for parameter in model.parameters()])
    return told


def look_up_by_each(rank, world, options):
    """Whether the table's gradients are sparse and averages, and the iterations in which others are approximated."""
    right = look_up_past_the_start(rank, *PLAIN, options)
    seen = {}
    for name, how in STARTING_LATER.items():
        pairs = list(zip(right, look_up_past_the_start(rank, *how, options), strict=True))
        averaged = [
            found.is_sparse and torch.allclose(found.to_dense(), mean.to_dense(), rtol=1e-3)
            for (mean, *_), (found, *_) in pairs
        ]
        lossy = [place for place, ((_, mean, _), (_, found, _)) in enumerate(pairs) if not torch.equal(mean, found)]
        seen[name] = all(averaged), lossy
    return seen


@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 1e-6}])
def test_sparse_gradients_are_averages_also_past_the_start_of_a_hook(options):
    low = True, [2, 3, 4]
    expected = {"PowerSGD": low, "of the whole bucket": low, "in half precision": (True, [0, 1, 2, 3, 4])}
    assert run_on_ranks(look_up_by_each, 2, options) == [{**expected, "by machine": (True, [])}] * 2
