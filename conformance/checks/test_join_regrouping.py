"""Survivors that lose one more rank while they regroup, a rank that is left alone, what is refused to some models."""

import os
import signal

import torch
from torch import nn

from conformance.api import oracle
from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.training import ddp, numbers, private
from conformance.ranks import Finished, caught

LR = 0.125
STEPS = 2  # made by all ranks before some are lost


def data(rank, iteration):
    return models.divisible(rank, iteration)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def ended(run, survivors):
    """What the survivors return."""
    for rank in survivors:
        assert isinstance(run.outcomes[rank], Finished), run.summary()
    return [run.outcomes[rank].value for rank in survivors]


class Parting(models.Parts):
    def __init__(self):
        super().__init__("ab")


def alone(optimizer_of, schedule, module=None):
    """One process's parameters after these iterations, each by its number and the ranks that take part in it."""
    module = module or Parting()
    optimizer = optimizer_of(module.parameters())
    for iteration, ranks in schedule:
        means = oracle.averaged_gradients(module, [data(rank, iteration) for rank in ranks], len(ranks))
        for name, parameter in module.named_parameters():
            parameter.grad = means[name]
        optimizer.step()
    return numbers(module.named_parameters())


def iterate(ctx, model, optimizer, iteration):
    model.zero_grad()
    model(data(ctx.rank, iteration)).sum().backward()
    optimizer.step()


# -- one more is lost while the others regroup


class Fuse:
    """Ends its process when it is handed over, or when it has been."""

    burns = None

    def __init__(self):
        self.light("taken")

    def __reduce__(self):
        self.light("handed over")
        return Fuse, ()

    @staticmethod
    def light(when):
        if Fuse.burns == when:
            die()


class Fused(torch.optim.SGD):
    """Keeps a fuse for each parameter."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["fuse"] = Fuse()


def fused(parameters):
    return Fused(parameters, lr=LR, momentum=0.5)


class Met(Parting):
    """Has buffers that no float holds, which say whose they are."""

    def __init__(self):
        super().__init__()
        self.register_buffer("met", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("share", torch.zeros(1, dtype=torch.float64))

    def fill(self, rank):
        self.met.fill_(2**40 + rank)
        self.share.fill_(rank + 2**-40)


def lose_one_more(ctx, dies):
    """The last rank is lost in the third step, another while the others regroup, of whose steps it has made more if it
    is to hand its state over; who makes the third one, from whose buffers, and what comes of it."""
    regroup, model = ctx.subject.regroup, ddp(ctx, Met(), broadcast_buffers=False)
    optimizer = fused(model.parameters())
    for iteration in range(STEPS):
        iterate(ctx, model, optimizer, iteration)
    if ctx.rank == ctx.world - 1:
        die()
    lost = caught(iterate, ctx, model, optimizer, STEPS)
    further = dies == (ctx.rank, "handed over")
    if further:
        optimizer.step()
    model.module.fill(ctx.rank)
    if ctx.rank == dies[0]:
        Fuse.burns = dies[1]
    left = regroup(model, optimizer, STEPS + further)
    seen, its = numbers(model.module.named_buffers()), Met()
    its.fill(left.source)
    iterate(ctx, model, optimizer, STEPS)
    return lost, left.ranks, left.steps, numbers(model.module.named_parameters()), seen == numbers(its.named_buffers())


#: who is lost, and when
MEANWHILE = {"while it hands its state over": (0, "handed over"), "as it takes another's": (1, "taken")}


@check("JOIN-057", worlds=(3, 4), backends=("gloo",), beyond=False, deadline_s=30, scenarios=MEANWHILE)
def test_a_rank_that_is_lost_while_others_regroup_is_left_out_too(ranks, scenario):
    left = tuple(rank for rank in range(ranks.world - 1) if rank != scenario[0])
    everybody = range(ranks.world)
    expected = alone(fused, [*((number, everybody) for number in range(STEPS)), (STEPS, left)])
    run = ranks.run(lose_one_more, scenario, stall_s=20)
    for rank, (lost, there, steps, weights, same) in zip(left, ended(run, left), strict=True):
        assert lost is not None, f"rank {rank} has heard of no loss"
        assert (there, steps) == (left, STEPS), f"rank {rank}"
        assert weights == expected, f"rank {rank}"
        assert same, f"rank {rank}: buffers are not those of the rank that is the source"


# -- one more is lost between the calls of two models


def lose_one_between(ctx):
    """The last rank is lost, and the one before it when the first of two models has gone on; one context afterwards."""
    regroup, wrapped = ctx.subject.regroup, [ddp(ctx, Parting()) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5) for model in wrapped]
    for iteration in range(STEPS):
        for model, optimizer in zip(wrapped, optimizers, strict=True):
            iterate(ctx, model, optimizer, iteration)
    if ctx.rank == ctx.world - 1:
        die()
    lost = caught(iterate, ctx, wrapped[0], optimizers[0], STEPS)
    told = [regroup(wrapped[0], optimizers[0], STEPS).ranks]
    if ctx.rank == ctx.world - 2:
        die()
    told += [regroup(wrapped[place], optimizers[place], STEPS).ranks for place in (1, 0)]
    with ctx.subject.Join(wrapped):
        for model, optimizer in zip(wrapped, optimizers, strict=True):
            iterate(ctx, model, optimizer, STEPS)
    return lost, told, [numbers(model.module.named_parameters()) for model in wrapped]


@check("JOIN-057", worlds=(3, 4), backends=("gloo",), beyond=False, deadline_s=30)
def test_models_go_on_together_when_one_rank_more_is_lost_between_their_calls(ranks):
    everybody, left = tuple(range(ranks.world)), tuple(range(ranks.world - 2))
    schedule = [*((number, everybody) for number in range(STEPS)), (STEPS, left)]
    expected = alone(lambda each: torch.optim.SGD(each, lr=LR, momentum=0.5), schedule)
    for rank, (lost, told, found) in enumerate(ended(ranks.run(lose_one_between, stall_s=20), left)):
        assert lost is not None, f"rank {rank} has heard of no loss"
        assert told == [everybody[:-1], left, left], f"rank {rank}"
        assert found == [expected] * 2, f"rank {rank}"


# -- who is left alone, and fails by itself


def fail_alone(ctx, mirrored):
    """All but the first rank are lost; it goes on, fails by itself and goes on once more. None on the others."""
    regroup, model = ctx.subject.regroup, ddp(ctx, Parting())
    if mirrored:
        optimizer = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=LR, momentum=0.5)
        optimizer.keep_mirror()
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5)
    iterate(ctx, model, optimizer, 0)
    if ctx.rank:
        die()
    lost = None if ctx.world == 1 else caught(iterate, ctx, model, optimizer, 1)
    told = [regroup(model, optimizer, 1) for _ in range(2)]
    iterate(ctx, model, optimizer, 1)
    failed = caught(model, None)
    told.append(regroup(model, optimizer, 2))
    iterate(ctx, model, optimizer, 2)
    regrouped = [(left.ranks, left.steps, left.source) for left in told]
    return lost is not None, failed is not None, regrouped, numbers(model.module.named_parameters())


@check(
    "JOIN-057", worlds=(1, 2), backends=("gloo",), beyond=False, deadline_s=30,
    scenarios={"an ordinary optimizer": False, "copies of shards": True},
)  # fmt: skip
def test_who_is_left_alone_and_fails_goes_on_from_where_it_was(ranks, scenario):
    (told,) = ended(ranks.run(fail_alone, scenario, stall_s=20), [0])
    lost, failed, regrouped, weights = told
    assert (lost, failed) == (ranks.world > 1, True)
    assert regrouped == [((0,), 1, 0), ((0,), 1, 0), ((0,), 2, 0)]
    schedule = [(0, range(ranks.world)), (1, (0,)), (2, (0,))]
    assert weights == alone(lambda each: torch.optim.SGD(each, lr=LR, momentum=0.5), schedule)


# -- what is refused to one model, while others go on


class Saving(torch.optim.Optimizer):
    """Adds up gradients, which it saves and loads as a list of its own, and nothing else."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": LR})
        self.sums = [torch.zeros_like(parameter) for parameter in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        for parameter, total in zip(self.param_groups[0]["params"], self.sums, strict=True):
            total.add_(parameter.grad)
            parameter.sub_(total, alpha=LR)

    def state_dict(self):
        return {"sums": self.sums}

    def load_state_dict(self, state_dict):
        assert set(state_dict) == {"sums"}, f"what it has saved comes back as {sorted(state_dict)}"
        for total, value in zip(self.sums, state_dict["sums"], strict=True):
            total.copy_(value)


class Seeing(Parting):
    """Has a buffer of its own length on each rank, which DDP is to ignore."""

    def __init__(self, rank):
        super().__init__()
        self.register_buffer("seen", torch.ones(rank + 1))


def lose_two_at_once(ctx):
    """The last two ranks are lost together. By model: what the others hear of it, and where its parameters are."""
    regroup, ignored = ctx.subject.regroup, Seeing(ctx.rank)
    private(ctx.subject.DistributedDataParallel, "_set_params_and_buffers_to_ignore_for_model")(ignored, ["seen"])
    wrapped = [ddp(ctx, module) for module in (ignored, Parting(), Parting())]
    plain = Saving(wrapped[2].parameters())
    optimizers = [
        torch.optim.SGD(wrapped[0].parameters(), lr=LR),
        ctx.subject.ZeroRedundancyOptimizer(wrapped[1].parameters(), torch.optim.SGD, lr=LR),
        plain,
    ]
    optimizers[1].keep_mirror()
    for iteration in range(STEPS):
        for model, optimizer in zip(wrapped, optimizers, strict=True):
            iterate(ctx, model, optimizer, iteration)
    if ctx.rank == 0:
        plain.step()  # a step more than the others have made
    steps = [STEPS, STEPS, STEPS + (ctx.rank == 0)]
    if ctx.rank >= 2:
        die()
    lost = caught(iterate, ctx, wrapped[0], optimizers[0], STEPS)
    told = [caught(regroup, *each) for each in zip(wrapped, optimizers, steps, strict=True)]
    iterate(ctx, wrapped[2], plain, STEPS)
    return lost, told, [numbers(model.module.named_parameters()) for model in wrapped]


#: by model, what the refusal names; None where the model goes on
REFUSED = {"buffers of other shapes": "rank 1", "a shard that is lost with its copies": "rank 2", "an own list": None}


@check("JOIN-057", worlds=(4,), backends=("gloo",), beyond=False, deadline_s=30)
def test_what_one_model_cannot_go_on_from_is_named_and_the_next_model_goes_on(ranks):
    everybody = range(ranks.world)
    made = [(iteration, everybody) for iteration in range(STEPS)]
    plain = alone(lambda each: torch.optim.SGD(each, lr=LR), made)
    own = alone(Saving, [*made, made[-1], (STEPS, range(2))])
    for rank, (lost, told, found) in enumerate(ended(ranks.run(lose_two_at_once, stall_s=20), range(2))):
        assert lost is not None, f"rank {rank} has heard of no loss"
        for (which, names), error in zip(REFUSED.items(), told, strict=True):
            assert (error is not None) == (names is not None), f"rank {rank}, {which}: {error or 'goes on'}"
            if error is not None:
                assert error.is_a(RuntimeError), f"rank {rank}, {which}: {error}"
                assert names in error.text, f"rank {rank}, {which}: {error}"
        assert found == [plain, plain, own], f"rank {rank}"


# -- one survivor has seen what another has not


def lose_one_behind_a_new_gradient(ctx):
    """A frozen parameter has a gradient in the second step for the first time. In it the last rank is lost: one of the
    others has stepped its shard by then, another not. The parameters when both have made that step."""
    regroup, module = ctx.subject.regroup, Parting()
    frozen = module.parts["b"].weight.requires_grad_(False)
    model, told = ddp(ctx, module), None
    optimizer = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=LR, momentum=0.5)
    optimizer.keep_mirror()

    def train(iteration):
        model.zero_grad()
        model(data(ctx.rank, iteration)).sum().backward()
        if iteration:
            frozen.grad = torch.ones_like(frozen)
        if ctx.rank == 2 and iteration:
            die()
        if ctx.rank == told:
            raise ctx.subject.PeerFailed("told by other means")
        optimizer.step()

    train(0)
    told = 0
    lost = caught(train, 1)
    told = None
    left = regroup(model, optimizer, 1)
    train(1)
    return lost, left.steps, numbers(model.module.named_parameters())


@check("JOIN-057", worlds=(3,), backends=("gloo",), beyond=False, deadline_s=30)
def test_what_one_survivor_has_seen_of_a_step_that_nobody_makes_is_forgotten(ranks):
    module = Parting()
    frozen = module.parts["b"].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=0.5)
    for iteration, there in enumerate((3, 2)):
        means = oracle.averaged_gradients(module, [data(rank, iteration) for rank in range(there)], there)
        for name, parameter in module.named_parameters():
            parameter.grad = means.get(name)
        if iteration:
            frozen.grad = torch.ones_like(frozen)
        optimizer.step()
    for rank, (lost, steps, weights) in enumerate(ended(ranks.run(lose_one_behind_a_new_gradient, stall_s=20), (0, 1))):
        assert lost is not None, f"rank {rank} has heard of no loss"
        assert steps == 1, f"rank {rank}"
        assert weights == numbers(module.named_parameters()), f"rank {rank}"


# -- parameters with one memory, whose owner is lost while it sends them


NUMEL = 1 << 18  # as large as what is sent from where it lies


class Tied(nn.Module):
    """Two large parameters with one memory."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.ones(NUMEL))
        self.square = nn.Parameter(self.rows.detach().view(512, 512))

    def forward(self, factor):
        return (factor * self.rows).sum() + (2 * factor * self.square).sum()


def lose_the_owner(ctx):
    """The owner of both is lost before it steps; the values at the end, and whether each parameter has the same."""
    regroup, model = ctx.subject.regroup, ddp(ctx, Tied())
    optimizer = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=LR, momentum=0.5)
    optimizer.keep_mirror()
    owner = next(rank for rank in range(ctx.world) if private(optimizer, "_partition_parameters")()[rank][0]["params"])

    def train(iteration):
        model.zero_grad()
        model(float(12 * (1 + ctx.rank + iteration))).backward()
        if ctx.rank == owner and iteration == 1:
            die()
        optimizer.step()

    train(0)
    lost = caught(train, 1)
    assert regroup(model, optimizer, 1).steps == 1, "from the first step on"
    train(2)
    return lost, model.module.rows.unique().tolist(), torch.equal(model.module.rows, model.module.square.view(-1))


@check("JOIN-057", worlds=(2,), backends=("gloo",), beyond=False, deadline_s=30)
def test_parameters_with_one_memory_keep_it_when_their_owner_is_lost(ranks):
    run = ranks.run(lose_the_owner, stall_s=20)
    survivors = [rank for rank, end in enumerate(run.outcomes) if isinstance(end, Finished)]
    assert len(survivors) == ranks.world - 1, run.summary()
    module = Tied()
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=0.5)
    for iteration, there in ((0, range(ranks.world)), (2, survivors)):
        factor = sum(12 * (1 + rank + iteration) for rank in there) / len(there)
        module.rows.grad, module.square.grad = torch.full((NUMEL,), factor), torch.full((512, 512), 2 * factor)
        optimizer.step()
    for rank, (lost, values, tied) in zip(survivors, ended(run, survivors), strict=True):
        assert lost is not None, f"rank {rank} has heard of no loss"
        assert (values, tied) == (module.rows.unique().tolist(), True), f"rank {rank}"


# -- copies that cannot be made


class Handing(torch.optim.SGD):
    """Keeps a function for each parameter."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["of"] = lambda: None


def copy_what_cannot_travel(ctx):
    """What is said to copies of states that cannot leave their process; the parameters after a further step."""
    model = ddp(ctx, Parting())
    optimizer = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), Handing, lr=LR)
    iterate(ctx, model, optimizer, 0)
    refused = caught(optimizer.keep_mirror)
    iterate(ctx, model, optimizer, 1)
    return refused, numbers(model.module.named_parameters())


@check("JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False)
def test_after_copies_that_are_refused_training_goes_on_without(ranks):
    assert ranks.subject.regroup
    everybody = range(ranks.world)
    expected = alone(lambda each: torch.optim.SGD(each, lr=LR), [(0, everybody), (1, everybody)])
    for rank, (refused, weights) in enumerate(ranks(copy_what_cannot_travel)):
        assert refused is not None, f"rank {rank}: copies of a function are kept"
        assert refused.is_a(TypeError), f"rank {rank}: {refused}"
        assert weights == expected, f"rank {rank}"


def fail_to_copy_in_a_context(ctx, joined):
    """The first rank's state cannot leave it, in a context in which the others train as well or have no inputs."""
    model, kind = ddp(ctx, Parting()), torch.optim.SGD if ctx.rank else Handing
    optimizer = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), kind, lr=LR)
    optimizer.keep_mirror()

    def train():
        with ctx.subject.Join([model, optimizer]):
            for iteration in range(0 if joined and ctx.rank else STEPS):
                iterate(ctx, model, optimizer, iteration)

    error = caught(train)
    if ctx.rank:
        ctx.store.set(f"{ctx.rank} is told", "")
    else:  # stays there until they are
        ctx.store.wait([f"{rank} is told" for rank in range(1, ctx.world)])
    return error


@check(
    "JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False,
    scenarios={"all train": False, "the others joined": True},
)  # fmt: skip
def test_copies_that_fail_on_one_rank_are_waited_for_by_none(ranks, scenario):
    assert ranks.subject.regroup
    first, *others = ranks(fail_to_copy_in_a_context, scenario)
    assert first is not None, "copies of a function are kept"
    assert first.is_a(TypeError), first
    for rank, error in enumerate(others, 1):
        assert error is not None, f"rank {rank} has heard of no failure"
        assert "rank 0" in error.text, f"rank {rank}: {error}"
