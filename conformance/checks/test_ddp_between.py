"""Whatever lies between an accumulation under no_sync and the backward that closes it, the whole sum is averaged."""

import torch
import torch.distributed as dist

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.observing import TINY_MIB, wrapped
from conformance.fixtures.training import gradients, numbers, private
from conformance.ranks import Caught, caught

SETTLED = 3  # iterations after which the order of buckets is agreed


def nothing(ctx, model):
    pass


def evaluated_by_one(ctx, model):
    if ctx.rank == ctx.world - 1:
        with torch.no_grad(), model.no_sync():
            model.eval()(batch(ctx, 9))
        model.train()


def evaluated_by_all(ctx, model):
    with torch.no_grad():
        model.eval()(batch(ctx, 9))
        model(batch(ctx, 9))
    model.train()


def moved_to_a_group(ctx, model):
    private(model, "_update_process_group")(dist.new_group(list(range(ctx.world))))


def thawed(ctx, model):
    model.module.parts["d"].requires_grad_(True)


def loaded(ctx, model):
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})


def given_other_gradients(ctx, model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad.clone()


def given_gradients_elsewhere(ctx, model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data = parameter.grad.clone()


def differentiated(ctx, model):
    output = model(batch(ctx, 9))
    torch.autograd.grad(output.sum(), [p for p in model.parameters() if p.requires_grad], allow_unused=True)


def left_open_under_no_sync(ctx, model):
    with model.no_sync():
        model(batch(ctx, 9))


def failed_under_no_sync(ctx, model):
    with model.no_sync():
        assert caught(model, "no tensor") is not None


def cast(ctx, model):
    model.double()


def cast_past_the_wrapper(ctx, model):
    model.module.double()


def cast_and_cast_back(ctx, model):
    model.double().float()


CASTS = (cast, cast_past_the_wrapper, cast_and_cast_back)
ACTS = (
    nothing, evaluated_by_one, evaluated_by_all, thawed, loaded, given_other_gradients, given_gradients_elsewhere,
    differentiated, left_open_under_no_sync, failed_under_no_sync,
)  # fmt: skip


def batch(ctx, iteration):
    return models.divisible(ctx.rank, iteration).to(ctx.device)


def program(world, searched):
    """What each rank runs inside no_sync, unequally much, and then outside: iterations, and the parts that they use."""
    others = "a" if searched else "ab"
    inside = [[(10 + turn, others if rank % 2 else "ab") for turn in range(1 + rank % 2)] for rank in range(world)]
    return inside, [[(20, others)]] * world


def act_in_between(ctx, acts, options):
    """By act: what the closing iteration raises, or the gradients that it leaves, those of the next, and its buffer."""
    inside, closing = program(ctx.world, "find_unused_parameters" in options)
    told = {}
    for act in acts:
        module = models.Parts("abd")
        module.parts["d"].requires_grad_(False)
        module.register_buffer("count", torch.full((1,), 1.0 + ctx.rank))
        model = wrapped(ctx, module, bucket_cap_mb=TINY_MIB, **options)

        def go(iteration, use, model=model, module=module):
            module.use = use + "d" if module.parts["d"].weight.requires_grad else use
            model(batch(ctx, iteration).to(module.parts["a"].weight.dtype)).sum().backward()

        for iteration in range(SETTLED):
            model.zero_grad()
            go(iteration, "ab")
        model.zero_grad()
        with model.no_sync():
            for each in inside[ctx.rank]:
                go(*each)
        act(ctx, model)
        if (error := caught(go, *closing[ctx.rank][0])) is not None:
            told[act.__name__] = error
            continue
        told[act.__name__] = [kept(model)]
        module.count.fill_(1.0 + ctx.rank)
        model.zero_grad()
        go(30, closing[ctx.rank][0][1])
        told[act.__name__] += [kept(model), module.count.item()]
    return told


def kept(model):
    """The gradients of the parts that were trained from the beginning."""
    return {name: value for name, value in gradients(model).items() if ".d." not in name}


def averaged(world, phases):
    """What one process averages of all that the ranks have run in these phases."""
    model, held = models.Parts("ab"), {}
    for rank in range(world):
        for iteration, model.use in [each for phase in phases for each in phase[rank]]:
            for name, gradient in oracle.local_gradients(model, models.divisible(rank, iteration)).items():
                held[name] = held.get(name, torch.zeros_like(gradient)) + gradient / world
    return numbers((name, held.get(name)) for name, _ in model.named_parameters())


def expected(world, options):
    inside, closing = program(world, "find_unused_parameters" in options)
    following = [[(30, closing[0][0][1])]] * world
    return [averaged(world, [inside, closing]), averaged(world, [following]), 1.0]


@check("DDP-073", "DDP-077", worlds=MANY, beyond=False, scenarios={
    "copies": {},
    "views": {"gradient_as_bucket_view": True},
    "searched": {"find_unused_parameters": True},
    "searched, views": {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    "a static graph": {"static_graph": True},
    "a static graph, views": {"static_graph": True, "gradient_as_bucket_view": True},
})  # fmt: skip
def test_what_is_done_between_an_accumulation_and_its_closing_backward_changes_no_average(ranks, scenario):
    right = expected(ranks.world, scenario)
    moves = () if "find_unused_parameters" in scenario else (moved_to_a_group,)
    for rank, told in enumerate(ranks(act_in_between, (*ACTS, *moves), scenario)):
        for act, seen in told.items():
            if act == thawed.__name__ and isinstance(seen, Caught) and seen.is_a(RuntimeError):
                ranks.at_limit("a parameter that is thawed after wrapping is refused")
            else:
                assert seen == right, f"rank {rank}, {act}"


@check("DDP-077", worlds=MANY, beyond=False)
def test_a_parameter_used_only_inside_counts_as_used_also_after_a_move_to_another_group(ranks):
    for as_view in (False, True):
        options = {"find_unused_parameters": True, "gradient_as_bucket_view": as_view}
        right = expected(ranks.world, options)
        for rank, told in enumerate(ranks(act_in_between, (moved_to_a_group,), options)):
            assert told == {"moved_to_a_group": right}, f"rank {rank}, {as_view=}"


def cast_in_between(ctx, options):
    """By way of casting, the same, or the refusal of it."""
    told = {}
    for act in CASTS:
        error = caught(lambda act=act: told.update(act_in_between(ctx, (act,), options)))
        told.setdefault(act.__name__, error)
        ctx.meet(act.__name__)
    return told


@check("DDP-077", worlds=MANY, beyond=False)
def test_a_parameter_used_only_inside_counts_as_used_also_after_a_cast_that_follows_or_the_cast_is_refused(ranks):
    for as_view in (False, True):
        options = {"find_unused_parameters": True, "gradient_as_bucket_view": as_view}
        right = expected(ranks.world, options)
        for rank, told in enumerate(ranks(cast_in_between, options)):
            for act, seen in told.items():
                if isinstance(seen, Caught) and seen.is_a(RuntimeError):
                    ranks.at_limit("a cast between an accumulation and its closing backward is refused")
                else:
                    assert seen == right, f"rank {rank}, after a cast, {act}"
