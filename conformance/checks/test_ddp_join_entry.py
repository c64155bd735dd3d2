"""DDP as a joinable: what it is, join() and join_hook(), their defaults and refusals."""

import inspect

import torch
import torch.distributed as dist

from conformance.api.checking import MANY, WORLDS, check
from conformance.fixtures import models
from conformance.fixtures.training import Job, assert_as_alone, ddp, gradient, iterate, logging_data, private, train
from conformance.ranks import caught

UP = {2: (1, 2), 3: (1, 2, 3), 4: (1, 2, 3, 4)}


def introduce(ctx):
    ranks = list(range(ctx.world))[ctx.world // 2 :]  # where it can, a group that does not start at global rank 0
    group = dist.new_group(ranks)
    if ctx.rank not in ranks:
        return None
    model = ddp(ctx, models.scalar(), process_group=group)
    return (
        isinstance(model, torch.nn.Module),
        isinstance(model, ctx.subject.Joinable),
        private(model, "_join_config").enable,
        model.join_device == next(model.parameters()).device,
        model.join_process_group is group,
        dist.get_world_size(model.join_process_group) == len(ranks),
    )


@check("DDPJ-001", worlds=WORLDS)
def test_ddp_is_a_module_and_a_disabled_joinable_of_its_own_group(ranks):
    for told in ranks(introduce)[ranks.world // 2 :]:
        assert told == (True, True, False, True, True, True)


def read_signature(ctx):
    arguments = inspect.signature(ctx.subject.DistributedDataParallel.join).parameters.values()
    return [(argument.name, argument.default) for argument in arguments if argument.name != "self"]


@check("DDPJ-002", worlds=(1,))
def test_join_takes_its_three_arguments_in_order_with_their_defaults(ranks):
    assert ranks(read_signature) == [
        [("divide_by_initial_world_size", True), ("enable", True), ("throw_on_early_termination", False)]
    ]


def train_both_ways(ctx, job):
    return [train_one_way_and_the_other(ctx, job, divide) for divide in (True, False)]


def train_one_way_and_the_other(ctx, job, divide):
    with_method = ddp(ctx, job.model(), **job.ddp)
    with_class = ddp(ctx, job.model(), **job.ddp)
    method = with_method.join(divide_by_initial_world_size=divide)
    exact_type = type(method) is ctx.subject.Join
    seen = iterate(ctx, with_method, job, method)
    context = ctx.subject.Join([with_class], divide_by_initial_world_size=divide)
    return exact_type, seen, iterate(ctx, with_class, job, context)


@check("DDPJ-003", worlds=MANY, beyond=False)
def test_join_is_a_join_context_over_this_model_alone(ranks):
    job = Job(models.scalar, models.divisible_scalar, UP[ranks.world])
    for mine in ranks(train_both_ways, job):
        for exact_type, by_method, by_class in mine:
            assert exact_type, "join() returns something else than a Join of this subject"
            assert by_method == by_class


@check("DDPJ-003", "DDPJ-002", worlds=MANY, beyond=False)
def test_a_disabled_join_trains_plainly(ranks):
    job = Job(models.Sum, models.divisible, (2,) * ranks.world, join={"enable": False}, lr=1.0)
    assert_as_alone(job, ranks(train, job))


def build_hooks(ctx):
    model = ddp(ctx, models.scalar())
    hooks = model.join_hook(), model.join_hook(divide_by_initial_world_size=False, junk=1)
    return [isinstance(hook, ctx.subject.JoinHook) for hook in hooks]


def train_beside_unknown_keywords(ctx, schedule):
    seen = []
    for keywords in ({"junk": 1}, {"divide_by_initial_world_size": False, "junk": 1}):
        model = ddp(ctx, models.scalar())
        job = Job(models.scalar, models.constant, schedule)
        steps = iterate(ctx, model, job, ctx.subject.Join([model], **keywords))
        seen.append([step["weight"][0] for step in steps])
    return seen


@check("DDPJ-004", worlds=MANY)
def test_join_hook_ignores_keywords_meant_for_others(ranks):
    assert ranks(build_hooks) == [[True, True]] * ranks.world


@check("DDPJ-004", "DDPJ-002", worlds=MANY, beyond=False)
def test_join_hook_reads_the_divide_setting_which_is_true_when_absent(ranks):
    schedule = UP[ranks.world]
    by_all = [12 * sum(count > i for count in schedule) / ranks.world for i in range(max(schedule))]
    for count, (absent, off) in zip(schedule, ranks(train_beside_unknown_keywords, schedule), strict=True):
        assert absent == by_all[:count]
        assert off == [12.0] * count


def build_wrong_hooks(ctx):
    hook = private(ctx.subject.ddp, "_DDPJoinHook")
    around_linear = caught(hook, models.scalar(), True)
    without_logger = ddp(ctx, models.scalar())
    private(without_logger, "logger")
    without_logger.logger = None
    return around_linear, caught(hook, without_logger, True)


@check("DDPJ-005", worlds=(1,))
def test_the_hook_refuses_anything_but_a_ddp_with_its_logger(ranks):
    for given, error in zip(("a linear layer", "a DDP without its logger"), ranks(build_wrong_hooks)[0], strict=True):
        assert error is not None, f"a hook around {given} was built"
        assert error.is_a(AssertionError), f"{given}: {error}"


def look_up_joining(ctx):
    model = ddp(ctx, models.scalar())
    before = logging_data(model).get("join_uneven_inputs", 0)
    model.join(enable=False)
    return before, logging_data(model).get("join_uneven_inputs", 0)


@check("DDPJ-006", worlds=(1, 2))
def test_making_the_context_is_logged(ranks):
    for before, after in ranks(look_up_joining):
        assert not before
        assert after == 1


PAIRS = ((False, True), (True, False), (True, True), (False, None))  # None: the keyword is left out


def train_in_two_contexts(ctx, schedule, ahead=False):
    """``ahead``: both are built before the first is entered."""
    told = []
    for pair in PAIRS:
        model = ddp(ctx, models.scalar())
        job = Job(models.scalar, models.constant, schedule)
        words = [{} if d is None else {"divide_by_initial_world_size": d} for d in pair]
        contexts = (ctx.subject.Join([model], **keywords) for keywords in words)
        seen = [iterate(ctx, model, job, context) for context in (list(contexts) if ahead else contexts)]
        model.zero_grad()
        model(torch.full((1, 1), 12.0 * (ctx.rank + 1))).sum().backward()
        told.append(([[step["weight"][0] for step in steps] for steps in seen], gradient(model.module.weight)))
    return told


@check("DDPJ-012", "DDPJ-034", "DDPJ-035", worlds=MANY, beyond=False)
def test_each_context_brings_its_own_divide_setting_and_leaves_none_behind(ranks):
    assert_own_settings(ranks)


@check("DDPJ-012", worlds=MANY, beyond=False)
def test_contexts_that_are_built_ahead_keep_their_own_divide_settings(ranks):
    assert_own_settings(ranks, ahead=True)


def assert_own_settings(ranks, *, ahead=False):
    schedule = UP[ranks.world]
    by_all = [12 * sum(count > i for count in schedule) / ranks.world for i in range(max(schedule))]
    rows = {True: by_all, None: by_all, False: [12.0] * max(schedule)}
    for rank, told in enumerate(ranks(train_in_two_contexts, schedule, ahead)):
        for (first, second), (both, plain) in zip(PAIRS, told, strict=True):
            assert both == [rows[first][: schedule[rank]], rows[second][: schedule[rank]]], f"rank {rank}"
            assert plain == 12 * sum(range(1, ranks.world + 1)) / ranks.world, f"rank {rank}, after the blocks"
