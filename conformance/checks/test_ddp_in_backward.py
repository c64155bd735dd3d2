"""Optimizers that step during backward: attached to parameters, or fused into the reduction."""

import functools

import torch
from torch import nn

from conformance.api import oracle
from conformance.api.checking import MANY, WORLDS, NotRun, check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import TINY_MIB, done
from conformance.fixtures.observing import (
    asks_for_accelerator,
    assert_refused,
    mean_of_all,
    mine,
    or_lacks_accelerator,
    takes,
    wrapped,
)
from conformance.fixtures.training import gradients, numbers, parameters, private
from conformance.ranks import caught

ITERATIONS = 3
MOMENTUM = {"lr": 1.0, "momentum": 1.0}


def attach(optimizer, chosen, **options):
    """Let ``optimizer`` step each of the chosen parameters in backward, as torch's own helper attaches it."""
    try:
        from torch.distributed.optim import _apply_optimizer_in_backward
    except ImportError as missing:
        raise NotRun(f"this torch cannot attach optimizers to parameters: {missing}") from missing
    _apply_optimizer_in_backward(optimizer, chosen, options)


def alone(model, optimizer_of, world, chosen=lambda _name: True):
    """One process: train ``chosen`` parameters of ``model`` on the averages; parameters after each iteration."""
    optimizer = optimizer_of([p for name, p in model.named_parameters() if chosen(name)])
    steps = oracle.train_alone(model, optimizer, [ITERATIONS] * world, models.divisible)
    return [numbers(state.items()) for state in steps]


class Counted(torch.optim.SGD):
    """SGD that counts its steps, over all its instances in this process."""

    steps = 0

    def step(self, closure=None):
        Counted.steps += 1
        return super().step(closure)


# -- DDP-129, DDP-132: averages, in backward, once


def train_attached(ctx, names, late="", delayed=()):
    """Parameters and gradients after each iteration, and the number of optimizer steps in all of them.

    ``late``: what has been done to the model when its optimizers are attached.
    """
    Counted.steps = 0
    model = models.Sum(4).to(ctx.device)
    chosen = [model.get_parameter(name) for name in names]
    if not late:
        attach(Counted, chosen, **MOMENTUM)
    for parameter in chosen:
        parameter.requires_grad_(late != "thawed")
    options = {}
    if delayed:
        takes(ctx, "delay_all_reduce_named_params", "param_to_hook_all_reduce")
        options["delay_all_reduce_named_params"] = [(name, model.get_parameter(name)) for name in delayed]
        options["param_to_hook_all_reduce"] = model.get_parameter(names[0])
    ddp = wrapped(ctx, model, bucket_cap_mb=TINY_MIB, **options)
    if late in ("evaluated", "trained"):
        with torch.set_grad_enabled(late == "trained"):
            output = ddp(models.divisible(ctx.rank, 0).to(ctx.device)).sum()
        if late == "trained":
            output.backward()
    for parameter in chosen:
        parameter.requires_grad_(True)
    if late:
        attach(Counted, chosen, **MOMENTUM)
    seen = []
    for iteration in range(ITERATIONS):
        ddp.zero_grad(set_to_none=True)
        ddp(models.divisible(ctx.rank, iteration).to(ctx.device)).sum().backward()
        seen.append((parameters(ddp), gradients(ddp)))
    return seen, Counted.steps


def train_attached_or_lack(ctx, names, late="", delayed=()):
    return or_lacks_accelerator(ctx, lambda: train_attached(ctx, names, late, delayed))


ALL = [name for name, _ in models.Sum(4).named_parameters()]
SOME = {"all parameters": ALL, "some": ALL[1:4]}


def assert_stepped_with_averages(told, names, world):
    expected = alone(models.Sum(4), lambda chosen: torch.optim.SGD(chosen, **MOMENTUM), world, names.__contains__)
    for rank, (seen, steps) in enumerate(told):
        for iteration, (held, found) in enumerate(seen):
            assert held == expected[iteration], f"rank {rank}, iteration {iteration}"
            for name, gradient in found.items():
                assert (gradient is None) == (name in names), f"rank {rank}: gradient of {name} is {gradient}"
        assert steps == ITERATIONS * len(names), f"{steps} steps on rank {rank}: the original hooks fired as well"


@check("DDP-129", worlds=WORLDS, beyond=False, scenarios=SOME)
def test_attached_optimizers_step_once_with_the_average_and_drop_the_gradient(ranks, scenario):
    told = ranks(train_attached_or_lack, scenario)
    assert_stepped_with_averages(told, scenario, ranks.world)


@check("DDP-129", worlds=(1, 2, 3))
def test_optimizers_of_delayed_parameters_step_with_the_average_too(ranks):
    assert_stepped_with_averages(ranks(train_attached_or_lack, ALL, "", ALL[3:5]), ALL, ranks.world)


def attach_to_what_is_frozen(ctx, delayed):
    """A frozen parameter with an optimizer, and its gradient, which is the rank's own, after two iterations."""
    model = nn.Sequential(models.scalar(), models.scalar(), models.scalar()).to(ctx.device)
    first, second, frozen = model.parameters()
    attach(torch.optim.SGD, [second, frozen], lr=1.0)
    frozen.requires_grad_(False)
    frozen.grad = torch.full_like(frozen, 2.0 + ctx.rank)
    options = {}
    if delayed:
        takes(ctx, "delay_all_reduce_named_params", "param_to_hook_all_reduce")
        options = {"delay_all_reduce_named_params": [("2.weight", frozen)], "param_to_hook_all_reduce": first}
    ddp = wrapped(ctx, model, **options)
    for _ in range(2):
        ddp(mine(ctx)).sum().backward()
    return frozen.item(), frozen.grad.item() if frozen.grad is not None else None


def attach_to_what_is_frozen_or_lack(ctx, delayed):
    return or_lacks_accelerator(ctx, lambda: attach_to_what_is_frozen(ctx, delayed))


@check("DDP-058", worlds=MANY, scenarios={"beside the buckets": False, "delayed": True})
def test_an_optimizer_of_what_is_frozen_leaves_it_and_its_gradient_alone(ranks, scenario):
    for rank, found in enumerate(ranks(attach_to_what_is_frozen_or_lack, scenario)):
        assert found == (1.0, 2.0 + rank), f"rank {rank}: the frozen parameter and its gradient are {found}"


class Faster(torch.optim.SGD):
    """From its second step on it goes by both rates together."""

    def step(self, closure=None):
        super().step(closure)
        self.param_groups[0]["lr"] = sum(RATES)


RATES = (0.25, 0.5)


def attach_two(ctx, second):
    """Two optimizers at the same parameters, of which one comes in that iteration; these after each iteration."""
    model = models.Sum(2).to(ctx.device)
    attach(torch.optim.SGD, list(model.parameters()), lr=RATES[0])
    ddp = wrapped(ctx, model, bucket_cap_mb=TINY_MIB)
    seen = []
    for iteration in range(ITERATIONS):
        if iteration == second:
            attach(torch.optim.SGD, list(model.parameters()), lr=RATES[1])
        ddp(models.divisible(ctx.rank, iteration).to(ctx.device)).sum().backward()
        seen.append(parameters(ddp))
    return seen


def attach_two_or_lack(ctx):
    return or_lacks_accelerator(ctx, lambda: [attach_two(ctx, second) for second in (0, 1)])


@check("DDP-129", "DDP-130", worlds=WORLDS, beyond=False)
def test_each_of_two_attached_optimizers_steps(ranks):
    both = alone(models.Sum(2), lambda chosen: torch.optim.SGD(chosen, lr=sum(RATES)), ranks.world)
    late = alone(models.Sum(2), lambda chosen: Faster(chosen, lr=RATES[0]), ranks.world)
    assert ranks(attach_two_or_lack) == [[both, late]] * ranks.world


def train_attached_or_refuse(ctx):
    if ctx.device.type != "cpu":
        raise NotRun("this is about training without an accelerator, and there is one")
    told = []
    error = caught(lambda: told.append(train_attached(ctx, ALL)))
    return error, told


@check("DDP-132", worlds=(1, 2, 3))
def test_attached_optimizers_work_on_the_cpu_or_ask_for_an_accelerator(ranks):
    outcomes = ranks(train_attached_or_refuse)
    if all(error is None for error, _ in outcomes):
        assert_stepped_with_averages([told[0] for _, told in outcomes], ALL, ranks.world)
        return
    errors = [error for error, _ in outcomes]
    assert_refused(errors, RuntimeError)
    assert all(map(asks_for_accelerator, errors)), errors
    ranks.at_limit("optimizers in backward need an accelerator")


# -- DDP-130: found late, and only on managed parameters


@check("DDP-130", worlds=(1, 2, 3))
def test_optimizers_attached_after_wrapping_count_too(ranks):
    assert_stepped_with_averages(ranks(train_attached_or_lack, ALL[:2], "wrapped"), ALL[:2], ranks.world)


@check("DDP-130", worlds=MANY, beyond=False)
def test_optimizers_attached_when_the_model_has_run_count_too(ranks):
    for late in ("evaluated", "trained", "thawed"):
        assert_stepped_with_averages(ranks(train_attached_or_lack, ALL[:2], late), ALL[:2], ranks.world)


def negated(_state, bucket):
    """A hook that communicates nothing and turns the sign round."""
    return done(-bucket.buffer())


def attach_to_an_ignored_one(ctx):
    """One managed and one ignored scalar layer; the ignored one carries an optimizer. Then a hook is registered."""
    model = nn.Sequential(models.scalar(), models.scalar()).to(ctx.device)
    private(ctx.subject.DistributedDataParallel, "_set_params_and_buffers_to_ignore_for_model")(model, ["0.weight"])
    attach(torch.optim.SGD, [model[0].weight], lr=1.0)
    ddp = wrapped(ctx, model)
    ddp(mine(ctx)).sum().backward()
    first = parameters(ddp), gradients(ddp)
    with ddp.no_sync():
        ddp(mine(ctx)).sum().backward()
    first += (parameters(ddp)["0.weight"],)
    error = caught(ddp.register_comm_hook, None, negated)
    ddp.zero_grad(set_to_none=True)
    model[0].weight.data.fill_(1.0)
    ddp(mine(ctx)).sum().backward()
    return first, error, gradients(ddp)


@check("DDP-130", worlds=(1, 2, 3))
def test_an_optimizer_on_an_ignored_parameter_stays_local_and_takes_no_hook(ranks):
    for rank, ((held, found, stepped), error, hooked) in enumerate(ranks(attach_to_an_ignored_one)):
        local = 12.0 * (rank + 1)
        assert held["0.weight"] == [1.0 - local], f"rank {rank}"
        assert stepped == [1.0 - 2 * local], f"rank {rank}: its own backward steps it, synchronised or not"
        assert found["1.weight"] == [mean_of_all(ranks.world)], f"rank {rank}"
        assert error is None, f"the slot for a hook is taken: {error}"
        assert hooked["1.weight"] == [-local], f"rank {rank}: the hook was not used"


# -- DDP-131: beside a communication hook


def hook_and_attach(ctx):
    model = models.scalar().to(ctx.device)
    attach(torch.optim.SGD, model.parameters(), lr=1.0)
    ddp = wrapped(ctx, model)
    ddp.register_comm_hook(None, negated)
    error = caught(lambda: or_lacks_accelerator(ctx, lambda: ddp(mine(ctx)).sum().backward()))
    if error is not None and error.kinds[0] == "NotRun":
        raise NotRun(error.text)
    return error, parameters(ddp), gradients(ddp)


@check("DDP-131", worlds=(1, 2, 3))
def test_an_attached_optimizer_uses_the_hooks_result_or_refuses_the_hook(ranks):
    for rank, (error, held, found) in enumerate(ranks(hook_and_attach)):
        if error is not None:
            assert_refused([error], RuntimeError, "hook")
            ranks.at_limit("optimizers in backward and communication hooks exclude each other")
            continue
        assert held == {"weight": [1.0 + 12.0 * (rank + 1)]}, f"rank {rank}: the hook's result was not used"
        assert found == {"weight": None}


def only_the_latter_part():
    model = models.Parts("ab")
    model.use = "b"
    return model


def train_attached_in_part_or_lack(ctx):
    return or_lacks_accelerator(ctx, lambda: train_attached_in_part(ctx))


def train_attached_in_part(ctx):
    model = only_the_latter_part().to(ctx.device)
    attach(torch.optim.SGD, model.parameters(), lr=1.0)
    ddp = wrapped(ctx, model, find_unused_parameters=True)
    seen = []
    for iteration in range(ITERATIONS):
        ddp(models.divisible(ctx.rank, iteration).to(ctx.device)).sum().backward()
        seen.append(parameters(ddp))
    return seen


@check("DDP-129", worlds=MANY)
def test_parameters_behind_an_unused_one_are_stepped_as_well(ranks):
    expected = alone(only_the_latter_part(), lambda group: torch.optim.SGD(group, lr=1.0), ranks.world)
    assert ranks(train_attached_in_part_or_lack) == [expected] * ranks.world


# -- DDP-133: fused optimizers


FUSED = {
    "all parameters": (torch.optim.SGD, MOMENTUM, None),
    "some": (torch.optim.SGD, MOMENTUM, ALL[1:4]),
    "adam": (torch.optim.Adam, {"lr": 0.5, "betas": (0.5, 0.5)}, None),
}


def beside_an_ignored_one():
    """A model with one more layer, which DDP is to leave alone."""
    made = models.Sum(4)
    made.ignored = models.scalar(1.0)
    return made


def train_fused(ctx, optimizer, options, names, attached=()):
    module = beside_an_ignored_one()
    ignore = private(ctx.subject.DistributedDataParallel, "_set_params_and_buffers_to_ignore_for_model")
    ignore(module, ["ignored.weight"])
    ddp = wrapped(ctx, module, bucket_cap_mb=TINY_MIB)
    if attached:
        attach(optimizer, [ddp.module.get_parameter(name) for name in attached], **options)
    extra = {} if names is None else {"optim_params": [ddp.module.get_parameter(name) for name in names]}
    private(ddp, "_register_fused_optim")(optimizer, **extra, **options)
    seen = []
    for iteration in range(ITERATIONS):
        ddp.zero_grad(set_to_none=True)
        module.ignored.weight.grad = torch.ones_like(module.ignored.weight)
        ddp(models.divisible(ctx.rank, iteration).to(ctx.device)).sum().backward()
        seen.append(parameters(ddp))
    return seen


def train_each_fused(ctx):
    return {how: train_fused(ctx, *fused) for how, fused in FUSED.items()}


@check("DDP-133", worlds=(1, 2, 3))
def test_a_fused_optimizer_trains_like_one_process(ranks):
    told = ranks(train_each_fused)
    for how, (optimizer, options, names) in FUSED.items():
        chosen = ALL if names is None else names
        make = functools.partial(optimizer, **options)
        expected = alone(beside_an_ignored_one(), make, ranks.world, chosen.__contains__)
        for rank, seen in enumerate(each[how] for each in told):
            if optimizer is torch.optim.SGD:
                assert seen == expected, f"rank {rank}, {how}"
                continue
            for ours, theirs in zip(seen, expected, strict=True):  # functional and ordinary forms may round differently
                for name, values in theirs.items():
                    torch.testing.assert_close(torch.tensor(ours[name]), torch.tensor(values))


def fuse_beside_attached(ctx):
    told = []
    act = functools.partial(train_fused, ctx, torch.optim.SGD, MOMENTUM, ALL[3:], ALL[:3])
    return caught(lambda: told.append(or_lacks_accelerator(ctx, act))), told


@check("DDP-133", "DDP-131", worlds=MANY, beyond=False)
def test_a_fused_optimizer_steps_beside_attached_ones_or_refuses_them(ranks):
    expected = alone(beside_an_ignored_one(), lambda chosen: torch.optim.SGD(chosen, **MOMENTUM), ranks.world)
    for rank, (error, told) in enumerate(ranks(fuse_beside_attached)):
        if error is None:
            assert told == [expected], f"rank {rank}"
        else:
            assert_refused([error], RuntimeError, "hook")
            ranks.at_limit("a fused optimizer and attached ones exclude each other")


def no_hook(_state, bucket):
    return done(bucket.buffer())


class Bare(torch.optim.Optimizer):
    """A user's optimizer whose step takes nothing."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * parameter.grad)


def misuse_fused(ctx):
    """Twice, after a hook, before a hook, and what cannot step: a class that has to be asked for a loss, one that is no
    optimizer, and an optimizer that is made already."""
    sgd = (torch.optim.SGD, 1.0)
    twice, after, before, closure = (wrapped(ctx, models.scalar()) for _ in range(4))
    private(twice, "_register_fused_optim")(*sgd)
    second = caught(twice._register_fused_optim, torch.optim.SGD, 8.0)
    twice(mine(ctx)).sum().backward()
    after.register_comm_hook(None, no_hook)
    before._register_fused_optim(*sgd)
    return (
        [second, caught(after._register_fused_optim, *sgd),
         caught(before.register_comm_hook, None, no_hook)],
        caught(closure._register_fused_optim, torch.optim.LBFGS),
        caught(closure._register_fused_optim, int),
        caught(closure._register_fused_optim, torch.optim.SGD(closure.parameters(), lr=1.0)),
        parameters(twice)["weight"],
    )  # fmt: skip


@check("DDP-133", worlds=(1, 2))
def test_a_fused_optimizer_is_refused_twice_beside_a_hook_and_where_it_cannot_step(ranks):
    for slot, closure, no_optimizer, made, weight in ranks(misuse_fused):
        assert weight == [1.0 - mean_of_all(ranks.world)], "it is the first one that steps"
        assert_refused(slot, RuntimeError)
        for error, name in ((closure, "LBFGS"), (no_optimizer, "int")):
            assert error is not None, f"{name} was accepted"
            assert error.is_a(RuntimeError) or error.is_a(ValueError), error
        assert made is not None, "an optimizer was taken for a class"


def fuse_what_takes_nothing(ctx):
    """What registering it raises, and the weight after a backward."""
    model = wrapped(ctx, models.scalar())
    error = caught(private(model, "_register_fused_optim"), Bare, lr=1.0)
    model(mine(ctx)).sum().backward()
    return error, parameters(model)["weight"]


@check("DDP-133", worlds=(1, 2))
def test_a_users_optimizer_whose_step_takes_nothing_is_fused_or_refused(ranks):
    for error, weight in ranks(fuse_what_takes_nothing):
        if error is None:
            assert weight == [1.0 - mean_of_all(ranks.world)]
        else:
            assert error.is_a(RuntimeError) or error.is_a(ValueError), error
            assert weight == [1.0], "what was refused has stepped"
            ranks.at_limit("an optimizer whose step takes nothing is not fused")


def fuse_with_delayed_ones(ctx):
    """What fusing an optimizer over all parameters raises, of which some are delayed, and the weights in the end."""
    takes(ctx, "delay_all_reduce_named_params", "param_to_hook_all_reduce")
    line = nn.Sequential(models.scalar(), models.scalar())
    delayed = [("1.weight", line[1].weight)]
    model = wrapped(ctx, line, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=line[0].weight)
    register = private(model, "_register_fused_optim")
    error = caught(register, torch.optim.SGD, lr=1.0, optim_params=list(model.parameters()))
    ctx.meet("told")
    model(mine(ctx)).sum().backward()
    return error, parameters(model)


@check("DDP-133", worlds=(1, 2), beyond=False)
def test_a_fused_optimizer_with_delayed_parameters_steps_all_or_is_refused(ranks):
    for rank, (error, weights) in enumerate(ranks(fuse_with_delayed_ones)):
        assert error is None or error.is_a(RuntimeError), f"rank {rank}: {error}"
        weight = [1.0 if error is not None else 1.0 - mean_of_all(ranks.world)]
        assert weights == {"0.weight": weight, "1.weight": weight}, f"rank {rank}, {error or 'accepted'}"


def accumulate_fused(ctx):
    ddp = wrapped(ctx, models.scalar())
    private(ddp, "_register_fused_optim")(torch.optim.SGD, lr=1.0)
    held = []

    def train():
        with ddp.no_sync():
            ddp(mine(ctx)).sum().backward()
        held.append(parameters(ddp)["weight"])
        ddp(mine(ctx, 2)).sum().backward()
        held.append(parameters(ddp)["weight"])

    return caught(train), held


@check("DDP-133", worlds=MANY, beyond=False)
def test_a_fused_optimizer_steps_with_all_that_accumulated_or_refuses_no_sync(ranks):
    for rank, (error, held) in enumerate(ranks(accumulate_fused)):
        if error is None:
            assert held == [[1.0], [1.0 - 3 * mean_of_all(ranks.world)]], f"rank {rank}"
        else:
            assert_refused([error], RuntimeError, "no_sync")
            ranks.at_limit("a fused optimizer refuses accumulation")
