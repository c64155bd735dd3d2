"""Calls that only the overlap hooks make, made wrongly: each is refused before it can do harm."""

import inspect

import torch
from torch import nn

from conformance.api.checking import check
from conformance.fixtures.observing import assert_refused
from conformance.fixtures.sharding import WARM_UP, Overlapped, Reference, give, sharded, some_parameters
from conformance.fixtures.training import private
from conformance.ranks import caught


def plain(ctx):
    """A sharded optimizer that steps by itself, its parameters and its reference."""
    parameters = some_parameters(ctx)
    return sharded(ctx, parameters, "Adam"), parameters, Reference(parameters, "Adam")


def still_right(zero, parameters, reference):
    """Whether the refusal has changed nothing: a step later all is as in the ordinary optimizer."""
    for optimizer, targets in ((zero, parameters), (reference.optimizer, reference.parameters)):
        give(targets, 0)
        optimizer.step()
    return reference.gap(parameters)


def give_gradients_without_overlap(ctx):
    zero, parameters, reference = plain(ctx)
    gradients = [torch.ones_like(parameter) for parameter in parameters]
    return caught(private(zero, "_local_step"), gradients=gradients), still_right(zero, parameters, reference)


def initialise_without_overlap(ctx):
    zero, parameters, reference = plain(ctx)
    initialise = private(zero, "_init_zero_for_overlap")
    needed = [p for p in inspect.signature(initialise).parameters.values() if p.default is inspect.Parameter.empty]
    return caught(initialise, *[None for _ in needed]), still_right(zero, parameters, reference)


def give_gradients_and_a_closure(ctx):
    overlapped = Overlapped(ctx)
    gaps = overlapped.train_many(range(WARM_UP + 1))
    gradients = [None for _ in overlapped.model.parameters()]
    error = caught(private(overlapped.zero, "_local_step"), gradients=gradients, closure=lambda: 1.0)
    return error, gaps | overlapped.train_many([WARM_UP + 1]) or None


def broadcast_in_overlap(ctx):
    overlapped = Overlapped(ctx)
    gaps = overlapped.train_many(range(WARM_UP + 1))
    error = caught(private(overlapped.zero, "_broadcast_params_from_rank"), 0)
    return error, gaps | overlapped.train_many([WARM_UP + 1]) or None


MISUSES = {
    "gradients without overlap": (give_gradients_without_overlap, ["gradients", "overlap"]),
    "delayed initialisation without overlap": (initialise_without_overlap, ["overlap_with_ddp"]),
    "gradients and a closure": (give_gradients_and_a_closure, ["closure"]),
    "the ordinary broadcast in overlap mode": (broadcast_in_overlap, ["overlap_with_ddp"]),
}


@check("ZERO-028", worlds=(1, 2), deadline_s=10, scenarios=MISUSES)
def test_internal_misuse_is_an_assertion_failure_that_changes_nothing(ranks, scenario):
    misuse, words = scenario
    results = ranks(misuse)
    assert_refused([error for error, _ in results], AssertionError, *words)
    assert [gap for _, gap in results] == [None] * ranks.world


def check_partitions(ctx):
    """What is said of partitions that are wrong, and of some that are right."""
    parameters = some_parameters(ctx, 4)
    groups = [{"params": parameters[:1]}, {"params": parameters[1:]}]
    verify = private(sharded(ctx, groups, "Adam"), "_verify_params_per_rank")
    divide = private(sharded(ctx, parameters, "Adam"), "_partition_parameters")
    nobody = [[] for _ in range(ctx.world)]
    foreign = nn.Parameter(parameters[0].detach().clone())
    wrong_lengths = [[*nobody, parameters], [*nobody[1:]], [*nobody, [], []]]
    foreigners = [[[parameters[0], foreign], *nobody[1:]], [*nobody[1:], [foreign]]]
    right = [[parameters, *nobody[1:]], [*nobody[1:], parameters[::2]], nobody]
    told = [[caught(verify, partition) for partition in each] for each in (wrong_lengths, foreigners, right)]
    late = private(sharded(ctx, parameters, "Adam", overlap_with_ddp=True), "_partition_parameters")
    place_of = {id(parameter): place for place, parameter in enumerate(parameters)}
    given = [[place_of[id(one)] for group in groups for one in group["params"]] for groups in late(right[1])]
    return [*told, [caught(divide, partition) for partition in (*wrong_lengths, *foreigners)], given]


@check("ZERO-029")
def test_a_manual_partition_has_a_list_for_every_rank_and_only_known_parameters(ranks):
    for wrong_lengths, foreigners, right, divided, given in ranks(check_partitions):
        assert given == [[]] * (ranks.world - 1) + [[0, 2]]
        assert_refused(wrong_lengths, ValueError)
        assert_refused(foreigners, ValueError)
        assert right == [None] * 3, "a subset of the parameters is fine"
        assert all(error is not None and any(map(error.is_a, (ValueError, AssertionError))) for error in divided)
