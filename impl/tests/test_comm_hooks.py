"""The hooks' parts that need no other rank: what may be registered, plans, linear algebra, quantisation, states."""

from __future__ import annotations

import functools
import logging
import math
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from impl.ddp.buckets import GradBucket
from impl.ddp.hooks import (
    BuiltinCommHookType,
    DDPCommHookType,
    builtin_hook,
    check_comm_hook,
    default_hooks,
    hook_name,
    optimizer_overlap_hooks,
    quantization_hooks,
    register_ddp_comm_hook,
)
from impl.ddp.hooks import powerSGD_hook as powersgd
from impl.ddp.hooks.powersgd_plan import CompressionPlan, MatrixGroup, orthogonalize, plan_layers, plan_square, split

FutureTensor = torch.futures.Future[torch.Tensor]


def _annotate(function, bucket=None, result=None):
    function.__annotations__ = {
        key: value for key, value in {"bucket": bucket, "return": result}.items() if value is not None
    }
    return function


def _fresh():
    def hook(state, bucket):
        raise AssertionError("only looked at")

    return hook


# -- validation


@pytest.mark.parametrize("bucket", [dist.GradBucket, GradBucket, "dist.GradBucket", "Unknown.GradBucket", None])
@pytest.mark.parametrize("result", [FutureTensor, "torch.futures.Future[torch.Tensor]", "Unknown.Future[Tensor]", None])
def test_honest_annotations_pass_as_objects_and_as_text(bucket, result):
    check_comm_hook(_annotate(_fresh(), bucket, result))


@pytest.mark.parametrize("bucket", [int, "int", torch.Tensor, Any, "Nowhere.Bucket"])
def test_another_bucket_annotation_is_refused(bucket):
    with pytest.raises(ValueError, match="GradBucket"):
        check_comm_hook(_annotate(_fresh(), bucket=bucket))


@pytest.mark.parametrize(
    "result",
    [int, "int", torch.Tensor, torch.futures.Future, torch.futures.Future[list[torch.Tensor]], "Nowhere.Thing"],
)
def test_another_return_annotation_is_refused(result):
    with pytest.raises(ValueError, match="return annotation"):
        check_comm_hook(_annotate(_fresh(), result=result))


def test_the_second_parameter_counts_whatever_its_name():
    def hook(memory, b: int):
        raise AssertionError

    with pytest.raises(ValueError, match="'b'"):
        check_comm_hook(hook)
    check_comm_hook(lambda memory, b: None)
    check_comm_hook(lambda *both: None)


@pytest.mark.parametrize("hook", [lambda: None, lambda one: None, lambda a, b, c: None, lambda *, state, bucket: None])
def test_a_hook_that_does_not_take_two_positional_arguments_is_refused(hook):
    with pytest.raises(TypeError, match="two positional arguments"):
        check_comm_hook(hook)


@pytest.mark.parametrize("hook", [None, 3, "allreduce_hook"])
def test_what_cannot_be_called_is_refused(hook):
    with pytest.raises(TypeError, match="must be callable"):
        check_comm_hook(hook)


class _CallableHook:
    def __call__(self, state, bucket):
        raise AssertionError

    def method(self, state, bucket):
        raise AssertionError


def test_partials_objects_and_methods_are_as_good_as_functions():
    def three(extra, state, bucket):
        raise AssertionError

    for hook in (functools.partial(three, 1), _CallableHook(), _CallableHook().method):
        check_comm_hook(hook)
    assert hook_name(functools.partial(three, 1)).endswith("three")
    assert hook_name(_CallableHook()) == "_CallableHook"
    assert hook_name(_CallableHook().method) == "_CallableHook.method"


@pytest.mark.skipif(torch.version.cuda is not None or torch.version.hip is not None, reason="bfloat16 works here")
def test_bfloat16_hooks_are_refused_by_name_without_an_accelerator():
    def bf16_compress_hook(state, bucket):
        raise AssertionError

    wrapped = default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook)
    for hook in (default_hooks.bf16_compress_hook, wrapped, bf16_compress_hook, functools.partial(bf16_compress_hook)):
        with pytest.raises(TypeError, match=r"NCCL 2\.10"):
            check_comm_hook(hook)


def test_errors_go_through_the_callers_reporter():
    heard = []

    def report(kind, text):
        heard.append((kind, text))
        raise kind(text)

    with pytest.raises(TypeError):
        check_comm_hook(3, report)
    assert heard[0][0] is TypeError


def test_all_hooks_of_the_library_pass_the_validation():
    for member in DDPCommHookType:
        if not member.name.startswith("BF16"):
            check_comm_hook(member.value.keywords["comm_hook"])
    check_comm_hook(default_hooks.fp16_compress_wrapper(powersgd.powerSGD_hook))


# -- registration by name


class _Recorder:
    def register_comm_hook(self, state, hook):
        self.state, self.hook = state, hook


def test_every_member_registers_its_hook_with_the_given_state():
    group = object()
    for member in DDPCommHookType:
        model = _Recorder()
        register_ddp_comm_hook(member, model, group)
        if "POWER_SGD" in member.name:
            assert isinstance(model.state, powersgd.PowerSGDState)
            assert model.state.process_group is group
            assert model.state.matrix_approximation_rank == (2 if "RANK2" in member.name else 1)
            assert model.hook.__name__ == ("batched_powerSGD_hook" if "BATCHED" in member.name else "powerSGD_hook")
        else:
            assert model.state is group
    assert len(DDPCommHookType) == 10


def test_built_in_types_are_known_by_name_whoever_made_them():
    assert builtin_hook(BuiltinCommHookType.FP16_COMPRESS)[1] is default_hooks.fp16_compress_hook
    assert builtin_hook(dist.BuiltinCommHookType.ALLREDUCE)[0] is BuiltinCommHookType.ALLREDUCE
    assert str(BuiltinCommHookType.ALLREDUCE) == "BuiltinCommHookType.ALLREDUCE"
    for wrong in (1, "ALLREDUCE", DDPCommHookType.ALLREDUCE):
        with pytest.raises(TypeError, match=r"BuiltinCommHookType\.ALLREDUCE"):
            builtin_hook(wrong)


# -- PowerSGD: plans and linear algebra

shapes = st.lists(st.lists(st.integers(1, 12), min_size=0, max_size=4).map(tuple), min_size=1, max_size=8).map(tuple)


@given(shapes, st.integers(1, 4), st.sampled_from([0.5, 1, 2]), st.booleans())
def test_a_plan_covers_every_gradient_once_and_compresses_only_what_shrinks_enough(shapes, rank, rate, batch):
    plan = plan_layers(shapes, rank, rate, batch)
    assert plan.numel_before == sum(math.prod(shape) for shape in shapes)
    for group in plan.groups:
        numel = group.rows * group.columns
        assert (group.rows + group.columns) * group.rank * rate < numel
        for member in group.members:
            assert math.prod(shapes[member]) == numel
            assert len(shapes[member]) > 1
    if not batch:
        assert all(len(group.members) == 1 for group in plan.groups)


@given(st.integers(1, 5000), st.integers(1, 4))
def test_the_square_just_holds_the_bucket(numel, rank):
    (group,) = plan_square(numel, rank).groups
    assert (group.rows - 1) ** 2 < numel <= group.rows**2
    assert group.rows == group.columns


def test_a_plan_that_misses_a_gradient_cannot_be_made():
    with pytest.raises(ValueError, match="exactly once"):
        CompressionPlan((MatrixGroup((1,), 2, 2, 1),), (3,), 4, 4)


def test_split_views_lie_one_behind_the_other():
    flat = torch.arange(10.0)
    first, second = split(flat, [(2, 3), (3,)])
    assert first.tolist() == [[0, 1, 2], [3, 4, 5]]
    second.zero_()
    assert flat.tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 0, 9]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", ["random", "zero", "dependent", "one row zero"])
def test_columns_become_orthonormal_even_where_they_depend_on_each_other(dtype, rank, kind):
    generator = torch.Generator().manual_seed(rank)
    matrices = torch.randn(3, 7, rank, generator=generator, dtype=dtype)
    if kind == "zero":
        matrices.zero_()
    elif kind == "dependent":
        matrices.copy_(matrices[:, :, :1].expand_as(matrices) * torch.arange(1, rank + 1))
    elif kind == "one row zero":
        matrices[:, 0] = 0
    orthogonalize(matrices)
    gram = torch.bmm(matrices.transpose(1, 2), matrices)
    assert torch.allclose(gram, torch.eye(rank, dtype=dtype).expand_as(gram), atol=1e-5)


def test_orthogonalizing_keeps_the_span():
    matrices = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    before = matrices.clone()
    orthogonalize(matrices)
    projected = torch.bmm(matrices, torch.bmm(matrices.transpose(1, 2), before))
    assert torch.allclose(projected, before)


@pytest.mark.parametrize("start", [-1, 0, 1])
@pytest.mark.parametrize("options", [{}, {"use_error_feedback": False}, {"warm_start": False}])
def test_compression_may_not_start_before_iteration_2_with_a_memory(start, options):
    with pytest.raises(ValueError, match="start_powerSGD_iter"):
        powersgd.PowerSGDState(None, start_powerSGD_iter=start, **options)


def test_compression_without_a_memory_may_start_at_once():
    state = powersgd.PowerSGDState(None, start_powerSGD_iter=0, use_error_feedback=False, warm_start=False)
    assert state.start_powerSGD_iter == 0
    assert powersgd.PowerSGDState(None, start_powerSGD_iter=2).iter == 0


def test_a_saved_state_keeps_all_but_the_group_and_says_so(caplog):
    state = powersgd.PowerSGDState(None, 3, 5, random_seed=7)
    state.process_group = object()  # unpicklable stand-in: not touched by the pickle
    state.error_dict[0] = torch.arange(3.0)
    state.rng.random()
    with caplog.at_level(logging.WARNING):
        copy = pickle.loads(pickle.dumps(state))
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert copy.process_group is None  # there is no default group in this process
    assert copy.matrix_approximation_rank == 3
    assert torch.equal(copy.error_dict[0], state.error_dict[0])
    assert copy.rng.random() == state.rng.random()


# -- 8-bit


@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=70),
    st.integers(1, 80),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_a_quantised_value_is_off_by_at_most_half_a_step_and_zero_is_exact(values, channel, dtype):
    buffer = torch.tensor([*values, 0.0], dtype=dtype)
    layout = quantization_hooks._Layout(buffer.numel(), channel, dtype)
    message = quantization_hooks._encode(buffer, layout)
    assert message.numel() == layout.total_bytes
    assert message.numel() % 8 == 0
    decoded = quantization_hooks._decode(message, layout).flatten()[: buffer.numel()]
    for start in range(0, buffer.numel(), channel):
        part = buffer[start : start + channel]
        step = (part.amax().clamp(min=0) - part.amin().clamp(max=0)).item() / 255
        assert (decoded[start : start + channel] - part).abs().max().item() <= 0.5001 * step + 1e-30
    assert torch.equal(decoded[buffer == 0], buffer[buffer == 0])


@pytest.mark.parametrize("damage", [math.inf, -math.inf, math.nan])
def test_a_damaged_gradient_is_not_made_to_look_sound(damage):
    buffer = torch.tensor([1.0, damage, -2.0])
    layout = quantization_hooks._Layout(3, 3, torch.float32)
    decoded = quantization_hooks._decode(quantization_hooks._encode(buffer, layout), layout)
    assert not torch.isfinite(decoded).any()


# -- optimizer in the hook


class _Stepper:
    def __init__(self):
        self.seen = []

    def step_param(self, parameter, gradient):
        self.seen.append((parameter, gradient.clone()))


def test_an_optimizer_that_cannot_step_one_parameter_is_refused():
    for wrong in (torch.optim.SGD([torch.zeros(1)], lr=0.1), object()):
        with pytest.raises(ValueError, match="step_param"):
            optimizer_overlap_hooks._OptimizerHookState(wrong)
    assert optimizer_overlap_hooks._OptimizerHookState(_Stepper()).params_to_optimize is None


@pytest.mark.parametrize("in_place", [True, False])
def test_wanted_parameters_are_stepped_with_the_result_of_the_hook(in_place):
    parameters = [torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Parameter(torch.zeros(3))]
    flat = torch.arange(7.0)
    views = [flat[:4].view(2, 2), flat[4:]]
    bucket = GradBucket(0, True, flat, views, parameters, ["one", "other"], None, 1)

    def doubling(state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer().mul_(2) if in_place else bucket.buffer() * 2)
        return future

    stepper = _Stepper()
    state = optimizer_overlap_hooks._OptimizerHookState(stepper, params=[parameters[1]])
    result = optimizer_overlap_hooks._hook_then_optimizer(doubling, state)(None, bucket).wait()
    assert result.tolist() == [0, 2, 4, 6, 8, 10, 12]
    ((parameter, gradient),) = stepper.seen
    assert parameter is parameters[1]
    assert gradient.tolist() == [8, 10, 12]
