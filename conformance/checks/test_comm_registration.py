"""What may be registered as a communication hook, how often, when, and under which name."""

import functools
import threading
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import TINY_MIB, Stepping, alone, done, gap, hooked, step, steps, summing
from conformance.fixtures.training import ddp, logging_data, private
from conformance.ranks import Caught, caught

LATE_S = 0.05
FutureTensor = torch.futures.Future[torch.Tensor]
NAMES = (
    "ALLREDUCE", "FP16_COMPRESS", "BF16_COMPRESS", "QUANTIZE_PER_TENSOR", "QUANTIZE_PER_CHANNEL", "POWER_SGD",
    "POWER_SGD_RANK2", "BATCHED_POWER_SGD", "BATCHED_POWER_SGD_RANK2", "NOOP",
)  # fmt: skip


def local(_state, bucket):
    return done(bucket.buffer())


def annotated(bucket=None, result=None):
    """A local hook with these annotations."""

    def hook(state, bucket):
        return local(state, bucket)

    given = {"bucket": bucket, "return": result}
    hook.__annotations__ = {name: annotation for name, annotation in given.items() if annotation is not None}
    return hook


def refusal(ctx, hook):
    """What registering ``hook`` raises; None if it is accepted."""
    return caught(ddp(ctx, models.Sum()).register_comm_hook, None, hook)


# -- COMM-003 to COMM-006: refusals


def register_what_cannot_be_called(ctx):
    told = []
    for wrong in (3, None, "allreduce_hook", done(torch.zeros(1))):
        model = ddp(ctx, models.Sum())
        error = caught(model.register_comm_hook, None, wrong)
        told.append((error, logging_data(model).get("has_error", 0)))
    return told


@check("COMM-003", worlds=(1, 2))
def test_what_cannot_be_called_is_refused_with_type_error(ranks):
    for told in ranks(register_what_cannot_be_called):
        assert all(error is not None and error.is_a(TypeError) for error, _ in told), told
        assert [logged for _, logged in told] == [1] * len(told), "the log knows of no error"


def register_bucket_annotations(ctx):
    wrong = [refusal(ctx, annotated(bucket=kind)) for kind in (int, torch.Tensor, list[torch.Tensor], Any)]
    right = [refusal(ctx, annotated(bucket=kind)) for kind in (None, ctx.subject.GradBucket)]
    postponed = refusal(ctx, annotated("dist.GradBucket", "FutureTensor"))
    return wrong, right, postponed


@check("COMM-004", worlds=(1,))
def test_an_annotated_bucket_must_be_a_grad_bucket(ranks):
    wrong, right, postponed = ranks(register_bucket_annotations)[0]
    assert all(error is not None and error.is_a(ValueError) for error in wrong), wrong
    assert right == [None, None]
    if postponed is not None:
        assert postponed.is_a(ValueError), postponed
        ranks.at_limit("annotations of a hook are not evaluated where its module postpones that")


def register_return_annotations(ctx):
    others = (int, torch.Tensor, torch.futures.Future[list[torch.Tensor]], torch.futures.Future[int])
    wrong = [refusal(ctx, annotated(result=kind)) for kind in others]
    right = [
        refusal(ctx, annotated(result=FutureTensor)),
        refusal(ctx, annotated(ctx.subject.GradBucket, FutureTensor)),
        refusal(ctx, annotated()),
    ]
    return wrong, right


@check("COMM-005", worlds=(1,))
def test_an_annotated_result_must_be_a_future_of_a_tensor(ranks):
    wrong, right = ranks(register_return_annotations)[0]
    assert all(error is not None and error.is_a(ValueError) for error in wrong), wrong
    assert right == [None] * 3


def _supports_bfloat16():
    if (torch.version.cuda or torch.version.hip) and torch.distributed.is_nccl_available():
        return torch.cuda.nccl.version() >= (2, 10)
    return torch.xpu.is_available() and torch.distributed.is_xccl_available()


def register_bfloat16_hooks(ctx):
    def bf16_compress_hook(state, bucket):
        return local(state, bucket)

    library = ctx.subject.default_hooks
    hooks = [library.bf16_compress_hook, library.bf16_compress_wrapper(local), bf16_compress_hook]
    return [refusal(ctx, hook) for hook in hooks], _supports_bfloat16()


@check("COMM-006", worlds=(1,))
def test_bfloat16_hooks_are_known_by_name_and_refused_where_they_cannot_work(ranks):
    errors, supported = ranks(register_bfloat16_hooks)[0]
    if supported:
        assert errors == [None] * 3
    else:
        assert all(error is not None and error.is_a(TypeError) for error in errors), errors
        told = [error.text.lower().replace("bfloat16", "bf16") for error in errors]
        assert all("bf16" in text for text in told), f"the error does not say what cannot be reduced: {told}"


# -- COMM-007, COMM-008: how often and when


def register_twice(ctx, first, second):
    model = ddp(ctx, models.Sum(), bucket_cap_mb=TINY_MIB)

    def register(kind, hook):
        if kind == "python":
            model.register_comm_hook(None, hook)
        else:
            private(model, "_register_builtin_comm_hook")(ctx.subject.BuiltinCommHookType.ALLREDUCE)

    register(first, summing)
    error = caught(register, second, local)
    return error, steps(ctx, model)


@check(
    "COMM-007",
    worlds=(1, 2, 4),
    scenarios={
        "twice Python": ("python", "python"),
        "Python, then built-in": ("python", "built-in"),
        "built-in, then Python": ("built-in", "python"),
        "twice built-in": ("built-in", "built-in"),
    },
)
def test_a_second_registration_is_refused_and_the_first_stays(ranks, scenario):
    divisor = 1 if scenario[0] == "python" else ranks.world
    expected = alone(range(ranks.world), divisor=divisor)
    for error, seen in ranks(register_twice, *scenario):
        assert error is not None, "the second registration was accepted"
        assert error.is_a(RuntimeError), str(error)
        assert seen == expected


def register_late(ctx):
    model = ddp(ctx, models.Sum(), bucket_cap_mb=TINY_MIB)
    before = step(model, models.divisible(ctx.rank, 0))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        error = caught(model.register_comm_hook, None, summing)
    return before, error, len(told), None if error else steps(ctx, model)


@check("COMM-008")
def test_a_hook_registered_after_an_iteration_raises_or_holds_from_the_next_one_on(ranks):
    averages, sums = alone(range(ranks.world), count=1)[0], alone(range(ranks.world), divisor=1)
    for before, error, _warnings, after in ranks(register_late):
        if ranks.world in (1, 2, 4):  # thirds are not exact
            assert before == averages
        assert error is not None or after == sums


# -- COMM-009, COMM-010: hooks that differ only in form


def register_and_use(ctx, form):
    hook = FORMS[form]()
    try:
        model = hooked(ctx, None, hook)
    except (KeyError, AttributeError) as error:
        return Caught((type(error).__name__,), str(error))
    return steps(ctx, model)


class _Object:
    def __call__(self, state, bucket):
        return summing(state, bucket)

    def method(self, state, bucket):
        return summing(state, bucket)


def _with_any_number():
    return lambda *given, **_options: summing(*given)


def _with_other_names():
    return lambda memory, gradients: summing(memory, gradients)


FORMS = {
    "other names": _with_other_names,
    "any number": _with_any_number,
    "partial": lambda: functools.partial(summing),
    "object": _Object,
    "method": lambda: _Object().method,
}


def _judge_form(ranks, form, limit):
    expected = alone(range(ranks.world), divisor=1)
    for told in ranks(register_and_use, form):
        if isinstance(told, Caught):
            assert told.kinds == (limit,), str(told)
            ranks.at_limit(f"a hook in the form {form!r} is refused with {limit}")
        else:
            assert told == expected


@check("COMM-009", worlds=(1, 2))
def test_the_bucket_parameter_may_have_any_name(ranks):
    for form in ("other names", "any number"):
        _judge_form(ranks, form, "KeyError")


@check("COMM-010", worlds=(1, 2), scenarios={"partial": "partial", "object": "object", "method": "method"})
def test_callables_that_are_no_plain_functions_work_as_hooks(ranks, scenario):
    _judge_form(ranks, scenario, "AttributeError")


def take_two_with_one(ctx):
    """What registering a hook raises that takes one argument, and one that takes three."""
    told = []
    for wrong in (lambda _state: done(torch.zeros(1)), lambda _state, bucket, _more: local(None, bucket)):
        model = ddp(ctx, models.Sum())
        told.append(caught(model.register_comm_hook, None, wrong))
    return told


@check("COMM-009", worlds=(1, 2))
def test_a_hook_that_does_not_take_two_arguments_is_refused_at_once_or_fails_later(ranks):
    for told in ranks(take_two_with_one):
        for error in told:
            if error is None:
                ranks.at_limit("a hook that does not take two arguments fails in the first backward")
            elif not error.is_a(TypeError):
                assert error.is_a(KeyError), error
                ranks.at_limit("parameters are known by their names")


def serve_torchs_ddp(ctx):
    """Averages of torch's own wrapper by the library's hooks, whose state is None; or what is raised there."""
    told = []
    for hook in (ctx.subject.default_hooks.allreduce_hook, ctx.subject.default_hooks.fp16_compress_hook):
        model = nn.parallel.DistributedDataParallel(models.Sum(), bucket_cap_mb=TINY_MIB)
        error = caught(model.register_comm_hook, None, hook)
        told.append(error or steps(ctx, model))
    return told


@check("COMM-019", "COMM-024", worlds=(1, 2), backends=("gloo",))
def test_hooks_of_the_library_serve_torchs_wrapper_too(ranks):
    for told in ranks(serve_torchs_ddp):
        for seen in told:
            if isinstance(seen, Caught):
                ranks.at_limit("hooks take buckets of their own kind only")
            else:
                assert gap(seen, alone(range(ranks.world))) <= 1e-3


def hook_without_signature(ctx):
    """A built-in function as the hook, which does not tell what it takes: it hands out results that were prepared."""
    model = ddp(ctx, models.scalar())
    results = [done(torch.full((1,), 3.0 + n)) for n in range(2)]
    error = caught(model.register_comm_hook, iter(results), next)
    return error or [step(model, torch.ones(1, 1)) for _ in results]


@check("COMM-010", worlds=(1, 2))
def test_a_hook_without_a_signature_works_or_is_refused(ranks):
    for told in ranks(hook_without_signature):
        if isinstance(told, Caught):
            assert told.is_a(ValueError), told
            ranks.at_limit("a hook that does not tell what it takes is refused")
        else:
            assert told == [{"weight": [3.0]}, {"weight": [4.0]}]


class _Calling:
    """Calls a hook of the library, and has no name of its own."""

    def __init__(self, hook):
        self.hook = hook

    def __call__(self, state, bucket):
        return self.hook(state, bucket)


def register_partials(ctx):
    """Partials of hooks that are judged by what they are: bfloat16, wrong annotations, one that fits."""
    library = ctx.subject.default_hooks
    bfloat16 = [library.bf16_compress_hook, library.bf16_compress_wrapper(local)]
    special = [*map(functools.partial, bfloat16), functools.partial(functools.partial(bfloat16[0]))]
    wrong = [functools.partial(annotated(bucket=int)), functools.partial(annotated(result=torch.Tensor))]
    seen = []
    for form in (functools.partial(library.fp16_compress_hook), _Calling(library.fp16_compress_hook).__call__):
        model = ddp(ctx, models.Sum(), bucket_cap_mb=TINY_MIB)
        error = caught(model.register_comm_hook, ctx.group, form)
        seen.append(error or (steps(ctx, model), hooked(ctx, ctx.group, library.fp16_compress_hook)))
        seen[-1] = error or (seen[-1][0], steps(ctx, seen[-1][1]))
    return [refusal(ctx, hook) for hook in special], [refusal(ctx, hook) for hook in wrong], seen, _supports_bfloat16()


@check("COMM-010", "COMM-006", worlds=(1, 2))
def test_a_partial_of_a_special_hook_is_judged_as_that_hook_or_refused_for_its_form(ranks):
    for special, wrong, seen, supported in ranks(register_partials):
        nameless = [error for error in (*special, *wrong, *seen) if isinstance(error, Caught)]
        if any(error.kinds[0] == "AttributeError" for error in nameless):
            ranks.at_limit("partials are refused with AttributeError")
        for error in special:
            kind = error.kinds[0] if error is not None else ""
            assert kind in ("" if supported else "TypeError", "AttributeError"), error
        for error in wrong:
            assert error is not None, "annotations of a partial's function are not looked at"
            assert error.kinds[0] in ("ValueError", "AttributeError")
        for each in seen:
            if isinstance(each, Caught):
                assert each.kinds[0] == "AttributeError", str(each)
            else:
                assert each[0] == each[1], "a partial of a hook is another hook"


# -- COMM-011: the name in the log


def read_names(ctx):
    def logged(register):
        model = ddp(ctx, models.Sum())
        register(model)
        step(model, models.divisible(ctx.rank, 0))
        return logging_data(model).get("comm_hook")

    def nested(state, bucket):
        return local(state, bucket)

    kinds = ctx.subject.BuiltinCommHookType
    library = ctx.subject.default_hooks
    return {
        nested.__qualname__: logged(lambda model: model.register_comm_hook(None, nested)),
        "local": logged(lambda model: model.register_comm_hook(None, local)),
        "allreduce_hook": logged(lambda model: model.register_comm_hook(ctx.group, library.allreduce_hook)),
        **{
            f"BuiltinCommHookType.{name}": logged(
                lambda model, name=name: private(model, "_register_builtin_comm_hook")(getattr(kinds, name))
            )
            for name in ("ALLREDUCE", "FP16_COMPRESS")
        },
    }


@check("COMM-011", worlds=(1, 2))
def test_the_logging_data_names_the_hook(ranks):
    for named in ranks(read_names):
        assert named == {expected: expected for expected in named}
        assert len(named) == 5


# -- COMM-023: by enumeration


class _Recorder:
    """Takes a registration like a DDP."""

    def register_comm_hook(self, state, hook):
        self.state, self.hook = state, hook


def register_by_name(ctx):
    told = {}
    kinds = ctx.subject.DDPCommHookType
    for kind in kinds:
        for how in ("function", "value"):
            recorder = _Recorder()
            if how == "function":
                ctx.subject.register_ddp_comm_hook(kind, recorder, ctx.group)
            else:
                kind.value(model=recorder, state=ctx.group)
            state = recorder.state
            wrapped = isinstance(state, ctx.subject.powerSGD_hook.PowerSGDState)
            group = state.process_group if wrapped else state
            settings = (state.matrix_approximation_rank, state.start_powerSGD_iter) if wrapped else None
            told[kind.name, how] = (recorder.hook.__name__, wrapped, settings, group is ctx.group)
    return told


@check("COMM-023", worlds=(1, 2))
def test_ten_hooks_can_be_registered_by_name_and_get_the_group(ranks):
    expected = {
        "ALLREDUCE": ("allreduce_hook", False, None),
        "FP16_COMPRESS": ("fp16_compress_hook", False, None),
        "BF16_COMPRESS": ("bf16_compress_hook", False, None),
        "QUANTIZE_PER_TENSOR": ("quantization_pertensor_hook", False, None),
        "QUANTIZE_PER_CHANNEL": ("quantization_perchannel_hook", False, None),
        "POWER_SGD": ("powerSGD_hook", True, (1, 1000)),
        "POWER_SGD_RANK2": ("powerSGD_hook", True, (2, 1000)),
        "BATCHED_POWER_SGD": ("batched_powerSGD_hook", True, (1, 1000)),
        "BATCHED_POWER_SGD_RANK2": ("batched_powerSGD_hook", True, (2, 1000)),
        "NOOP": ("noop_hook", False, None),
    }
    for told in ranks(register_by_name):
        assert told == {(name, how): (*expected[name], True) for name in NAMES for how in ("function", "value")}


def register_by_no_name(ctx):
    """What registering by something that names no hook raises; then one is registered by its name."""
    kinds, told = ctx.subject.DDPCommHookType, []
    for wrong in ("ALLREDUCE", None, 1):
        model = ddp(ctx, models.Sum(), bucket_cap_mb=TINY_MIB)
        told.append(caught(ctx.subject.register_ddp_comm_hook, wrong, model))
        ctx.subject.register_ddp_comm_hook(kinds.ALLREDUCE, model)
    return told, steps(ctx, model)


@check("COMM-023", worlds=(1, 2))
def test_what_names_no_hook_is_refused_and_leaves_the_place_for_one_that_does(ranks):
    for told, seen in ranks(register_by_no_name):
        for error in told:
            assert error is not None
            if not error.is_a(TypeError):
                assert error.is_a(AttributeError), error
                ranks.at_limit("what names no hook is not told apart")
        assert gap(seen, alone(range(ranks.world))) <= 1e-6


EXACT = ("ALLREDUCE", "POWER_SGD", "POWER_SGD_RANK2", "BATCHED_POWER_SGD", "BATCHED_POWER_SGD_RANK2")


def train_by_name(ctx, with_group, name):
    model = ddp(ctx, models.Sum(), bucket_cap_mb=TINY_MIB)
    state = ctx.group if with_group else None
    ctx.subject.register_ddp_comm_hook(ctx.subject.DDPCommHookType[name], model, state)
    return steps(ctx, model)


@check("COMM-023", scenarios={name: name for name in (*EXACT, "FP16_COMPRESS", "NOOP")})
def test_hooks_registered_by_name_train_with_and_without_a_group(ranks, scenario):
    for _, told in ranks.each(train_by_name, (True, False), scenario):
        for rank, seen in enumerate(told):
            expected = alone([rank]) if scenario == "NOOP" else alone(range(ranks.world))
            assert gap(seen, expected) <= (1e-3 if scenario == "FP16_COMPRESS" else 1e-6)


# -- COMM-030: an optimizer in the hook


def hold_optimizers(ctx):
    holder = private(ctx.subject.optimizer_overlap_hooks, "_OptimizerHookState")
    wrong = (torch.optim.SGD([torch.zeros(1)], lr=0.1), object(), torch.optim.SGD)
    return [caught(holder, each) for each in wrong], caught(holder, Stepping())


@check("COMM-030", worlds=(1,))
def test_an_optimizer_that_cannot_step_one_parameter_is_refused(ranks):
    wrong, right = ranks(hold_optimizers)[0]
    assert all(error is not None and error.is_a(ValueError) for error in wrong), wrong
    assert right is None


def averaging_elsewhere(group, bucket):
    """A hook whose averages are in another tensor than the bucket."""
    averages = bucket.buffer().double()
    dist.all_reduce(averages, group=group)
    return done((averages / dist.get_world_size(group)).to(bucket.buffer().dtype))


def averaging_late(group, bucket):
    """A hook whose future another thread completes, which knows nothing of the backward."""
    averages, future = bucket.buffer(), torch.futures.Future()
    dist.all_reduce(averages, group=group)
    threading.Timer(LATE_S, future.set_result, [averages.div_(dist.get_world_size(group))]).start()
    return future


class Plainly:
    """Steps single parameters, as the program does that calls it in backward: no graph is recorded there."""

    def step_param(self, parameter, gradient):
        parameter.add_(gradient, alpha=-0.5)


def train_with_optimizer_in_hook(ctx, how):
    library = ctx.subject.optimizer_overlap_hooks
    state = private(library, "_OptimizerHookState")(Plainly() if how == "late" else Stepping())
    inner = {"": ctx.subject.default_hooks.allreduce_hook, "late": averaging_late}.get(how, averaging_elsewhere)
    if how == "compressed elsewhere":
        inner = ctx.subject.default_hooks.fp16_compress_wrapper(inner)
    model = hooked(ctx, ctx.group, private(library, "_hook_then_optimizer")(inner, state))
    found = steps(ctx, model)
    return [parameter.detach().flatten().tolist() for parameter in model.parameters()], found


def stepped_alone(world):
    expected = [parameter.detach().flatten() for parameter in models.Sum().parameters()]
    for averages in alone(range(world)):
        for parameter, average in zip(expected, averages.values(), strict=True):
            parameter -= 0.5 * torch.tensor(average)
    return [values.tolist() for values in expected]


@check("COMM-030", worlds=(1, 2, 4))
def test_an_optimizer_in_the_hook_steps_with_the_averaged_gradients(ranks):
    for mine, _ in ranks(train_with_optimizer_in_hook, ""):
        assert mine == stepped_alone(ranks.world)


@check("COMM-001", worlds=MANY)
def test_an_optimizer_in_the_hook_steps_with_what_the_hooks_future_holds(ranks):
    for how, told in ranks.each(train_with_optimizer_in_hook, ("elsewhere", "compressed elsewhere")):
        for rank, (mine, found) in enumerate(told):
            assert found == alone(range(ranks.world)), f"gradients of rank {rank}, averaged {how}"
            assert mine == stepped_alone(ranks.world), f"weights of rank {rank}, averaged {how}"


@check("COMM-030", worlds=(1, 2))
def test_an_optimizer_in_the_hook_records_no_graph_on_whatever_thread_the_average_is_there(ranks):
    for mine, _ in ranks(train_with_optimizer_in_hook, "late"):
        assert mine == stepped_alone(ranks.world)


def step_some(ctx, places):
    library, model = ctx.subject.optimizer_overlap_hooks, models.Sum(3)
    chosen = [parameter for place, parameter in enumerate(model.parameters()) if place in places]
    state = private(library, "_OptimizerHookState")(Stepping(), chosen)
    hook = private(library, "_hook_then_optimizer")(ctx.subject.default_hooks.allreduce_hook, state)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    steps(ctx, hooked(ctx, ctx.group, hook, model))
    return [place for place, pair in enumerate(zip(before, model.parameters(), strict=True)) if not torch.equal(*pair)]


def step_each(ctx, several):
    return [step_some(ctx, places) for places in several]


@check("COMM-030", worlds=(1, 2))
def test_an_optimizer_in_the_hook_steps_the_parameters_that_it_was_given(ranks):
    several = [[1, 2, 3], []]
    assert ranks(step_each, several) == [several] * ranks.world
