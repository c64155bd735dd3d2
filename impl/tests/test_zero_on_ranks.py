"""Our ZeroRedundancyOptimizer outside of any context: steps, views, groups, freezing and checkpoints on real ranks."""

import copy

import pytest
import torch
from torch import nn

from conformance.ranks import caught

from .zero_training import OPTIMIZERS, Alone, differences, give_gradients, groups_of, halving, logged, parameters

pytestmark = pytest.mark.slow


def make(ctx, params, name, **options):
    kind, settings = OPTIMIZERS[name]
    return ctx.subject.ZeroRedundancyOptimizer(params, kind, **settings, **options)


def ten_steps(ctx, options):
    found = {}
    for name in OPTIMIZERS:
        params = parameters(7)
        several, scheduled = options.get("several", False), options.get("scheduled", False)
        alone = Alone(params, name, several, scheduled)
        zero = make(ctx, groups_of(params, several), name, parameters_as_bucket_view=options.get("views", False))
        scheduler = halving(zero) if scheduled else None
        for iteration in range(10):
            give_gradients(params, iteration, options.get("unused", False))
            zero.step()
            if scheduler:
                scheduler.step()
            alone.step(iteration, options.get("unused", False))
            if wrong := differences(params, alone):
                found.setdefault(name, []).append((iteration, wrong))
    return found


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "options", [{}, {"views": True, "unused": True}, {"several": True, "scheduled": True}], ids="-".join
)
def test_ten_steps_equal_the_ordinary_optimizer_bit_by_bit(run, options, world):
    assert run(ten_steps, options, world=world) == [{}] * world


def more_ranks_than_parameters(ctx):
    params = parameters(2)
    alone = Alone(params, "adam")
    zero = make(ctx, params, "adam")
    for iteration in range(3):
        give_gradients(params, iteration)
        zero.step()
        alone.step(iteration)
    return len(zero.optim.state), differences(params, alone)


def test_ranks_may_own_nothing(run):
    results = run(more_ranks_than_parameters, world=4)
    assert sorted(count for count, _ in results) == [0, 0, 1, 1]
    assert all(wrong == [] for _, wrong in results)


def storages(ctx, views):
    params = parameters()
    before = [parameter.data_ptr() for parameter in params]
    zero = make(ctx, params, "momentum", parameters_as_bucket_view=views)
    for iteration in range(2):
        give_gradients(params, iteration)
        zero.step()
    kept = [parameter.data_ptr() for parameter in params] == before
    per_rank = [{p.untyped_storage().data_ptr() for p in zero.shard.owned_by(rank)} for rank in range(ctx.world)]
    moved = copy.deepcopy([parameter.data for parameter in params])
    for parameter, value in zip(params, moved, strict=True):
        parameter.data = value  # a user moves the parameters away
    alone = Alone(params, "sgd")
    give_gradients(params, 3)
    for group in zero.param_groups:
        group.update(momentum=0.0, weight_decay=0.0)
    zero.step()
    alone.step(3)
    return kept, [len(storage) for storage in per_rank], differences(params, alone)


def test_without_views_storage_stays_and_with_views_each_owner_has_one(run):
    for kept, counts, wrong in run(storages, False, world=2):
        assert kept
        assert min(counts) > 1
        assert wrong == []
    for kept, counts, wrong in run(storages, True, world=2):
        assert not kept
        assert counts == [1, 1]
        assert wrong == []


def large_and_small(ctx, views):
    """Parameters on both sides of the limit from which they travel in place, one of them not contiguous."""
    params = [nn.Parameter(torch.ones(shape)) for shape in [(600, 600), (3,), (700, 512), (5, 5)]]
    params[0].data = params[0].data.t().contiguous().t() if ctx.rank else params[0].data.t()
    zero = make(ctx, params, "sgd", parameters_as_bucket_view=views)
    for place, parameter in enumerate(params):
        parameter.grad = torch.arange(parameter.numel()).view(parameter.shape).remainder(7).float() * (place + 1)
    expected = [parameter.detach() - 0.125 * parameter.grad for parameter in params]
    zero.step()
    return [torch.equal(parameter, value) for parameter, value in zip(params, expected, strict=True)]


@pytest.mark.parametrize("views", [False, True])
def test_large_parameters_arrive_too(run, views):
    assert run(large_and_small, views, world=2) == [[True] * 4] * 2


def adding(ctx, views):
    params, more = parameters(4), [nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(2))]
    alone = Alone([*params, *more], "adam")
    alone.optimizer = torch.optim.Adam(alone.params[:4], lr=0.1)
    zero = make(ctx, params, "adam", parameters_as_bucket_view=views)
    owners = zero.shard.plan.owners
    for iteration in range(4):
        if iteration == 2:
            zero.add_param_group({"params": more, "lr": 0.5})
            alone.optimizer.add_param_group({"params": alone.params[4:], "lr": 0.5})
        give_gradients([*params, *more], iteration)
        zero.step()
        alone.step(iteration)
    return zero.shard.plan.owners[:4] == owners, len(zero.optim.state), differences([*params, *more], alone)


@pytest.mark.parametrize("views", [False, True])
def test_an_added_group_moves_no_earlier_parameter(run, views):
    results = run(adding, views, world=3)
    assert sum(count for _, count, _ in results) == 6
    assert all(kept and wrong == [] for kept, _, wrong in results)


def freezing(ctx, views):
    params = parameters()
    params[1].requires_grad_(False)
    alone = Alone(params, "adamw")
    zero = make(ctx, params, "adamw", parameters_as_bucket_view=views)
    counts = []
    with logged() as records:
        for iteration, flags in enumerate([(1, 0, 1), (0, 0, 1), (0, 1, 1), (1, 1, 1)]):
            for targets in (params, alone.params):
                give_gradients(targets, iteration)
                for place, flag in enumerate(flags):
                    targets[place].requires_grad_(bool(flag))
                    if not flag:
                        targets[place].grad = None
            zero.step()
            alone.optimizer.step()
            counts.append(len(records))
    return counts, differences(params, alone)


@pytest.mark.parametrize("views", [False, True])
def test_freezing_and_unfreezing_is_noticed_at_the_next_step(run, views):
    assert run(freezing, views, world=2) == [([0, 1, 2, 3], [])] * 2


def trained(ctx, name, steps, state=None):
    """Train ``steps`` from a fixed start, or go on from a state; returns everything on rank 0."""
    params = parameters() if state is None else [nn.Parameter(value.clone()) for value in state["params"]]
    zero = make(ctx, groups_of(params, True), name)
    done = 0
    if state is not None:
        untouched = copy.deepcopy(state["optimizer"])
        zero.load_state_dict(state["optimizer"])
        assert str(untouched) == str(state["optimizer"])
        assert all(len(state["optimizer"]["state"][index]) for index in untouched["state"])
        done = state["done"]
    for iteration in range(done, done + steps):
        give_gradients(params, iteration)
        zero.step()
    zero.consolidate_state_dict()
    if ctx.rank:
        assert "consolidate_state_dict" in caught(zero.state_dict).text
        return None
    return {"params": [p.detach() for p in params], "optimizer": zero.state_dict(), "done": done + steps}


# the user's optimizer keeps a count in an attribute, which no state dictionary carries
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "counting"])
def test_a_checkpoint_goes_on_in_other_worlds_and_in_the_ordinary_optimizer(run, name):
    first = run(trained, name, 2, world=3)[0]
    second = run(trained, name, 2, first, world=2)[0]

    alone = Alone(parameters(), name, several=True)
    for iteration in range(4):
        alone.step(iteration)
    assert list(second["optimizer"]["state"]) == list(alone.optimizer.state_dict()["state"])
    assert differences(second["params"], alone) == []

    plain = Alone([nn.Parameter(value) for value in second["params"]], name, several=True)
    plain.optimizer.load_state_dict(copy.deepcopy(second["optimizer"]))
    for iteration in range(4, 6):
        alone.step(iteration)
        plain.step(iteration)
    assert differences(plain.params, alone) == []
    third = run(trained, name, 2, second, world=1)[0]
    assert differences(third["params"], alone) == []


def sparse(ctx):
    weight = nn.Parameter(torch.ones(6, 2))
    bias = nn.Parameter(torch.ones(3))
    alone = Alone([weight, bias], "sgd")
    zero = ctx.subject.ZeroRedundancyOptimizer([weight, bias], torch.optim.SGD, lr=0.125)
    with ctx.subject.Join([zero]):
        for _ in range(3 if ctx.rank else 0):
            weight.grad = torch.sparse_coo_tensor([[1, 4]], [[1.0, 2.0], [3.0, 4.0]], (6, 2))
            zero.step()
    for _ in range(3):
        alone.params[0].grad = torch.sparse_coo_tensor([[1, 4]], [[1.0, 2.0], [3.0, 4.0]], (6, 2))
        alone.optimizer.step()
    return differences([weight, bias], alone)


def test_sparse_gradients_reach_the_joined_owner(run):
    assert run(sparse, world=2) == [[], []]


def state_sizes(ctx):
    model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(24)])
    zero = make(ctx, model.parameters(), "adam")
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    zero.step()
    mine = sum(value.nbytes for state in zero.optim.state.values() for value in state.values())
    whole = sum(2 * parameter.nbytes + 4 for parameter in model.parameters())
    return mine * ctx.world / whole


@pytest.mark.parametrize("world", [2, 3, 4])
def test_each_rank_holds_its_share_of_the_state(run, world):
    assert all(abs(share - 1) < 0.05 for share in run(state_sizes, world=world))


def refusals(ctx):
    zero_class = ctx.subject.ZeroRedundancyOptimizer
    one, sgd = nn.Parameter(torch.ones(2)), torch.optim.SGD

    def build(params, kind=sgd, **options):
        return caught(lambda: zero_class(params, kind, lr=0.1, **options)).kinds[0]

    class _FunctionalSGD:
        pass

    double = nn.Parameter(torch.ones(2, dtype=torch.float64))
    overlapping = zero_class([one], sgd, lr=0.1, overlap_with_ddp=True)
    plain = zero_class([one], sgd, lr=0.1)
    return {
        "bare": build(one),
        "number": build(3),
        "strings": build(["a"]),
        "mixture": build([one, {"params": [one]}]),
        "a set": build({one}),
        "named": build([("one", one)]),
        "empty": build([]),
        "keyless": build([{"lr": 1.0}]),
        "dtypes": build([one, double]),
        "sparse": build([nn.Parameter(torch.ones(2, 2).to_sparse())]),
        "functional": build([one], _FunctionalSGD),
        "no class": build([one], 3),
        "overlap add": caught(overlapping.add_param_group, {"params": [double]}).kinds[0],
        "overlap state": caught(overlapping.state_dict).kinds[0],
        "overlap load": caught(overlapping.load_state_dict, {}).kinds[0],
        "overlap consolidate": caught(overlapping.consolidate_state_dict).kinds[0],
        "overlap send": caught(overlapping._broadcast_params_from_rank, 0).kinds[0],
        "gradients": caught(plain._local_step, [one]).kinds[0],
        "late": caught(plain._init_zero_for_overlap, None).kinds[0],
        "partition length": caught(plain._partition_parameters, []).kinds[0],
        "partition stranger": caught(plain._partition_parameters, [[double], []]).kinds[0],
        "target": caught(plain.consolidate_state_dict, 7).kinds[0],
        "hook": caught(ctx.subject._ZeROJoinHook, object()).kinds[0],
        "step in overlap": overlapping.step(),
    }


def test_refusals(run):
    expected = {
        "bare": "TypeError", "number": "TypeError", "strings": "TypeError", "mixture": "TypeError",
        "a set": "TypeError", "named": "TypeError", "empty": "ValueError", "keyless": "ValueError",
        "dtypes": "ValueError",
        "sparse": "ValueError", "functional": "ValueError", "no class": "TypeError", "overlap add": "RuntimeError",
        "overlap state": "RuntimeError", "overlap load": "RuntimeError", "overlap consolidate": "RuntimeError",
        "overlap send": "AssertionError", "gradients": "AssertionError", "late": "AssertionError",
        "partition length": "ValueError", "partition stranger": "ValueError", "target": "ValueError",
        "hook": "AssertionError", "step in overlap": None,
    }
    assert run(refusals, world=2) == [expected] * 2


def ask_for_views_and_steps(ctx):
    with logged() as records:
        zero = make(ctx, parameters(2), "sgd", parameters_as_bucket_view=True, overlap_with_ddp=True)
        first = len(records)
        zero.step()
        zero.step()
    return first, len(records), {record.levelname for record in records}, zero.parameters_as_bucket_view


def test_views_are_ignored_and_step_does_nothing_in_overlap_mode_with_a_warning_each(run):
    assert run(ask_for_views_and_steps, world=1) == [(1, 3, {"WARNING"}, False)]


def stale_consolidation(ctx):
    params = parameters(2)
    zero = make(ctx, params, "adam")
    with logged() as records:
        give_gradients(params, 0)
        zero.step()
        zero.consolidate_state_dict()
        before = copy.deepcopy(zero.state_dict()["state"]) if ctx.rank == 0 else None
        quiet = len(records)
        zero.step()
        if ctx.rank:
            return None
        after = zero.state_dict()["state"]
    return quiet, len(records), str(before) == str(after)


def test_a_consolidated_state_is_a_snapshot_and_says_when_it_is_old(run):
    assert run(stale_consolidation, world=2)[0] == (0, 1, True)
