"""Building a ZeroRedundancyOptimizer: defaults, arguments that are refused, what is only logged."""

import inspect

import torch
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures.observing import assert_refused, logged
from conformance.fixtures.sharding import (
    FUNCTIONAL,
    WITHOUT_FUNCTIONAL,
    Overlapped,
    Reference,
    functional_sgd,
    give,
    sharded,
    some_parameters,
)
from conformance.fixtures.training import private
from conformance.ranks import caught


@check("ZERO-001", worlds=(1,))
def test_the_constructor_has_the_documented_defaults(ranks):
    known = inspect.signature(ranks.subject.ZeroRedundancyOptimizer).parameters
    documented = {"process_group": None, "parameters_as_bucket_view": False, "overlap_with_ddp": False}
    missing = [name for name in documented if name not in known]
    for name in missing:
        ranks.subject.require(name)  # what it declares to lack has no default
    assert not missing
    assert {name: known[name].default for name in documented} == documented
    assert list(known)[:2] == ["params", "optimizer_class"]
    assert known["params"].default is known["optimizer_class"].default is inspect.Parameter.empty
    assert list(known.values())[-1].kind is inspect.Parameter.VAR_KEYWORD


def plain_tensors(ctx):
    """Leaves of the graph that are no Parameters, as an optimizer may be given them."""
    return [parameter.detach().clone().requires_grad_() for parameter in some_parameters(ctx)]


def step_with_defaults(ctx, make):
    parameters = make(ctx)
    settings = {"lr": 0.5, "momentum": 0.25, "weight_decay": 0.125}
    reference = Reference(parameters, "SGD", **settings)
    before = [parameter.data_ptr() for parameter in parameters]
    zero = ctx.subject.ZeroRedundancyOptimizer(parameters, torch.optim.SGD, **settings)
    gaps = []
    for iteration in range(3):
        give(parameters, iteration)
        give(reference.parameters, iteration)
        zero.step()
        reference.optimizer.step()
        gaps.append(reference.gap(parameters))
    shown = {key: zero.param_groups[0][key] for key in settings} == settings
    stayed = before == [parameter.data_ptr() for parameter in parameters]
    return gaps, shown, stayed, zero.join_process_group.size()


@check("ZERO-001", "ZERO-012")
def test_by_default_all_ranks_share_and_further_keywords_reach_the_local_optimizer(ranks):
    for make, found in ranks.each(step_with_defaults, (some_parameters, plain_tensors)):
        assert found == [([None] * 3, True, True, ranks.world)] * ranks.world, make.__name__


def arguments(ctx):
    """What must not be accepted as parameters, by a name."""
    one, two = some_parameters(ctx, 2)
    named = nn.Linear(2, 2)
    return {
        "a bare tensor": one,
        "a number": 3,
        "nothing": None,
        "strings": ["weight"],
        "named parameters": list(named.named_parameters()),
        "tensors and a group": [one, {"params": [two]}],
        "a group and tensors": [{"params": [one]}, two],
        "a set in a group": [{"params": {one, two}}],
        "an empty list": [],
        "an exhausted iterator": iter([]),
        "a group without its key": [{"lr": 0.5}],
        "two dtypes": [one, nn.Parameter(two.detach().double())],
        "two dtypes in two groups": [{"params": [one]}, {"params": [nn.Parameter(two.detach().double())]}],
        "a sparse tensor": [nn.Parameter(torch.ones(2, 2, device=ctx.device).to_sparse())],
        "two device types": [one, nn.Parameter(torch.ones(2, device="meta"))],
    }


def construct(ctx):
    return {name: caught(sharded, ctx, given) for name, given in arguments(ctx).items()}


def everywhere_refused(ranks, kind, *names):
    results = ranks(construct)
    for name in names:
        for rank, errors in enumerate(results):
            error = errors[name]
            assert error is not None, f"rank {rank} was not refused: {name}"
            assert error.is_a(kind), f"rank {rank}, {name}: {error}"


@check("ZERO-002", worlds=(1, 2))
def test_anything_but_tensors_or_groups_is_a_type_error(ranks):
    everywhere_refused(
        ranks, TypeError,
        "a bare tensor", "a number", "nothing", "strings", "named parameters", "tensors and a group",
        "a group and tensors", "a set in a group",
    )  # fmt: skip


@check("ZERO-003", worlds=(1, 2))
def test_no_parameters_and_groups_without_parameters_are_value_errors(ranks):
    everywhere_refused(ranks, ValueError, "an empty list", "an exhausted iterator", "a group without its key")


@check("ZERO-004", worlds=(1, 2))
def test_parameters_that_are_not_of_one_dense_type_are_value_errors(ranks):
    everywhere_refused(
        ranks, ValueError, "two dtypes", "two dtypes in two groups", "a sparse tensor", "two device types"
    )


def construct_with_functional(ctx):
    return caught(ctx.subject.ZeroRedundancyOptimizer, some_parameters(ctx), functional_sgd(), lr=0.5)


@check("ZERO-005", worlds=(1, 2))
def test_a_functional_optimizer_without_overlap_is_refused(ranks):
    assert_refused(ranks(construct_with_functional), ValueError)


class _FunctionalNothing:
    """What no class of torch.optim is the counterpart of."""


def overlap_unknown(ctx):
    ctx.subject.require("overlap_with_ddp")
    zero = ctx.subject.ZeroRedundancyOptimizer
    return caught(zero, some_parameters(ctx), _FunctionalNothing, overlap_with_ddp=True, lr=0.5)


@check("ZERO-005", worlds=(1, 2))
def test_overlap_with_a_functional_optimizer_that_nobody_knows_is_refused(ranks):
    assert_refused(ranks(overlap_unknown), ValueError)


def construct_with_no_class(ctx):
    """What is said to a number, to a class of modules and to an optimizer in the place of a class of optimizers; and to
    a text in the place of a parameter in a group."""
    ordinary = torch.optim.SGD(some_parameters(ctx), lr=0.5)
    zero = ctx.subject.ZeroRedundancyOptimizer
    told = [caught(zero, some_parameters(ctx), kind, lr=0.5) for kind in (3, nn.Linear, ordinary)]
    return told, caught(sharded, ctx, [{"params": ["weight"]}])


@check("ZERO-002", "ZERO-005", worlds=(1, 2), beyond=False)
def test_what_is_no_class_of_optimizers_and_no_parameter_is_refused_by_name(ranks):
    assert ranks.subject.PeerFailed  # no document says that this is refused, and how
    for told, of_a_group in ranks(construct_with_no_class):
        assert_refused(told, TypeError, "optimizer_class")
        assert_refused([of_a_group], TypeError, "str")


def overlap_functional(ctx):
    gaps = {"functional SGD": Overlapped(ctx, "SGD", kind=functional_sgd()).train_many(range(4))}
    return gaps | {name: Overlapped(ctx, name).train_many(range(4)) for name in FUNCTIONAL}


@check("ZERO-005", worlds=(2, 3), deadline_s=15)
def test_overlap_trains_as_the_ordinary_optimizer_does_of_which_there_is_a_functional_one(ranks):
    for gaps in ranks(overlap_functional):
        assert {name: gap for name, gap in gaps.items() if gap} == {}


def overlap_unusual(ctx, name):
    try:
        overlapped = Overlapped(ctx, name, layers=4 * ctx.world)  # several buckets for each rank, but one step
    except ValueError as error:
        return str(error)
    return overlapped.train_many(range(4))


@check("ZERO-005", worlds=MANY, deadline_s=10, scenarios={name: name for name in WITHOUT_FUNCTIONAL})
def test_overlap_with_an_optimizer_that_has_no_functional_counterpart_is_refused_or_right(ranks, scenario):
    for result in ranks(overlap_unusual, scenario):
        assert isinstance(result, str) or result == {}, f"neither refused nor equal to one process: {result}"


def ask_for_both(ctx):
    parameters = some_parameters(ctx)
    before = [parameter.data_ptr() for parameter in parameters]
    with logged() as of_one:
        sharded(ctx, parameters, overlap_with_ddp=True)
        sharded(ctx, some_parameters(ctx), parameters_as_bucket_view=True)
    with logged() as texts:
        sharded(ctx, parameters, overlap_with_ddp=True, parameters_as_bucket_view=True)
    return of_one, texts, before == [parameter.data_ptr() for parameter in parameters]


@check("ZERO-006", worlds=(1, 2))
def test_bucket_views_are_ignored_with_a_log_warning_when_overlapping(ranks):
    for of_one, texts, stayed in ranks(ask_for_both):
        assert not [text for text in of_one if "parameters_as_bucket_view" in text], of_one
        about = [text for text in texts if "parameters_as_bucket_view" in text and "overlap_with_ddp" in text]
        assert len(about) == 1, texts
        assert "ignored" in about[0]
        assert stayed, "parameters were moved into views all the same"


def build_hook_around(ctx):
    hook = private(ctx.subject.zero, "_ZeROJoinHook")
    wrong = [object(), torch.optim.SGD(some_parameters(ctx), lr=0.5), None]
    return [caught(hook, one) for one in wrong], caught(hook, sharded(ctx, some_parameters(ctx)))


@check("ZERO-023", worlds=(1, 2))
def test_the_join_hook_can_be_built_around_a_zero_optimizer_only(ranks):
    for errors, right in ranks(build_hook_around):
        assert_refused(errors, AssertionError)
        assert right is None
