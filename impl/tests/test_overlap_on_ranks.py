"""Our overlapped step, compared with one process after every iteration, in and out of join contexts."""

import gc
import itertools
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

from conformance.fixtures.models import integers
from conformance.ranks import caught

from .overlap_training import Alone, Net, batch, build, clear_gradients, differences, loss_of, uses_extra
from .zero_training import OPTIMIZERS, halving, what_is_logged

pytestmark = pytest.mark.slow


def train(ctx, iterations, name, options, group=None, place=None, world=None):
    """Even inputs; says in which iterations this rank's model was not one process's."""
    place, world = ctx.rank if place is None else place, world or ctx.world
    model = Net()
    alone = Alone(model, name, options)
    ddp, zero = build(ctx, model, name, options, group)
    scheduler = halving(zero) if options.get("scheduled") else None
    found = []
    for iteration in range(iterations):
        clear_gradients(ddp, options)
        loss_of(ddp(batch(place, iteration), uses_extra(options, place, iteration))).backward()
        zero.step()
        if scheduler:
            scheduler.step()
        alone.step([iterations] * world, iteration)
        found += [f"iteration {iteration}: {text}" for text in differences(model, alone)]
    return found


def train_many(ctx, iterations, names, variants):
    found = {}
    for name in names:
        for options in variants:
            if wrong := train(ctx, iterations, name, options):
                found[f"{name} {options}"] = wrong
    return found


SCHEDULES = [{"interleaved": interleaved, "shard": shard} for interleaved in (False, True) for shard in (False, True)]
TWEAKS = [
    {"cap": 25},
    {"views": True},
    {"static": True},
    {"unused": True},
    {"unused": True, "views": True},
    {"unused": True, "zeros": True},
    {"unused": True, "zeros": True, "views": True},
    {"several": True, "scheduled": True},
    {"reduce_scatter": True},
]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("options", SCHEDULES, ids=str)
def test_every_optimizer_equals_one_process_from_the_first_iteration(run, options, world):
    assert run(train_many, 4, list(OPTIMIZERS), [options], world=world) == [{}] * world


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("tweak", TWEAKS, ids=str)
def test_variants_equal_one_process(run, tweak, world):
    variants = [{**options, **tweak} for options in SCHEDULES]
    assert run(train_many, 5, ["momentum", "adam"], variants, world=world) == [{}] * world


def test_clipping_equals_one_process(run):
    variants = [{"clip": 0.5, "shard": shard, "reduce_scatter": rs} for shard in (False, True) for rs in (False, True)]
    assert run(train_many, 4, ["momentum", "adam"], variants, world=3) == [{}] * 3


class BesideNothing(nn.Linear):
    """A layer and a parameter without elements."""

    def __init__(self):
        super().__init__(3, 2)
        self.nothing = nn.Parameter(torch.ones(0))

    def forward(self, x):
        return super().forward(x) + self.nothing.sum()


def clip_by_the_greatest(ctx):
    subject, model = ctx.subject, BesideNothing()
    ddp = subject.DistributedDataParallel(model, bucket_cap_mb=0.00001)
    zero = subject.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1.0, overlap_with_ddp=True)
    hook = subject.default_hooks.allreduce_hook
    settings = {"max_norm": 0.5, "norm_type": float("inf")}
    ddp.register_comm_hook(None, subject.hook_with_zero_step(hook, ddp, zero, **settings))
    ddp(torch.full((2, 3), 4.0)).sum().backward()
    return zero.overlap.info.total_norm.item(), model.weight.grad.tolist()


def test_a_parameter_without_elements_is_no_part_of_the_greatest_norm(run):
    assert run(clip_by_the_greatest, world=2) == [(8.0, [[pytest.approx(0.5)] * 3] * 2)] * 2


def uneven(ctx, schedules, name, options):
    """Join over the model and the optimizer; compares live ranks in every iteration and all of them at the end."""
    found = {}
    divide = options.get("divide_by_initial", True)
    for schedule in schedules:
        model = Net()
        alone = Alone(model, name, options)
        ddp, zero = build(ctx, model, name, options)
        scheduler = halving(zero) if options.get("scheduled") else None
        wrong = []
        listed = [zero, ddp] if options.get("zero_first") else [ddp] if options.get("ddp_only") else [ddp, zero]
        with ctx.subject.Join(listed, divide_by_initial_world_size=divide):
            for iteration in range(schedule[ctx.rank]):
                clear_gradients(ddp, options, iteration)
                loss_of(ddp(batch(ctx.rank, iteration), uses_extra(options, ctx.rank, iteration))).backward()
                if scheduler:
                    scheduler.step()
                alone.step(schedule, iteration)
                wrong += [f"iteration {iteration}: {text}" for text in differences(model, alone)]
        for iteration in range(schedule[ctx.rank], max(schedule)):
            alone.step(schedule, iteration)
        wrong += [f"at the end: {text}" for text in differences(model, alone)]
        if wrong:
            found[schedule] = wrong
    return found


PAIRS = [pair for pair in itertools.product(range(4), repeat=2) if max(pair)]


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_uneven_pairs_equal_one_process(run, name, options):
    assert run(uneven, PAIRS, name, options, world=2) == [{}, {}]


UNEVEN_TWEAKS = [
    {"scheduled": True, "several": True},
    {"divide_by_initial": False},
    {"unused": True},
    {"unused": True, "zeros": True, "views": True},
    {"static": True},
    {"static": True, "given": True, "views": True},
    {"zero_first": True},
    {"ddp_only": True, "scheduled": True},
    {"reduce_scatter": True, "shard": True},
    {"clip": 0.5},
]


@pytest.mark.parametrize("tweak", UNEVEN_TWEAKS, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
def test_uneven_variants_equal_one_process(run, tweak, interleaved):
    if interleaved and "clip" in tweak:
        pytest.skip("the interleaved hook cannot clip")
    schedules = [(1, 2, 4), (4, 2, 1), (0, 3, 0), (2, 0, 3)]
    options = {"interleaved": interleaved, **tweak}
    assert run(uneven, schedules, "adam", options, world=3) == [{}] * 3


def fail_behind_an_unused_layer(ctx):
    """Rank 2 fails while the others wait to hear which gradients of an unused layer it keeps."""
    model = Net()
    unused = {id(parameter) for parameter in model.extra.parameters()}
    seen = []

    def hook(state, bucket):
        if ctx.rank == 2 and seen.count(True) > len(unused):
            raise ValueError("no more")
        seen.append(any(id(parameter) in unused for parameter in bucket.parameters()))
        return ctx.subject.default_hooks.allreduce_hook(state, bucket)

    ddp, zero = build(ctx, model, "momentum", {"unused": True, "interleaved": True, "hook": hook})

    def loop():
        with ctx.subject.Join([ddp, zero]):
            for number in range(1 + ctx.rank):
                loss_of(ddp(batch(ctx.rank, number))).backward()

    return caught(loop).kinds[0]


def test_a_rank_that_fails_is_named_by_those_who_wait_for_the_gradients_it_keeps(run):
    assert run(fail_behind_an_unused_layer, world=3) == ["PeerFailed", "PeerFailed", "ValueError"]


def test_uneven_on_four_ranks(run):
    schedules = [(0, 1, 2, 3), (3, 0, 3, 1)]
    options = {"interleaved": True, "shard": True, "scheduled": True}
    assert run(uneven, schedules, "momentum", options, world=4) == [{}] * 4


def in_a_subgroup(ctx, options):
    group = torch.distributed.new_group([1, 3])
    if ctx.rank not in (1, 3):
        return []
    return train(ctx, 4, "momentum", options, group, place=ctx.rank // 2, world=2)


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
def test_a_subgroup_whose_ranks_are_not_global_ranks(run, options):
    assert run(in_a_subgroup, options, world=4) == [[]] * 4


def hook_of_ones(state, bucket):
    """Returns a new tensor and leaves the bucket as it was."""
    future = torch.futures.Future()
    future.set_result(torch.ones_like(bucket.buffer()))
    return future


def out_of_place(ctx, interleaved):
    model = Net()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    ddp, _ = build(ctx, model, "sgd", {"interleaved": interleaved, "hook": hook_of_ones})
    loss_of(ddp(batch(ctx.rank, 0), True)).backward()
    return all(
        torch.equal(parameter, old - 0.125) and torch.equal(parameter.grad, torch.ones_like(parameter))
        for parameter, old in zip(model.parameters(), before, strict=True)
    )


@pytest.mark.parametrize("interleaved", [False, True])
def test_what_the_wrapped_hooks_future_holds_is_what_is_stepped(run, interleaved):
    assert run(out_of_place, interleaved, world=2) == [True, True]


def accumulating(ctx, interleaved):
    options = {"interleaved": interleaved}
    model = Net()
    alone = Alone(model, "momentum", options)
    ddp, _ = build(ctx, model, "momentum", options)
    found = []
    for iteration in range(3):
        ddp.zero_grad()
        kept = [parameter.detach().clone() for parameter in model.parameters()]
        with ddp.no_sync():
            loss_of(ddp(batch(ctx.rank, 2 * iteration), True)).backward()
        found += [not torch.equal(p, k) for p, k in zip(model.parameters(), kept, strict=True) if not torch.equal(p, k)]
        loss_of(ddp(batch(ctx.rank, 2 * iteration + 1), True)).backward()
        alone.step([9] * ctx.world, iteration, micro=2)
        found += differences(model, alone)
    return found


@pytest.mark.parametrize("interleaved", [False, True])
def test_no_sync_does_not_step(run, interleaved):
    assert run(accumulating, interleaved, world=2) == [[], []]


def regrouped(ctx, options):
    """DDP moves to another group: first one of the same ranks, then to two of the three. What is logged of each."""
    model = Net()
    alone = Alone(model, "adam", options)
    ddp, zero = build(ctx, model, "adam", options)
    same, fewer = torch.distributed.new_group([0, 1, 2]), torch.distributed.new_group([0, 2])
    found, said = [], []
    for iteration in range(6):
        if iteration == 2:
            ddp._update_process_group(same)
        if iteration == 4:
            ddp._update_process_group(fewer)
            if ctx.rank == 1:
                return found, said
        place, world = (ctx.rank, 3) if iteration < 4 else (ctx.rank // 2, 2)
        ddp.zero_grad()
        said.append(what_is_logged(loss_of(ddp(batch(place, iteration), True)).backward))
        alone.step([9] * world, iteration)
        if iteration < 4:  # what rank 1 owned starts anew afterwards
            found += [f"iteration {iteration}: {text}" for text in differences(model, alone)]
    held = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    both = [torch.empty_like(held) for _ in range(2)]
    torch.distributed.all_gather(both, held, group=fewer)
    return (found if torch.equal(*both) and zero.world_size == 2 else [*found, "ranks differ"]), said


@pytest.mark.parametrize("options", SCHEDULES[1:3], ids=str)
def test_the_step_follows_ddp_to_another_group_and_says_which_states_are_lost(run, options):
    found, said = zip(*run(regrouped, options, world=3), strict=True)
    assert found == ([],) * 3
    *before, left, _ = zip(said[0], said[2], strict=True)
    assert before == [([], [])] * 4
    assert any("start anew" in text for text in (*left[0], *left[1]))


def checkpointing(ctx, interleaved):
    """Train, consolidate, load into the ordinary optimizer and into another overlapped run."""
    options = {"interleaved": interleaved, "several": True}
    model = Net()
    alone = Alone(model, "adam", options)
    ddp, zero = build(ctx, model, "adam", options)
    early = caught(zero.state_dict).kinds[0]
    for iteration in range(3):
        ddp.zero_grad()
        loss_of(ddp(batch(ctx.rank, iteration), True)).backward()
        alone.step([9] * ctx.world, iteration)
    zero.consolidate_state_dict(to=1)
    saved = [zero.state_dict() if ctx.rank == 1 else None]
    torch.distributed.broadcast_object_list(saved, src=1)
    theirs = alone.optimizer.state_dict()
    found = [
        (index, key)
        for index, state in theirs["state"].items()
        for key, value in state.items()
        if not torch.allclose(saved[0]["state"][index][key], value, atol=1e-5)
    ]
    found += [group["lr"] for group in saved[0]["param_groups"] if group["lr"] not in (0.1, 0.0625)]
    for state in zero.optim.state.values():  # lose it, and get it back
        for value in state.values():
            value.zero_()
    zero.load_state_dict(saved[0])
    for iteration in range(3, 5):
        ddp.zero_grad()
        loss_of(ddp(batch(ctx.rank, iteration), True)).backward()
        alone.step([9] * ctx.world, iteration)
    return early, found + differences(model, alone)


@pytest.mark.parametrize("interleaved", [False, True])
def test_overlap_mode_can_be_checkpointed(run, interleaved):
    assert run(checkpointing, interleaved, world=3) == [("RuntimeError", [])] * 3


def order_of_collectives(ctx, options):
    from impl.tests.tracing import tracing  # this is a test of our own labels

    model = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(4)])
    ddp, zero = build(ctx, model, "momentum", {**options, "cap": 0.00001})
    for iteration in range(3):
        ddp.zero_grad()
        with tracing() as labels:
            loss_of(ddp(integers(2, 4, seed=iteration))).backward()
    short = []
    for label in labels:
        number = label.split("bucket ")[-1].split(",")[0].split(":")[0]
        short.append(f"B{number}" if label.startswith("overlap") else label)
    return short, zero._overlap_info.assigned_ranks_per_bucket


def test_the_sequential_schedule_reduces_everything_before_it_sends_anything(run):
    for labels, owners in run(order_of_collectives, {}, world=3):
        kinds = "".join("B" if label.startswith("B") else "R" for label in labels)
        assert kinds == "RRRRBBBB"
        assert [label for label in labels if label.startswith("B")] == ["B0", "B1", "B2", "B3"]
        assert owners == [{0}, {1}, {2}, {0}]


def test_the_interleaved_schedule_sends_a_bucket_behind_the_next_reduction(run):
    for labels, _ in run(order_of_collectives, {"interleaved": True}, world=3):
        assert "".join("B" if label.startswith("B") else "R" for label in labels) == "RRBRBRBB"


def sharding(ctx):
    """Four equal layers in one bucket on three ranks: more pieces than ranks."""
    model = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(4)])
    ddp, zero = build(ctx, model, "momentum", {"shard": True, "cap": 25})
    for iteration in range(3):
        ddp.zero_grad()
        loss_of(ddp(integers(2, 4, seed=iteration))).backward()
    info = zero._overlap_info
    return info.assigned_ranks_per_bucket, info.total_size, len(zero.optim.state)


def test_a_bucket_can_have_more_pieces_than_there_are_ranks(run):
    results = run(sharding, world=3)
    assert all(owners == [{0, 1, 2}] and total == 64 for owners, total, _ in results)
    assert sorted(count for _, _, count in results) == [1, 1, 2]


def what_grad_holds(ctx):
    model = Net()
    ddp, zero = build(ctx, model, "sgd", {"reduce_scatter": True, "shard": True})
    alone = Alone(model, "sgd", {})
    loss_of(ddp(batch(ctx.rank, 0), True)).backward()
    alone.step([1] * ctx.world, 0)
    own = {id(parameter) for parameter in zero.shard.owned_by(ctx.rank)}
    return [
        torch.allclose(mine.grad, theirs.grad if id(mine) in own else torch.zeros_like(mine))
        for mine, theirs in zip(model.parameters(), alone.model.parameters(), strict=True)
    ]


def test_with_reduce_scatter_grad_is_the_average_on_the_owner_and_zero_elsewhere(run):
    assert all(all(row) for row in run(what_grad_holds, world=3))


def in_columns(_state, bucket):
    """The average, every second element of a larger tensor."""
    buffer = bucket.buffer()
    dist.all_reduce(buffer)
    future = torch.futures.Future()
    future.set_result(torch.stack([buffer / dist.get_world_size(), buffer], dim=1)[:, 0])
    return future


def in_doubles(_state, bucket):
    """The average, in another dtype than the bucket."""
    buffer = bucket.buffer().double()
    dist.all_reduce(buffer)
    future = torch.futures.Future()
    future.set_result(buffer / dist.get_world_size())
    return future


def clip_what_is_answered_otherwise(ctx, hook):
    model = Net()
    alone = Alone(model, "sgd", {"clip": 0.5})
    ddp, _zero = build(ctx, model, "sgd", {"clip": 0.5, "hook": hook})
    loss_of(ddp(batch(ctx.rank, 0), True)).backward()
    alone.step([1] * ctx.world, 0)
    norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm().item()
    return differences(model, alone), norm


@pytest.mark.parametrize("hook", [in_columns, in_doubles])
def test_a_hooks_result_that_is_not_in_one_piece_or_of_another_dtype_is_clipped_too(run, hook):
    for wrong, norm in run(clip_what_is_answered_otherwise, hook, world=2):
        assert not wrong
        assert norm == pytest.approx(0.5, rel=1e-5)


def refusals(ctx):
    subject = ctx.subject
    model = Net()
    ddp = subject.DistributedDataParallel(model)
    lowered = subject.DistributedDataParallel(model, mixed_precision=subject._MixedPrecision(torch.bfloat16))
    plain = subject.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    zero = subject.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, overlap_with_ddp=True)
    stranger = subject.ZeroRedundancyOptimizer(Net().parameters(), torch.optim.SGD, lr=0.1, overlap_with_ddp=True)
    hook = subject.default_hooks.allreduce_hook
    said = {}
    for factory in (subject.hook_with_zero_step, subject.hook_with_zero_step_interleaved):
        said[factory.__name__] = [
            caught(factory, hook, ddp, plain, True).kinds[0],
            caught(factory, hook, ddp, stranger).kinds[0],
            caught(factory, hook, ddp, object()).kinds[0],
            caught(factory, None, ddp, zero).kinds[0],
            caught(factory, hook_of_ones, ddp, zero, reduce_scatter=True).kinds[0],
            caught(factory, hook, lowered, zero).kinds[0],
        ]
    said["clip"] = caught(subject.hook_with_zero_step, hook, ddp, zero, max_norm=-1.0).kinds[0]
    untouched = zero._overlap_info.shard_buckets, zero._overlap_info.total_size
    made = subject.hook_with_zero_step(hook, ddp, zero, True)
    touched = zero._overlap_info.shard_buckets, zero._overlap_info.total_size
    alive = weakref.ref(ddp)
    del ddp
    gc.collect()
    return said, untouched, touched, alive() is None, made is not None


def test_refusals_and_what_they_leave(run):
    classes = ["ValueError", "ValueError", "TypeError", "TypeError", "ValueError", "ValueError"]
    said = {"hook_with_zero_step": classes, "hook_with_zero_step_interleaved": classes, "clip": "ValueError"}
    assert run(refusals, world=2) == [(said, (False, None), (True, 0), True, True)] * 2


def freezing(ctx):
    model = Net()
    ddp, _ = build(ctx, model, "sgd", {"cap": 0.00001})
    loss_of(ddp(batch(ctx.rank, 0), True)).backward()
    model.first.weight.requires_grad_(False)
    return caught(lambda: loss_of(ddp(batch(ctx.rank, 0), True)).backward()).kinds[0]


def test_freezing_a_parameter_later_is_refused(run):
    assert run(freezing, world=2) == ["RuntimeError"] * 2


def user_moves_a_parameter(ctx):
    """``parameter.data = ...`` between iterations leaves the flat tensor behind."""
    options = {"cap": 25}
    model = Net()
    alone = Alone(model, "momentum", options)
    ddp, _ = build(ctx, model, "momentum", options)
    found = []
    for iteration in range(4):
        ddp.zero_grad()
        loss_of(ddp(batch(ctx.rank, iteration), True)).backward()
        alone.step([9] * ctx.world, iteration)
        model.third.weight.data = model.third.weight.detach().clone()
        found += differences(model, alone)
    return found


def test_a_parameter_that_the_user_moves_is_found_again(run):
    assert run(user_moves_a_parameter, world=2) == [[], []]


def two_models(ctx, schedule, interleaved):
    """Two models with a hook each in one context, the forwards of both before the backward of either."""
    options = {"interleaved": interleaved}
    models = [Net(), Net()]
    with torch.no_grad():
        models[1].first.weight.mul_(2)
    alone = [Alone(models[0], "adam", options), Alone(models[1], "momentum", options)]
    made = [build(ctx, models[0], "adam", options), build(ctx, models[1], "momentum", options)]
    with ctx.subject.Join([ddp for ddp, _ in made]):
        for iteration in range(schedule[ctx.rank]):
            losses = []
            for ddp, _ in made:
                ddp.zero_grad()
                losses.append(loss_of(ddp(batch(ctx.rank, iteration), True)))
            sum(losses).backward()
    for iteration in range(max(schedule)):
        for one in alone:
            one.step(schedule, iteration)
    return [text for model, one in zip(models, alone, strict=True) for text in differences(model, one)]


@pytest.mark.parametrize("interleaved", [False, True])
def test_two_models_in_one_context(run, interleaved):
    for schedule in [(1, 3), (3, 0)]:
        assert run(two_models, schedule, interleaved, world=2) == [[], []]


def with_torchs_own_hook(ctx, interleaved):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    options = {"hook": allreduce_hook, "divide_by_initial": False, "interleaved": interleaved}
    return uneven(ctx, [(1, 3, 2), (0, 2, 3)], "momentum", options)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_hook_of_torchs_library_divides_by_the_active_ranks_too(run, interleaved):
    assert run(with_torchs_own_hook, interleaved, world=3) == [{}] * 3


def settings_before_the_first_backward(ctx):
    model = Net()
    zero = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, overlap_with_ddp=True)
    bad = caught(
        lambda: ctx.subject.ZeroRedundancyOptimizer(
            Net().parameters(), torch.optim.Adam, lr=-1.0, overlap_with_ddp=True
        )
    )
    return zero.param_groups[0]["lr"], bad.kinds[0]


def test_default_settings_show_and_bad_ones_are_refused_at_construction(run):
    assert run(settings_before_the_first_backward, world=1) == [(0.001, "ValueError")]


def a_smaller_group_for_the_state(ctx, options):
    """Gradients are averaged over four ranks; the state is shared by pairs of them."""
    pairs = [torch.distributed.new_group([0, 2]), torch.distributed.new_group([1, 3])]
    subject, schedule = ctx.subject, options["schedule"]
    model = Net()
    alone = Alone(model, "adam", options)
    ddp = subject.DistributedDataParallel(model, bucket_cap_mb=0.0001)
    kind, settings = OPTIMIZERS["adam"]
    zero = subject.ZeroRedundancyOptimizer(
        model.parameters(), kind, process_group=pairs[ctx.rank % 2], overlap_with_ddp=True, **settings
    )
    factory = subject.hook_with_zero_step_interleaved if options["interleaved"] else subject.hook_with_zero_step
    ddp.register_comm_hook(None, factory(subject.default_hooks.allreduce_hook, ddp, zero, True))
    scheduler = halving(zero)
    with ddp.join():
        for iteration in range(schedule[ctx.rank]):
            ddp.zero_grad()
            loss_of(ddp(batch(ctx.rank, iteration), True)).backward()
            scheduler.step()
    for iteration in range(max(schedule)):
        alone.step(schedule, iteration)
    return differences(model, alone)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("schedule", [(3, 3, 3, 3), (1, 2, 3, 0)])
def test_state_may_be_shared_by_fewer_ranks_than_average_gradients(run, schedule, interleaved):
    options = {"schedule": schedule, "interleaved": interleaved, "scheduled": True}
    assert run(a_smaller_group_for_the_state, options, world=4) == [[]] * 4


def consolidating_in_a_context(ctx, listed):
    """Rank 0 runs out after one iteration; the others consolidate at the beginning of their second."""
    model = Net()
    ddp, zero = build(ctx, model, "adam", {})
    said = None
    with ctx.subject.Join([ddp, zero] if listed else [ddp]):
        for iteration in range(1 if ctx.rank == 0 else 3):
            if iteration == 1:
                said = caught(zero.consolidate_state_dict, to=1)
            ddp.zero_grad()
            loss_of(ddp(batch(ctx.rank, iteration), True)).backward()
    return (said and said.kinds[0]), len(zero.state_dict()["state"]) if listed and ctx.rank == 1 else None


def test_consolidating_in_a_context_works_where_the_optimizer_is_listed(run):
    count = len(list(Net().parameters()))
    assert run(consolidating_in_a_context, True, world=3) == [(None, None), (None, count), (None, None)]
    refused = ("RuntimeError", None)
    assert run(consolidating_in_a_context, False, world=3) == [(None, None), refused, refused]


def consolidating_while_all_are_live(ctx):
    ddp, zero = build(ctx, Net(), "adam", {})
    said = []
    with ctx.subject.Join([ddp]):
        for iteration in range(2):
            ddp.zero_grad()
            loss_of(ddp(batch(ctx.rank, iteration), True)).backward()
            said.append(caught(zero.consolidate_state_dict))
    zero.consolidate_state_dict()
    return [str(one) for one in said]


def test_consolidating_in_a_context_that_does_not_list_the_optimizer_is_refused_though_nobody_has_run_out(run):
    for said in run(consolidating_while_all_are_live, world=2):
        assert all("Write Join([ddp, optimizer])" in one for one in said)


def consolidating_after_a_move(ctx):
    """In a context, before and after the backward with which the optimizer follows."""
    model = Net()
    ddp, zero = build(ctx, model, "adam", {})
    loss_of(ddp(batch(ctx.rank, 0), True)).backward()
    ddp._update_process_group(torch.distributed.new_group())
    with ctx.subject.Join([ddp, zero]):
        early = caught(zero.consolidate_state_dict)
        ddp.zero_grad()
        loss_of(ddp(batch(ctx.rank, 1), True)).backward()
        late = caught(zero.consolidate_state_dict)
    return str(early), late


def test_consolidating_between_a_move_and_the_next_backward_is_refused_within_a_context(run):
    for early, late in run(consolidating_after_a_move, world=2):
        assert "Consolidate after one iteration on the new group" in early
        assert late is None


def asking_for_an_old_state(ctx):
    ddp, zero = build(ctx, Net(), "adam", {})
    for iteration in range(4):
        ddp.zero_grad()
        loss_of(ddp(batch(ctx.rank, iteration), True)).backward()
        if iteration == 1:
            zero.consolidate_state_dict(0)
    return what_is_logged(zero.state_dict) if ctx.rank == 0 else []


def test_steps_in_backward_make_a_consolidated_state_old(run):
    (told,), _ = run(asking_for_an_old_state, world=2)
    assert "2 step(s) old" in told


def step_behind_a_penalty(ctx, options):
    """A penalty on all weights goes backward by itself, and then the loss does: what that says. Their sum is fine."""
    ddp, _ = build(ctx, Net(), "momentum", options)
    clear_gradients(ddp, options)
    loss = loss_of(ddp(batch(ctx.rank, 0), True))
    sum((weight**2).sum() for weight in ddp.parameters()).backward()
    error = caught(loss.backward)
    clear_gradients(ddp, options)
    penalty = sum((weight**2).sum() for weight in ddp.parameters())
    return error, caught((loss_of(ddp(batch(ctx.rank, 1), True)) + penalty).backward)


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
def test_a_second_backward_behind_a_penalty_that_was_stepped_by_itself_is_refused(run, options):
    for error, summed in run(step_behind_a_penalty, options, world=2):
        assert error is not None
        assert error.is_a(RuntimeError)
        assert "penalty" in error.text
        assert summed is None
