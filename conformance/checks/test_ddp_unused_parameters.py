"""Parameters that an iteration leaves out: averages over those who used them, and hands off where nobody did."""

import warnings
from collections import namedtuple
from dataclasses import dataclass

import torch

from conformance.api import oracle
from conformance.api.checking import MANY, WORLDS, check
from conformance.fixtures import models
from conformance.fixtures.observing import (
    TINY_MIB,
    assert_refused,
    mean_of_all,
    mine,
    reduced_elements,
    said,
    show_reductions,
    started,
    takes,
    wrapped,
)  # fmt: skip
from conformance.fixtures.training import gradients, numbers
from conformance.ranks import caught

CAPS = {"several buckets": TINY_MIB, "one bucket": None}

# -- what is trained, and what one process says of it


def parts(ctx, uses, **options):
    """Three layers under DDP; ``uses`` says which of them this rank runs in each iteration."""
    model = wrapped(ctx, models.Parts(), find_unused_parameters=True, **options)
    return model, [each[ctx.rank] for each in uses]


def batch(ctx, iteration):
    return models.divisible(ctx.rank, iteration).to(ctx.device)


def train_parts(ctx, uses, options):
    """Rank function: the gradients after each iteration, from fresh ones every time."""
    model, own = parts(ctx, uses, **options)
    seen = []
    for iteration, used in enumerate(own):
        model.zero_grad(set_to_none=True)
        model.module.use = used
        model(batch(ctx, iteration)).sum().backward()
        seen.append(gradients(model))
    return seen


def averages(uses):
    """One process's gradients for every iteration: the sum over the ranks that used a layer, over all ranks."""
    model = models.Parts()
    seen = []
    for iteration, by_rank in enumerate(uses):
        total = {}
        for rank, used in enumerate(by_rank):
            model.use = used
            for name, gradient in oracle.local_gradients(model, models.divisible(rank, iteration)).items():
                total[name] = total.get(name, 0) + gradient
        seen.append(numbers((name, total[name] / len(by_rank) if name in total else None)
                            for name, _ in model.named_parameters()))  # fmt: skip
    return seen


def everyone(world, used):
    return [used] * world


def only(world, rank, used, others):
    return [used if each == rank else others for each in range(world)]


# -- DDP-099, DDP-100, DDP-119


@check("DDP-099", scenarios=CAPS)
def test_a_parameter_that_some_ranks_use_gets_their_sum_over_all_ranks(ranks, scenario):
    world = ranks.world
    turns = [("ab", "bc", "ca", "abc")[rank % 4] for rank in range(world)]
    uses = [only(world, world - 1, "abc", "a"), only(world, 0, "ac", "abc"), turns, turns[::-1], everyone(world, "abc"),
            only(world, 0, "b", "a")]  # fmt: skip
    expected = averages(uses)
    for rank, seen in enumerate(ranks(train_parts, uses, {"bucket_cap_mb": scenario})):
        for iteration, found in enumerate(seen):
            assert found == expected[iteration], f"rank {rank}, iteration {iteration}, used {uses[iteration]}"


@check("DDP-100", "DDP-119", scenarios={
    "views": {"bucket_cap_mb": TINY_MIB, "gradient_as_bucket_view": True},  # first: DDP-119 is about them
    "copies": {"bucket_cap_mb": TINY_MIB},
    "views of one bucket": {"gradient_as_bucket_view": True},
})  # fmt: skip
def test_a_parameter_that_nobody_uses_keeps_no_gradient(ranks, scenario):
    uses = [everyone(ranks.world, used) for used in ("ab", "ab", "abc", "ac", "c")]
    expected = averages(uses)
    assert expected[0]["parts.c.weight"] is None
    assert ranks(train_parts, uses, scenario) == [expected] * ranks.world


def keep_old_gradients(ctx, as_view):
    model, _ = parts(ctx, [], bucket_cap_mb=TINY_MIB, gradient_as_bucket_view=as_view)
    for parameter in model.module.parts["c"].parameters():
        parameter.grad = torch.full_like(parameter, 7.0 + ctx.rank)
    told = []
    for iteration, used in enumerate(("ab", "abc", "ac")):  # gradients add up: nothing is set to zero
        model.module.use = used
        model(batch(ctx, iteration)).sum().backward()
        told.append(gradients(model))
    return told


@check("DDP-100", scenarios={"copies": False, "views": True})
def test_an_old_gradient_of_a_parameter_that_nobody_uses_is_not_touched(ranks, scenario):
    told = ranks(keep_old_gradients, scenario)
    for rank, (first, second, third) in enumerate(told):
        assert set(first["parts.c.weight"] + first["parts.c.bias"]) == {7.0 + rank}, f"rank {rank}: preset, then unused"
        assert third["parts.b.weight"] == second["parts.b.weight"], f"rank {rank}: reduced, then unused"
        assert third["parts.b.bias"] == second["parts.b.bias"]


# -- DDP-101, DDP-114: outputs outside the loss


def train_on_some_outputs(ctx, losses):
    """All layers run and are returned; ``losses`` says whose outputs this rank's loss takes in each iteration."""
    model, own = parts(ctx, losses, bucket_cap_mb=TINY_MIB)
    model.module.shape = lambda outputs: (outputs["a"], [outputs["b"], outputs["c"]])
    seen = []
    for iteration, wanted in enumerate(own):
        model.zero_grad(set_to_none=True)
        a, (b, c) = model(batch(ctx, iteration))
        chosen = [each.sum() for name, each in zip("abc", (a, b, c), strict=True) if name in wanted]
        torch.stack(chosen).sum().backward()
        seen.append(gradients(model))
    return seen


@check("DDP-101", "DDP-114", worlds=WORLDS)
def test_outputs_outside_the_loss_do_not_block_and_leave_no_gradient(ranks):
    losses = [everyone(ranks.world, wanted) for wanted in ("a", "ab", "c", "abc")]
    expected = averages(losses)
    assert expected[0]["parts.b.weight"] is None
    assert ranks(train_on_some_outputs, losses) == [expected] * ranks.world


def accumulate_on_some_outputs(ctx, losses):
    """As before, with gradients in the buckets that are never zeroed: each iteration adds to what it uses."""
    model, own = parts(ctx, losses, bucket_cap_mb=TINY_MIB, gradient_as_bucket_view=True)
    model.module.shape = lambda outputs: (outputs["a"], {"b": outputs["b"], "both": outputs["b"] + outputs["c"]})
    seen = []
    for iteration, wanted in enumerate(own):
        a, more = model(batch(ctx, iteration))
        chosen = {"a": a, **more}
        torch.stack([chosen[name].sum() for name in wanted]).sum().backward()
        seen.append(gradients(model))
    return seen


@check("DDP-101", "DDP-100", worlds=(1, 2))
def test_outputs_outside_the_loss_leave_the_gradient_that_was_there(ranks):
    losses = [("a", "both"), ("a",), ("b",), ("a", "b")]  # b's layer feeds two outputs
    used = ["abc", "a", "b", "ab"]
    each = averages([everyone(ranks.world, parts_used) for parts_used in used])
    total, expected = {}, []
    for found in each:
        for name, values in found.items():
            before = total.get(name) or [0.0] * len(values or ())
            total[name] = total.get(name) if values is None else [a + b for a, b in zip(before, values, strict=True)]
        expected.append(dict(total))
    assert ranks(accumulate_on_some_outputs, [[wanted] * ranks.world for wanted in losses]) == [expected] * ranks.world


@check("DDP-101", "DDP-099", worlds=MANY)
def test_outputs_outside_the_loss_of_some_ranks_contribute_nothing_there(ranks):
    losses = [only(ranks.world, 0, "a", "abc"), only(ranks.world, ranks.world - 1, "cb", "a")]
    assert ranks(train_on_some_outputs, losses) == [averages(losses)] * ranks.world


# -- DDP-102, DDP-103: where outputs are looked for


@dataclass
class Answer:
    value: object
    words: str = ""


@dataclass(frozen=True)
class Sealed:
    value: object


Pair = namedtuple("Pair", "left right")


# how outputs are put into a container, and taken out of it again
CONTAINERS = {
    "dict of lists": (lambda out: {"k": [out["a"]], 3: [[out["b"]], None]}, lambda out: (out["k"][0], out[3][0][0])),
    "dataclasses": (lambda out: Answer(Answer((out["a"], out["b"]))), lambda out: out.value.value),
    "frozen dataclass": (lambda out: Sealed([out["a"], out["b"]]), lambda out: tuple(out.value)),
    "named tuple": (lambda out: Pair((out["a"],), {"x": out["b"]}), lambda out: (out.left[0], out.right["x"])),
    "list of dataclasses": (
        lambda out: [Answer({"a": out["a"]}), Answer([out["b"]])], lambda out: (out[0].value["a"], out[1].value[0])
    ),
}  # fmt: skip


def train_through_containers(ctx):
    told = {}
    for name, (put, take) in CONTAINERS.items():
        model, _ = parts(ctx, [], bucket_cap_mb=TINY_MIB)
        model.module.use, model.module.shape = "ab", put
        a, b = take(model(batch(ctx, 0)))
        (a + b).sum().backward()
        told[name] = gradients(model)
    return told


@check("DDP-102")
def test_outputs_are_found_in_nested_containers(ranks):
    expected = averages([everyone(ranks.world, "ab")])[0]
    for told in ranks(train_through_containers):
        assert told == dict.fromkeys(CONTAINERS, expected)


def train_through_an_opaque_object(ctx):
    model, _ = parts(ctx, [], bucket_cap_mb=TINY_MIB)
    model.module.use, model.module.shape = "ab", lambda out: models.Opaque(out["a"] + out["b"])
    error = caught(lambda: model(batch(ctx, 0)).value.sum().backward())
    return error, gradients(model)


@check("DDP-103", worlds=(1, 2, 3))
def test_outputs_in_an_opaque_object_give_an_error_or_right_gradients(ranks):
    expected = averages([everyone(ranks.world, "ab")])[0]
    for error, found in ranks(train_through_an_opaque_object):
        if error is not None:
            assert_refused([error], RuntimeError, "parameter", "parts.")
            ranks.at_limit("outputs inside an arbitrary object end in an error")
        else:
            assert found == expected


def in_a_ring(out):
    """A container that holds itself, as tables of contents with a way back do."""
    made = {"a": out["a"], "more": [out["b"]]}
    made["more"].append(made)
    return made


def train_through_a_ring(ctx):
    """A model without a search, which has nothing to look for, and one with it."""
    told = []
    for options in ({}, {"find_unused_parameters": True}):
        model = wrapped(ctx, models.Parts("ab"), bucket_cap_mb=TINY_MIB, **options)
        model.module.shape = in_a_ring

        def train(model=model):
            for iteration in range(2):
                model.zero_grad(set_to_none=True)
                out = model(batch(ctx, iteration))
                (out["a"] + out["more"][0]).sum().backward()

        told.append((caught(train), gradients(model)))
        ctx.meet(f"with {len(told)}")
    return told


@check("DDP-103", worlds=(1, 2, 3), deadline_s=3)
def test_outputs_that_hold_themselves_train_or_end_in_an_error(ranks):
    expected = averages([everyone(ranks.world, "ab")] * 2)[1]
    expected = {name: values for name, values in expected.items() if "parts.c" not in name}
    for (plain, found), (searched, found_by_search) in ranks(train_through_a_ring):
        assert plain is None, f"without a search there is nothing to look for: {plain}"
        assert found == expected
        if searched is None:
            assert found_by_search == expected
        else:
            ranks.at_limit("a search through an output that holds itself ends in an error")


# -- DDP-104: detection that finds nothing


def listen_for_a_warning(ctx):
    def train(used, **options):
        model = wrapped(ctx, models.Parts(), **options)
        model.module.use = used

        def several():
            for iteration in range(3):
                model(batch(ctx, iteration)).sum().backward()

        lines = said(several).splitlines()
        return sum("find_unused_parameters" in line for line in lines)

    needed = train("ab", find_unused_parameters=True)
    off = train("abc")
    return needed, off, train("abc", find_unused_parameters=True), train("abc", find_unused_parameters=True)


@check("DDP-104", worlds=(1, 2))
def test_needless_detection_is_told_once_a_process(ranks):
    assert ranks(listen_for_a_warning) == [(0, 0, 1, 0)] * ranks.world


def search_where_warnings_are_errors(ctx):
    """The gradients of iterations in which a search finds nothing, in a program that makes warnings errors."""
    model, seen = wrapped(ctx, models.Branches(), find_unused_parameters=True), []
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(3):
            model.zero_grad()
            model(mine(ctx), with_b=True).sum().backward()
            seen.append(gradients(model))
    return seen


@check("DDP-104", worlds=(1, 2), beyond=False)
def test_a_step_does_not_end_by_the_advice_that_the_search_is_needless(ranks):
    assert ranks.subject.PeerFailed  # others may raise it, on each rank at another time
    mean = mean_of_all(ranks.world)
    assert ranks(search_where_warnings_are_errors) == [[{"a.weight": [mean], "b.weight": [mean]}] * 3] * ranks.world


def listen_after_a_find(ctx):
    """How often a search that has left a part out in the first iteration, and none since, is called needless."""
    model = wrapped(ctx, models.Parts(), find_unused_parameters=True)

    def several():
        for iteration in range(4):
            model.module.use = "abc" if iteration else "ab"
            model(batch(ctx, iteration)).sum().backward()

    return sum("find_unused_parameters" in line for line in said(several).splitlines())


@check("DDP-104", worlds=(1, 2))
def test_detection_that_has_found_something_is_not_called_needless(ranks):
    if any(ranks(listen_after_a_find)):
        ranks.at_limit("a search that has found something is called needless once it finds nothing")


# -- DDP-116: leaving unused parameters out of the reduction


def count_reduced_elements(ctx, skip, uses):
    takes(ctx, "skip_all_reduce_unused_params")
    options = {"skip_all_reduce_unused_params": True} if skip else {}
    model, own = parts(ctx, uses, bucket_cap_mb=1e-6, **options)  # a bucket for each parameter
    told = []
    for iteration, used in enumerate(own):
        model.module.use = used
        model.zero_grad(set_to_none=True)

        def step(iteration=iteration):
            model(batch(ctx, iteration)).sum().backward()

        told.append((reduced_elements(started(ctx, step)), gradients(model)))
    return told


@check("DDP-116", worlds=MANY)
def test_unused_parameters_can_be_left_out_of_the_reduction(ranks):
    uses = [everyone(ranks.world, "ac")] * 4
    expected = averages(uses)
    layer, padding = 20, ranks.world - 1
    ranks(show_reductions, trace=True)
    for all_of_them, fewer in zip(ranks(count_reduced_elements, False, uses, trace=True),
                                  ranks(count_reduced_elements, True, uses, trace=True), strict=True):  # fmt: skip
        assert [found for _, found in all_of_them] == [found for _, found in fewer] == expected
        with_all, without = all_of_them[-1][0], fewer[-1][0]
        assert 3 * layer <= with_all < 4 * layer, f"{with_all} elements reduced"
        assert 2 * layer <= without <= with_all - layer + padding, f"{without} elements reduced instead of {with_all}"


@check("DDP-116", worlds=MANY, beyond=False, deadline_s=5)
def test_what_only_other_ranks_use_is_not_skipped(ranks):
    uses = [["ab" if rank % 2 else "ac" for rank in range(ranks.world)]] * 4
    expected = averages(uses)
    for rank, told in enumerate(ranks(count_reduced_elements, True, uses)):
        for iteration, (_, found) in enumerate(told):
            assert found == expected[iteration], f"rank {rank}, iteration {iteration}, used {uses[iteration]}"


def use_inside_what_is_left_out(ctx, passes):
    """So many passes without b, then one under no_sync with it and one outside without it."""
    takes(ctx, "skip_all_reduce_unused_params")
    options = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}
    model = wrapped(ctx, models.Branches(), **options)
    for _ in range(passes):
        model.zero_grad()
        model(mine(ctx)).sum().backward()
    model.zero_grad()

    def accumulate():
        with model.no_sync():
            model(mine(ctx), with_b=True).sum().backward()
        model(mine(ctx)).sum().backward()

    return caught(accumulate), gradients(model)


@check("DDP-116", "DDP-077", worlds=MANY, beyond=False)
def test_what_is_left_out_and_then_used_under_no_sync_is_averaged_or_refused(ranks):
    mean = mean_of_all(ranks.world)
    for passes in (1, 3):
        for rank, (error, found) in enumerate(ranks(use_inside_what_is_left_out, passes)):
            if error is not None:
                assert error.is_a(RuntimeError), error
                assert "skip_all_reduce_unused_params" in error.text, error
                ranks.at_limit("what is left out of reductions must not be used under no_sync either")
            else:
                assert found == {"a.weight": [2 * mean], "b.weight": [mean]}, f"rank {rank}, {passes=}"


def clear_what_was_used_inside(ctx):
    """The same, where what was accumulated under no_sync is cleared before the pass outside."""
    takes(ctx, "skip_all_reduce_unused_params")
    options = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}
    model = wrapped(ctx, models.Branches(), **options)
    seen = []
    for iteration in range(5):
        if iteration > 2:
            with model.no_sync():
                model(mine(ctx), with_b=True).sum().backward()
        model.zero_grad(set_to_none=True)
        model(mine(ctx)).sum().backward()
        seen.append(gradients(model))
    return seen


@check("DDP-116", worlds=MANY, beyond=False)
def test_what_is_left_out_and_was_used_under_no_sync_and_cleared_is_left_out_again(ranks):
    expected = [{"a.weight": [mean_of_all(ranks.world)], "b.weight": None}] * 5
    assert ranks(clear_what_was_used_inside) == [expected] * ranks.world


def leave_out_in_a_static_graph(ctx):
    takes(ctx, "skip_all_reduce_unused_params")
    told = []
    for place, used in enumerate(SOME_OF_THEM):
        model = wrapped(ctx, models.Parts(), bucket_cap_mb=1e-6, static_graph=True, skip_all_reduce_unused_params=True)
        model.module.use = used
        for iteration in range(4):
            model.zero_grad(set_to_none=True)
            model(batch(ctx, 4 * place + iteration)).sum().backward()
            told.append(gradients(model))
    return told


SOME_OF_THEM = ("ab", "ac", "bc", "b")


@check("DDP-116", worlds=MANY, beyond=False)
def test_in_a_static_graph_whichever_parameters_nobody_uses_are_left_out(ranks):
    uses = [everyone(ranks.world, used) for used in SOME_OF_THEM for _ in range(4)]
    expected = averages(uses)
    for rank, told in enumerate(ranks(leave_out_in_a_static_graph)):
        for place, found in enumerate(told):
            assert found == expected[place], f"rank {rank}, iteration {place % 4}, used {uses[place][0]}"


# -- DDP-116, DDP-100, DDP-059: gradients from before the first forward

VIEWS, SKIPPED = {"gradient_as_bucket_view": True}, {"skip_all_reduce_unused_params": True}
BEFORE = [
    {"find_unused_parameters": True},
    {"find_unused_parameters": True, **VIEWS, **SKIPPED},
    {"static_graph": True, **SKIPPED},
    {"static_graph": True, **VIEWS},
]


def begin_with_gradients(ctx):
    """All parameters have a gradient when the model is wrapped; ``c``, which nobody uses, the same on all ranks."""
    takes(ctx, "skip_all_reduce_unused_params")
    told = []
    for options in BEFORE:
        module = models.Parts().to(ctx.device)
        for name, parameter in module.named_parameters():
            parameter.grad = torch.full_like(parameter, from_before(0 if ".c." in name else ctx.rank))
        model = wrapped(ctx, module, bucket_cap_mb=TINY_MIB, **options)
        module.use = "ab"
        seen = []
        for iteration in range(4):
            for part in "ab" if iteration == 2 else "":
                module.parts[part].zero_grad()
            model(3 * batch(ctx, iteration)).sum().backward()  # a mean that can be averaged once more among 3 ranks
            seen.append(gradients(model))
        told.append(seen)
    return told


def from_before(rank):
    return 144.0 * (rank + 1)


def went_on_from(world):
    """By iteration: the gradients of one process that begins with the ranks' own."""
    begun = sum(map(from_before, range(world))) / world
    model, seen, total = models.Parts(), [], {}
    model.use = "ab"
    for iteration in range(4):
        batches = [3 * models.divisible(rank, iteration) for rank in range(world)]
        found = oracle.averaged_gradients(model, batches, world)
        before = total or dict.fromkeys(found, begun)
        total = {name: gradient + (0 if iteration == 2 else before[name]) for name, gradient in found.items()}
        kept = {name: torch.full_like(p, from_before(0)) for name, p in model.named_parameters()}
        seen.append(numbers((name, total.get(name, kept[name])) for name in kept))
    return seen


@check("DDP-116", "DDP-100", "DDP-059", worlds=MANY, beyond=False)
def test_gradients_from_before_the_first_forward_are_added_to_or_left_alone(ranks):
    expected = went_on_from(ranks.world)
    for rank, told in enumerate(ranks(begin_with_gradients)):
        for options, seen in zip(BEFORE, told, strict=True):
            for iteration, (found, right) in enumerate(zip(seen, expected, strict=True)):
                assert found == right, f"{options}, rank {rank}, iteration {iteration}"
