"""Replicas at the start: made equal to group rank 0's, refused where they are different models, and kept the same."""

import inspect
import re
import warnings
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.observing import takes
from conformance.fixtures.training import ddp, gradient, private, whole
from conformance.ranks import Caught, caught
from conformance.subjects import Unsupported


class Mixed(nn.Module):
    """Parameters, one of them frozen, and a buffer of each kind, all of one value."""

    def __init__(self, value):
        super().__init__()
        self.line = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(()))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("number", torch.zeros(3))
        self.register_buffer("whole", torch.zeros((2, 2), dtype=torch.int64))
        self.register_buffer("flag", torch.zeros(2, dtype=torch.bool))
        self.register_buffer("passing", torch.zeros(2, dtype=torch.float64), persistent=False)
        with torch.no_grad():
            for tensor in [*self.parameters(), *self.buffers()]:
                tensor.fill_(value)


def values(module):
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: sorted(set(whole(tensor).flatten().tolist())) for name, tensor in named}


def wrap_differently_seeded(ctx, members):
    group = dist.new_group(members)
    if ctx.rank not in members:
        return None
    module = Mixed(ctx.rank)
    before = {name: id(tensor) for name, tensor in module.named_parameters()}
    model = ddp(ctx, module, process_group=group)
    return values(model.module), before == {name: id(tensor) for name, tensor in module.named_parameters()}


@check("DDP-025", worlds=MANY)
def test_parameters_and_buffers_of_every_kind_start_equal_to_rank_0(ranks):
    for mine, same_objects in ranks(wrap_differently_seeded, list(range(ranks.world))):
        assert set(map(tuple, mine.values())) == {(0.0,)}, mine
        assert len(mine) == 8
        assert same_objects, "parameters must keep their identity: optimizers may already hold them"


@check("DDP-025", worlds=(3, 4))
def test_in_a_subgroup_replicas_start_equal_to_the_groups_first_rank(ranks):
    members = list(range(1, ranks.world))
    for mine, _ in ranks(wrap_differently_seeded, members)[1:]:
        assert mine.pop("flag") == [True]
        assert set(map(tuple, mine.values())) == {(1.0,)}, mine


def wrap_without_sync(ctx):
    if "init_sync" not in inspect.signature(ctx.subject.DistributedDataParallel.__init__).parameters:
        raise Unsupported("this version has no init_sync")
    model = ddp(ctx, models.scalar(ctx.rank + 1.0), init_sync=False)
    start = model.module.weight.item()
    model(12 * models.place(ctx.rank, 0)).sum().backward()
    return start, gradient(model.module.weight)


@check("DDP-026", worlds=MANY, beyond=False)
def test_without_initial_sync_each_rank_keeps_its_own_weights_and_gradients_are_averaged(ranks):
    mean = 12 * sum(range(1, ranks.world + 1)) / ranks.world
    assert ranks(wrap_without_sync) == [(rank + 1.0, mean) for rank in range(ranks.world)]


def wrap_different_models_without_sync(ctx):
    """What is sent, and what becomes of models that differ in everything; then they all train one that is alike."""
    if "init_sync" not in inspect.signature(ctx.subject.DistributedDataParallel.__init__).parameters:
        raise Unsupported("this version has no init_sync")
    before = len(ctx.trace())
    held, errors = [], []
    for build in (wider_by_rank, with_bias_on_0, frozen_bias_beyond_0, channels_last_beyond_0, double_beyond_0, Mixed):
        model = build(ctx.rank)
        own = [tensor.clone() for tensor in (*model.parameters(), *model.buffers())]
        errors.append(caught(ddp, ctx, model, init_sync=False, bucket_cap_mb=1.0 + ctx.rank))
        now = [*model.parameters(), *model.buffers()]
        held.append(len(own) == len(now) and all(map(torch.equal, own, now)))
    return len(ctx.trace()) - before, errors, held


@check("DDP-026", worlds=MANY)
def test_without_initial_sync_nothing_is_compared_or_sent_and_buffers_stay_as_they_are(ranks):
    for sent, errors, held in ranks(wrap_different_models_without_sync, trace=True):
        assert errors == [None] * 6, errors
        assert held == [True] * 6, "parameters or buffers have changed"
        assert sent == 0


def refused(ctx, build, late=False):
    """What wrapping this rank's own model raises, in a group whose waits end soon; its last layer may be delayed."""
    group, module, options = dist.new_group(list(range(ctx.world)), timeout=timedelta(seconds=2)), build(ctx.rank), {}
    if late:
        takes(ctx, "delay_all_reduce_named_params", "param_to_hook_all_reduce")
        options["delay_all_reduce_named_params"] = list(module[-1].named_parameters(prefix="1"))
        options["param_to_hook_all_reduce"] = module[0].weight
    error = caught(ddp, ctx, module, process_group=group, **options)
    ctx.meet("told")
    return error


def with_bias_on_0(rank):
    return nn.Linear(2, 1, bias=rank == 0)


def frozen_bias_beyond_0(rank):
    layer = nn.Linear(2, 1)
    layer.bias.requires_grad_(rank == 0)
    return layer


def wider_by_rank(rank):
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1 + rank))


def wider_on_last(rank):
    return nn.Linear(2, 3 if rank == dist.get_world_size() - 1 else 2)


def channels_last_beyond_0(rank):
    layer = nn.Conv2d(4, 4, 3)
    return layer if rank == 0 else layer.to(memory_format=torch.channels_last)


def registered_backwards_beyond_0(rank):
    names = ["a", "b"] if rank == 0 else ["b", "a"]
    return nn.ModuleDict({name: models.scalar() for name in names})


def double_beyond_0(rank):
    return nn.Linear(2, 2, dtype=torch.float32 if rank == 0 else torch.float64)


def is_refusal(error: Caught | None, *words: str) -> bool:
    return error is not None and error.is_a(RuntimeError) and all(word in error.text.lower() for word in words)


def names(error: Caught, *wanted: int) -> bool:
    """Whether an error has all of these numbers in it."""
    return set(wanted) <= {int(number) for number in re.findall(r"(?<![\d.])\d+(?![\d.]*\d)", error.text)}


def says_time_out(error):
    words = "timed out", "timeout", "connection closed", "reset by peer", "gloo/transport"
    return any(word in error.text.lower() for word in words)


@check("DDP-027", worlds=MANY)
def test_different_numbers_of_parameters_are_refused_on_every_rank(ranks):
    for error in ranks(refused, with_bias_on_0):
        assert is_refusal(error), error
        assert names(error, 0, 2, 1), f"the error does not name rank 0 and the counts 2 and 1: {error}"
        assert not says_time_out(error)


@check("DDP-027", worlds=MANY)
def test_what_is_trained_on_some_ranks_only_is_refused_on_every_rank(ranks):
    for error in ranks(refused, frozen_bias_beyond_0):
        assert is_refusal(error), error
        assert not says_time_out(error)


@check("DDP-028", worlds=MANY)
def test_a_differing_shape_is_refused_on_the_differing_ranks_with_its_place(ranks):
    for error in ranks(refused, wider_by_rank)[1:]:
        assert is_refusal(error), error
        assert names(error, 2), f"the second layer's weight is parameter 2: {error}"
        assert not says_time_out(error)
    last = ranks(refused, wider_on_last)[-1]
    assert is_refusal(last), last
    assert names(last, 0), f"the weight is parameter 0: {last}"


@check("DDP-029", worlds=MANY)
def test_a_differing_shape_is_refused_on_rank_0_too(ranks):
    error = ranks(refused, wider_by_rank)[0]
    assert is_refusal(error), error
    assert not says_time_out(error), f"rank 0 learned of it only by {error}"


@check("DDP-029", worlds=MANY)
def test_what_is_delayed_and_differs_in_its_shape_is_refused_on_every_rank(ranks):
    for error in ranks(refused, wider_by_rank, True):
        assert is_refusal(error), error
        assert not says_time_out(error), f"a rank learned of it only by {error}"


@check("DDP-029", worlds=MANY)
def test_a_differing_stride_is_refused_on_rank_0_too(ranks):
    error = ranks(refused, channels_last_beyond_0)[0]
    assert is_refusal(error), error
    assert not says_time_out(error), f"rank 0 learned of it only by {error}"


@check("DDP-030", worlds=MANY)
def test_differing_strides_are_refused_on_the_differing_ranks(ranks):
    for error in ranks(refused, channels_last_beyond_0)[1:]:
        assert is_refusal(error), error
        assert not says_time_out(error)


class Convolutions(nn.Module):
    """One convolution with a bias, and many of one shape without: in a bucket their weights are neighbours."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(2, 3, 2), *(nn.Conv2d(2, 3, 2, bias=False) for _ in range(9))])

    def forward(self, x):
        return torch.stack([(1 + place) * layer(x) for place, layer in enumerate(self.layers)])


def train_channels_last(ctx):
    told = []
    for view in (False, True):
        module = Convolutions().to(memory_format=torch.channels_last)
        model, weights = ddp(ctx, module, gradient_as_bucket_view=view), [layer.weight for layer in module.layers]
        for iteration in range(2):
            model.zero_grad()
            model(12 * models.integers(1, 2, 3, 3, seed=2 * ctx.rank + iteration)).sum().backward()
            alike = all(weight.grad.stride() == weight.stride() for weight in weights)
            told.append((alike, [whole(weight.grad).tolist() for weight in weights]))
    return told


@check("DDP-030", worlds=MANY, beyond=False)
def test_non_contiguous_parameters_get_gradients_of_their_own_strides(ranks):
    expected = []
    for iteration in range(2):
        module = Convolutions()
        for rank in range(ranks.world):
            module(12 * models.integers(1, 2, 3, 3, seed=2 * rank + iteration)).sum().backward()
        expected.append((True, [(layer.weight.grad / ranks.world).tolist() for layer in module.layers]))
    for rank, told in enumerate(ranks(train_channels_last)):
        assert told == expected * 2, f"rank {rank}"


@check("DDP-031", worlds=MANY)
def test_equal_shapes_in_another_order_are_refused(ranks):
    for error in ranks(refused, registered_backwards_beyond_0):
        assert is_refusal(error), f"passed validation: {error}"
        assert not says_time_out(error)


@check("DDP-032", worlds=MANY)
def test_differing_dtypes_are_refused(ranks):
    for error in ranks(refused, double_beyond_0):
        assert is_refusal(error), f"passed validation: {error}"
        assert not says_time_out(error)


DECIDING = "static_graph", "find_unused_parameters", "skip_all_reduce_unused_params", "forward_sync_buffers"


def wrap_with_an_option_that_differs(ctx, option):
    return caught(ddp, ctx, models.scalar(), **{option: ctx.rank == ctx.world - 1})


@check("DDP-020", worlds=MANY, beyond=False)
def test_options_that_decide_what_is_sent_are_refused_on_every_rank_where_they_differ(ranks):
    assert ranks.subject.PeerFailed  # torch's ranks wait for each other
    for option, told in ranks.each(wrap_with_an_option_that_differs, DECIDING):
        for rank, error in enumerate(told):
            assert error is not None, f"rank {rank}: {option} differs, and nothing was said"
            assert is_refusal(error), error


def evaluate_with_another_layer(ctx):
    """What is warned of where a layer is there while the model is evaluated, and where it stays for a training step."""
    model, told = ddp(ctx, nn.Sequential(models.scalar())), []
    for evaluated in (True, False):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            model.module.append(models.scalar())
            with torch.no_grad() if evaluated else nullcontext():
                output = model(12 * models.place(ctx.rank, 0)).sum()
        if evaluated:
            del model.module[1]
        else:
            output.backward()
        told.append([str(each.message) for each in heard])
    return told, whole(model.module[0].weight.grad).item()


@check("DDP-033", worlds=(1, 2, 3), beyond=False)
def test_a_layer_that_is_there_for_an_evaluation_alone_is_nothing_to_warn_of(ranks):
    mean = 12 * sum(range(1, ranks.world + 1)) / ranks.world
    for rank, ((evaluated, _), found) in enumerate(ranks(evaluate_with_another_layer)):
        assert evaluated == [], f"rank {rank}: {evaluated}"
        assert found == mean, f"rank {rank}"


def add_two_layers(ctx):
    """What is warned of in each of four iterations; a layer is added for the first and for the third one."""
    model, told = ddp(ctx, nn.Sequential(models.scalar())), []
    for iteration in range(4):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            if iteration % 2 == 0:
                model.module.append(models.scalar())
            model(12 * models.place(ctx.rank, 0)).sum().backward()
        told.append([str(each.message) for each in heard if "1.weight" in str(each.message)])
    return told


@check("DDP-033", worlds=(1, 2), beyond=False)
def test_parameters_added_later_are_told_of_once(ranks):
    assert ranks.subject.PeerFailed  # whoever warns of them; no document asks for it
    for rank, (first, *later) in enumerate(ranks(add_two_layers)):
        assert len(first) == 1, f"rank {rank}: {first}"
        assert later == [[]] * 3, f"rank {rank}: {later}"


def add_a_layer_later(ctx, adding):
    """Three iterations, so that buckets are rebuilt in between; who is not ``adding`` goes on with the old model."""
    model = ddp(ctx, nn.Sequential(models.scalar()))
    told = []

    def use():
        if ctx.rank in adding:
            model.module.append(models.scalar())
        for _ in range(3):
            model.zero_grad()
            model(12 * models.place(ctx.rank, 0)).sum().backward()
            told.append([None if p.grad is None else whole(p.grad).item() for p in model.parameters()])

    error = caught(use)
    ctx.meet("told")
    return error, told


@check("DDP-033", worlds=MANY, beyond=False)
def test_parameters_added_later_are_refused_or_stay_local_while_the_others_are_averaged(ranks):
    mean = 12 * sum(range(1, ranks.world + 1)) / ranks.world
    told = ranks(add_a_layer_later, range(ranks.world))
    if all(error is not None for error, _ in told):
        assert all(is_refusal(error, "param") for error, _ in told)
        return
    for rank, (error, seen) in enumerate(told):
        assert error is None
        assert seen in ([[mean, mean]] * 3, [[mean, 12.0 * (rank + 1)]] * 3), f"rank {rank}"
    if {new for _, seen in told for _, new in seen} != {mean}:
        ranks.at_limit("parameters registered after wrapping keep local gradients")


@check("DDP-033", worlds=MANY, beyond=False)
def test_parameters_added_on_one_rank_alone_stay_local_there_while_the_others_are_averaged(ranks):
    mean, last = 12 * sum(range(1, ranks.world + 1)) / ranks.world, ranks.world - 1
    for adding in (0, last):
        for rank, (error, seen) in enumerate(ranks(add_a_layer_later, [adding])):
            assert error is None, f"rank {rank}: {error}"
            assert seen == [[mean, 12.0 * (rank + 1)] if rank == adding else [mean]] * 3, f"rank {rank}"


def replace_a_parameter(ctx, bias, options):
    model = ddp(ctx, nn.Linear(1, 1, bias=bias), **options)
    model.module.weight = nn.Parameter(torch.ones(1, 1))

    def use():
        model(12 * models.place(ctx.rank, 0)).sum().backward()

    first = caught(use)
    held = None if model.module.weight.grad is None else whole(model.module.weight.grad).item()
    second = caught(use)
    ctx.meet("told")
    return first, held, second


def assert_noticed(ranks, bias, **options):
    mean = 12 * sum(range(1, ranks.world + 1)) / ranks.world
    told = ranks(replace_a_parameter, bias, options)
    if any(first is not None for first, _, _ in told):
        assert all(is_refusal(first, "param") for first, _, _ in told)
    elif all(held == mean for _, held, _ in told):
        assert [second for _, _, second in told] == [None] * ranks.world
    else:
        assert [held for _, held, _ in told] == [12.0 * (rank + 1) for rank in range(ranks.world)]
        for rank, (_, _, second) in enumerate(told):
            assert is_refusal(second, "param"), f"rank {rank} goes on with local gradients: {second}"
        ranks.at_limit("the new parameter's first gradient is local; the next forward raises")


@check("DDP-034", worlds=MANY, beyond=False)
def test_a_replaced_parameter_among_others_is_noticed_at_the_next_forward_at_the_latest(ranks):
    assert_noticed(ranks, bias=True)


@check("DDP-034", worlds=MANY, beyond=False)
def test_a_replaced_only_parameter_is_noticed_at_the_next_forward_at_the_latest(ranks):
    assert_noticed(ranks, bias=False)


@check("DDP-034", worlds=MANY, beyond=False, scenarios={"among others": True, "the only one": False})
def test_a_replaced_parameter_is_not_taken_for_an_unused_one(ranks, scenario):
    assert_noticed(ranks, bias=scenario, find_unused_parameters=True)


FINE = 1 + 2**-30  # no float32


class Row(nn.Embedding):
    """One row, which is looked up for each input: its sparse gradient is the sum of them."""

    def __init__(self):
        super().__init__(1, 1, sparse=True)

    def forward(self, x):
        return x * super().forward(torch.zeros(len(x), dtype=torch.int64, device=x.device))


class Halves(nn.Module):
    """Two layers beside each other, each in the dtype that it has; the gradient of the second may be sparse."""

    def __init__(self, sparse=False):
        super().__init__()
        self.first = nn.Linear(1, 1, bias=False)
        self.second = Row() if sparse else nn.Linear(1, 1, bias=False)

    def forward(self, x):
        return sum(half(x.to(half.weight.dtype)).double() for half in (self.first, self.second))


def cast_after_wrapping(ctx, jobs):
    """By job, the gradient of the second layer in two iterations before the cast and two after it."""
    told = []
    for part, sparse, options in jobs:
        model, seen = ddp(ctx, Halves(sparse), **options), []

        def use(x, model=model):
            model(x).sum().backward()

        for iteration, dtype in enumerate([torch.float32] * 2 + [torch.float64] * 2):  # the parameters stay the same
            cast = {"whole": model, "in part": model.module.second}.get(part, model.module)
            cast.to(dtype)
            if part == "before a move" and iteration == 2:  # while the gradients of the iteration before are there
                private(model, "_update_process_group")(dist.new_group(list(range(ctx.world))))
            model.zero_grad()
            scale = 12 * FINE if dtype is torch.float64 else 12
            error = caught(use, scale * models.place(ctx.rank, 0).to(dtype))
            seen.append(whole(model.module.second.weight.grad).to_dense().item() if error is None else error)
        ctx.meet("told")
        told.append(seen)
    return told


@check("DDP-034", worlds=MANY, beyond=False)
def test_a_model_that_was_cast_after_wrapping_is_averaged_or_refused(ranks):
    mean = 12 * sum(range(1, ranks.world + 1)) / ranks.world
    wholly = [("whole", False, {}), ("whole", False, {"gradient_as_bucket_view": True}), ("whole", True, {})]
    jobs = [*wholly, *((part, False, {"find_unused_parameters": True}) for part in ("past the wrapper", "in part"))]
    jobs += [("before a move", False, {"gradient_as_bucket_view": True})]
    for rank, told in enumerate(ranks(cast_after_wrapping, jobs)):
        for job, (*before, third, fourth) in zip(jobs, told, strict=True):
            assert before == [mean, mean]
            for found in (third, fourth):
                assert found != mean, f"rank {rank}, {job}: gradients are rounded to the former dtype"
                local = isinstance(found, float) and found != mean * FINE
                assert not local, f"rank {rank}, {job} goes on with local gradients: {found}"
                if found != mean * FINE:
                    assert is_refusal(found, "param"), f"rank {rank}, {job} got {found}"
                    ranks.at_limit("a model that was cast after wrapping is refused")
