"""Ranks that are killed one after the other in a context, while those that are left go on: one model and several."""

import itertools
import os
import signal
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from conformance.api import oracle
from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import done
from conformance.fixtures.errors import BadBatch
from conformance.fixtures.sharding import Skipping, in_groups_of_one
from conformance.fixtures.training import ddp, numbers, private
from conformance.ranks import Finished, caught

STEPS = 7
MADE_BEFORE = 100  # steps that the program counts, too
LR, MOMENTUM = 0.125, 0.5
SGD = {"lr": LR, "momentum": MOMENTUM, "fused": True}  # whose states have to lie as their parameters do


def data(rank, iteration, place):
    return models.divisible(rank, 10 * place + iteration)


def lose_one_between_contexts(ctx):
    """All ranks leave a context by an error, and rank 1 is killed: what the others are told in the next one."""
    model = ddp(ctx, models.scalar())

    def train():
        with model.join():
            model(models.divisible_scalar(ctx.rank, 0)).sum().backward()
            if ctx.rank == 1 or not left:
                raise KeyError("planted")

    left = caught(train)
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return caught(train)


@check("JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=30)
def test_peers_of_a_rank_that_is_lost_after_a_context_failed_are_told_which_one_in_the_next(ranks):
    lost = ranks.subject.PeerFailed
    run = ranks.run(lose_one_between_contexts, stall_s=20)
    for rank, end in enumerate(run.outcomes):
        if rank == 1:
            continue
        assert isinstance(end, Finished), run.summary()
        assert end.value is not None, f"rank {rank}"
        assert end.value.is_a(lost), f"rank {rank}: {end.value}"
        assert "rank 1" in end.value.text, f"rank {rank}: {end.value}"


class Turned(models.Parts):
    """Its weights lie column by column, and one of its biases is a column of one of them."""

    def __init__(self):
        super().__init__("ab")
        for part in self.parts.values():
            part.weight.data = part.weight.data.t().contiguous().t()
        self.parts["b"].bias.data = self.parts["a"].weight.data[:, 1]
        for place, parameter in enumerate(self.parameters()):
            parameter.place = place

    def in_groups(self):
        """What its optimizers are given."""
        weights, biases = ([getattr(part, name) for part in self.parts.values()] for name in ("weight", "bias"))
        return [{"params": weights, "named": weights[1:]}, {"params": biases, "lr": LR / 2, "named": weights[:1]}]


class Fuse:
    """Kills its process when it is copied, if it is to."""

    armed = False

    def __reduce__(self):
        if Fuse.armed:
            os.kill(os.getpid(), signal.SIGKILL)
        return Fuse, ()


class Clock:
    """Counts steps, and is no number; it knows of which parameters."""

    ticks, places = 0, ()


class Tick(NamedTuple):
    number: int
    lr: float


class Finer(torch.optim.SGD):
    """Adds up in each parameter's state, in double precision, what it has stepped with, and keeps a fuse there. It has
    a clock, which it saves by itself with a list of its parameters, counts in its groups, and draws numbers of its own.
    """

    def __init__(self, params, **settings):
        super().__init__(params, **settings)
        self.clock, self.drawing = Clock(), torch.Generator().manual_seed(5)
        self.clock.places = [getattr(each, "place", None) for each in self.everything()]

    def everything(self):
        return [each for group in self.param_groups for each in group["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        self.clock.ticks += 1
        for group in self.param_groups:
            group["ticks"] = group.get("ticks", 0) + 1
            assert group["ticks"] == self.clock.ticks, f"{group['ticks']} steps by its group, {self.clock.ticks} in all"
        now, drawn = Tick(self.clock.ticks, LR), torch.rand(1, generator=self.drawing, dtype=torch.float64)
        for parameter, place in zip(self.everything(), self.clock.places, strict=True):
            assert place == parameter.place, f"a number of parameter {place} is that of parameter {parameter.place}"
            state = self.state[parameter]
            zeros = torch.zeros_like(parameter, dtype=torch.float64)
            state["sum"] = state.get("sum", zeros) + now.number + drawn + parameter.grad / 2**40
            assert state.get("last", Tick(0, LR)) == Tick(now.number - 1, LR), f"{state['last']} before {now}"
            state["last"], state["fuse"] = now, Fuse()

    def state_dict(self):
        return {**super().state_dict(), "ticks": self.clock.ticks, "places": self.clock.places}

    def load_state_dict(self, state_dict):
        self.clock.ticks, self.clock.places = state_dict["ticks"], list(state_dict["places"])
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})


class Death(NamedTuple):
    """Of a rank, before the backward of a model in an iteration; or behind it, if another rank stays a step behind."""

    rank: int
    iteration: int
    model: int = 0


@dataclass(frozen=True)
class Way:
    """What trains, and who is lost."""

    deaths: tuple[Death, ...]
    models: int = 1
    distance: int = 0  # of the copies of a shard from their owner; 0: the optimizers are ordinary ones
    joined: bool = True  # in a context
    behind: int | None = None  # is told of the death by other means, and does not make that step
    early: bool = False  # it is told before the backward of that step, which then fails everywhere else
    late: bool = False  # it is told behind that step, before it has counted it
    hooked: str = ""  # who counts a hook's iterations, which makes no difference: "the library" or "the program"
    copying: bool = False  # it is lost while the shards are copied, when all have the new parameters
    views: bool = False  # the parameters that a rank owns are views of one tensor

    @property
    def lost(self):
        return [death.rank for death in self.deaths]


def make(ctx, groups, distance, views=False):
    if not distance:
        return Finer(groups, **SGD)
    made = ctx.subject.ZeroRedundancyOptimizer(groups, Finer, parameters_as_bucket_view=views, **SGD)
    made.keep_mirror(distance)
    return made


def come_and_die(ctx, death, dies, ranks):
    """Nobody dies before the others have done all that comes before."""
    ctx.store.set(f"{ctx.rank} stands at {death}", "")
    if dies:
        ctx.store.wait([f"{rank} stands at {death}" for rank in ranks])
        os.kill(os.getpid(), signal.SIGKILL)


def lose_one_beside_one_behind(ctx, way, dies):
    ctx.store.set(f"{ctx.rank} has come", "")
    if dies:
        ctx.store.wait([f"{rank} has come" for rank in range(ctx.world)])
        ctx.store.set("dies", "")
        os.kill(os.getpid(), signal.SIGKILL)
    if ctx.rank == way.behind:
        ctx.store.wait(["dies"])
        raise ctx.subject.PeerFailed("told by other means")


def count_in_a_hook(ctx, model, way):
    """A hook that would compress gradients after more iterations than there are, or one whose iterations the program
    counts; its state."""
    if way.hooked == "the program":
        state, hook = Group(ctx.group), Average()
        state.iter = 0
    else:
        library = ctx.subject.powerSGD_hook
        state, hook = library.PowerSGDState(ctx.group, start_powerSGD_iter=10 * STEPS), library.powerSGD_hook
        if ctx.rank == way.behind:
            private(state, "rng").randint(0, 1)  # it may have drawn more numbers than others
    model.register_comm_hook(state, hook)
    return state


def go_on(ctx, way):
    """By model: from which step on which ranks took part, its parameters at the beginnings of these times and at the
    end, and the optimizer's sums; then what hooks and copies have counted, of which steps there are copies, what a hook
    would draw, whether the state of before is refused, and how many parameters that groups name are none of the model.
    """
    regroup, group, refused = ctx.subject.regroup, None, []
    wrapped = [ddp(ctx, Turned()) for _ in range(way.models)]
    counting = [count_in_a_hook(ctx, model, way) for model in wrapped] if way.hooked else []
    optimizers = [make(ctx, model.module.in_groups(), way.distance, way.views) for model in wrapped]
    for optimizer, to in itertools.product(optimizers if way.distance else (), range(ctx.world)):
        optimizer.consolidate_state_dict(to)
    steps, segments = [0] * way.models, [[(0, tuple(range(ctx.world)))] for _ in wrapped]
    weights = [[numbers(model.module.named_parameters())] for model in wrapped]

    def train():
        for iteration in range(STEPS):
            for place, (model, optimizer) in enumerate(zip(wrapped, optimizers, strict=True)):
                if steps[place] > iteration:
                    continue
                model.zero_grad()
                loss = model(data(ctx.rank, iteration, place)).sum()
                due = [each for each in way.deaths[: len(segments[place])] if each[1:] == (iteration, place)][-1:]
                dies = [each.rank for each in due] == [ctx.rank]
                Fuse.armed = dies and way.copying
                apart = way.behind is not None and due == [way.deaths[0]]
                apart &= len(segments[place]) == 1  # it may be made again, without the lost one
                if due and not apart and not way.copying:
                    come_and_die(ctx, due[0], dies, segments[place][-1][1])
                if apart and way.early:
                    lose_one_beside_one_behind(ctx, way, dies)
                loss.backward()
                if apart and not (way.early or way.late):
                    lose_one_beside_one_behind(ctx, way, dies)
                optimizer.step()
                if apart and way.late:
                    lose_one_beside_one_behind(ctx, way, dies)
                slow_down(optimizer)
                steps[place] += 1
                for state in counting[place : place + 1] if way.hooked == "the program" else ():
                    state.iter += 1
        dist.all_reduce(torch.zeros(1), group=group)  # nobody leaves while another may still need it

    while True:
        try:
            follow = [*wrapped, *(optimizers if way.distance else ())]
            with ctx.subject.Join(follow) if way.joined else nullcontext():
                train()
            break
        except ctx.subject.PeerFailed:
            for place, (model, optimizer) in enumerate(zip(wrapped, optimizers, strict=True)):
                left = regroup(model, optimizer, MADE_BEFORE + steps[place])
                if way.distance:
                    refused.append(caught(optimizer.state_dict))
                group, steps[place] = left.group, left.steps - MADE_BEFORE
                segments[place].append((steps[place], left.ranks))
                weights[place].append(numbers(model.module.named_parameters()))
    for model, seen in zip(wrapped, weights, strict=True):
        seen.append(numbers(model.module.named_parameters()))
    added = [sums(optimizer, group if way.distance else None) for optimizer in optimizers]
    strangers = sum(map(named_beside, wrapped, optimizers))
    counted = [state.iter for state in counting] + [each.mirror.steps for each in optimizers if way.distance]
    kept = [steps for each in optimizers if way.distance for steps in each.mirror.held().values()]
    drawn = [private(state, "rng").randint(0, 1 << 30) for state in counting if way.hooked == "the library"]
    return (segments, weights, added), counted, kept, drawn, refused, strangers


def named_beside(model, optimizer):
    """How many parameters that an optimizer's groups, and those of its local one, name are none of the model's."""
    own = set(map(id, model.parameters()))
    groups = [*optimizer.param_groups, *getattr(optimizer, "optim", optimizer).param_groups]
    return sum(id(parameter) not in own for group in groups for parameter in group["named"])


def slow_down(optimizer):
    """The next step is to be shorter."""
    for group in optimizer.param_groups:
        group["lr"] *= 0.75


def sums(optimizer, group=None):
    """What the optimizer has added up, by the parameter's place; of a sharded one on one rank, None on the others."""
    if group is not None:
        optimizer.consolidate_state_dict(0)
        if group.rank() != 0:
            return None
    return {place: state["sum"].flatten().tolist() for place, state in optimizer.state_dict()["state"].items()}


def alone(segments, place):
    """One process's parameters of a model at these times and at the end, and its optimizer's sums."""
    module = Turned()
    seen = [numbers(module.named_parameters())]
    optimizer = Finer(module.in_groups(), **SGD)
    for iteration in range(STEPS):
        there = next(ranks for first, ranks in reversed(segments) if first <= iteration)
        batches = [data(rank, iteration, place) for rank in there]
        gradients = oracle.averaged_gradients(module, batches, len(there))
        for name, parameter in module.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
        slow_down(optimizer)
        seen.append(numbers(module.named_parameters()))
    return [seen[first] for first, _ in segments] + seen[-1:], sums(optimizer)


WAYS = {
    "one model": Way((Death(3, 2), Death(1, 4))),
    "one is a step behind": Way((Death(0, 2),), behind=2, hooked="the program"),
    "one is behind in what hooks count": Way((Death(3, 2),), behind=1, early=True, hooked="the library", joined=False),
    "one is a step behind, without a context": Way((Death(0, 3, 1),), models=2, joined=False, behind=1),
    "copies of its shards, far away": Way((Death(0, 1), Death(2, 4)), distance=3),
    "three models": Way((Death(1, 3, 1), Death(2, 5, 2)), models=3),
    "copies, and two ranks that are lost in one step": Way((Death(3, 2), Death(0, 2)), distance=1),
    "copies that are under way": Way((Death(2, 3),), distance=1, copying=True, views=True),
    "two models with copies, without a context": Way(
        (Death(3, 3), Death(0, 5, 1)), models=2, distance=1, joined=False, behind=1, late=True,
    ),
}  # fmt: skip


@check("JOIN-057", worlds=(4,), backends=("gloo",), beyond=False, deadline_s=60, scenarios=WAYS)
def test_who_is_left_goes_on_as_one_process_when_ranks_are_lost_one_after_the_other(ranks, scenario):
    run, draws = ranks.run(go_on, scenario, stall_s=30), []
    for rank, end in enumerate(run.outcomes):
        if rank in scenario.lost:
            continue
        assert isinstance(end, Finished), run.summary()
        by_model, counted, kept, drawn, refused, strangers = end.value
        assert not strangers, f"rank {rank}: groups name {strangers} copies"
        assert set(counted) <= {STEPS}, f"rank {rank}: {counted}"
        assert all(steps == [STEPS - 1, STEPS] for steps in kept), f"rank {rank} has copies of steps {kept}"
        draws.append(drawn)
        for error in refused:  # what was consolidated is of other owners, and perhaps of a later step
            assert error is not None, f"rank {rank} is told the state of before"
            assert error.is_a(RuntimeError), f"rank {rank}: {error}"
        for place, (segments, weights, state) in enumerate(zip(*by_model, strict=True)):
            where = f"rank {rank}, model {place}: {segments}"
            assert_as_lost(scenario, place, segments, ranks.world, where)
            expected, its_state = alone(segments, place)
            assert weights == expected, where
            assert state in (None, its_state), where
    assert all(each == draws[0] for each in draws), f"the ranks would compress with numbers of their own: {draws}"


def assert_as_lost(way, place, segments, world, where):
    """A model goes on without each rank that is lost, from the step that had been made."""
    left = set(range(world))
    for death, (first, there) in zip(way.deaths, segments[1:], strict=True):
        left.discard(death.rank)
        assert set(there) == left, where
        furthest = way.behind is not None and not way.early and death is way.deaths[0]
        assert first == death.iteration + (place < death.model or (place == death.model and furthest)), where


# -- nobody is lost: a rank fails again and again, and comes back


def fail_again_and_again(ctx, wrapped_models, distance):
    """Rank 0 fails in two of the iterations, each time all ranks regroup; the parameters of each model in the end."""
    regroup, wrapped = ctx.subject.regroup, [ddp(ctx, Turned()) for _ in range(wrapped_models)]
    optimizers = [make(ctx, model.module.in_groups(), distance) for model in wrapped]
    steps, fails_in = [0] * wrapped_models, {1, 2} if ctx.rank == 0 else set()

    def train():
        for iteration in range(STEPS):
            for place, (model, optimizer) in enumerate(zip(wrapped, optimizers, strict=True)):
                if steps[place] > iteration:
                    continue
                model.zero_grad()
                loss = model(data(ctx.rank, iteration, place)).sum()
                if iteration in fails_in:
                    fails_in.discard(iteration)
                    raise BadBatch
                loss.backward()
                optimizer.step()
                slow_down(optimizer)
                steps[place] += 1

    while True:
        try:
            with ctx.subject.Join([*wrapped, *(optimizers if distance else ())]):
                train()
            return [numbers(model.module.named_parameters()) for model in wrapped]
        except (BadBatch, ctx.subject.PeerFailed):
            for place, (model, optimizer) in enumerate(zip(wrapped, optimizers, strict=True)):
                steps[place] = regroup(model, optimizer, steps[place]).steps


@check(
    "JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=30,
    scenarios={"one model": (1, 0), "two models": (2, 0), "copies of shards": (1, 1)},
)  # fmt: skip
def test_a_rank_that_fails_again_and_again_goes_on_with_all_as_one_process(ranks, scenario):
    everybody = [(0, tuple(range(ranks.world)))]
    expected = [alone(everybody, place)[0][-1] for place in range(scenario[0])]
    for rank, weights in enumerate(ranks(fail_again_and_again, *scenario)):
        assert weights == expected, f"rank {rank}"


# -- copies that are not of what is there now


def add_a_group(_model, optimizer):
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})


def take_one_out(_model, optimizer):
    optimizer.param_groups[0]["params"].pop()


def load_a_state(model, optimizer):
    optimizer.load_state_dict(Finer(model.parameters(), **SGD).state_dict())


def take_one_out_and_copy_anew(model, optimizer):
    take_one_out(model, optimizer)
    optimizer.keep_mirror()


#: what happens after the last step, and whether who is left can go on after it
CHANGES = {add_a_group: False, take_one_out: False, load_a_state: False, take_one_out_and_copy_anew: True}


def change_and_lose_one(ctx):
    """After two steps of several models something changes in each optimizer, and the last rank is lost: what the others
    hear, by change, whether they still have the parameters that they had, and what the copies count: whether they have
    another number now, and their steps."""
    regroup = ctx.subject.regroup
    wrapped = [ddp(ctx, Turned()) for _ in CHANGES]
    optimizers = [make(ctx, model.parameters(), 1) for model in wrapped]
    for iteration in range(2):
        for place, (model, optimizer) in enumerate(zip(wrapped, optimizers, strict=True)):
            model.zero_grad()
            model(data(ctx.rank, iteration, place)).sum().backward()
            optimizer.step()
    counted = []
    for change, model, optimizer in zip(CHANGES, wrapped, optimizers, strict=True):
        number = optimizer.mirror.number
        change(model, optimizer)
        counted.append((optimizer.mirror.number > number, optimizer.mirror.steps))
    had = [numbers(model.module.named_parameters()) for model in wrapped]
    if ctx.rank == ctx.world - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    lost = caught(lambda: wrapped[0](data(ctx.rank, 2, 0)).sum().backward())
    told = [caught(regroup, model, optimizer, 2) for model, optimizer in zip(wrapped, optimizers, strict=True)]
    return lost, told, had == [numbers(model.module.named_parameters()) for model in wrapped], counted


@check("JOIN-057", worlds=(3,), backends=("gloo",), beyond=False, deadline_s=30)
def test_nobody_goes_on_from_copies_of_what_is_there_no_more(ranks):
    run = ranks.run(change_and_lose_one, stall_s=20)
    for rank, end in enumerate(run.outcomes[:-1]):
        assert isinstance(end, Finished), run.summary()
        lost, told, same, counted = end.value
        assert lost is not None, f"rank {rank} has heard of no loss"
        for (change, goes_on), error, count in zip(CHANGES.items(), told, counted, strict=True):
            assert count == ((True, 0) if goes_on else (False, 2)), f"rank {rank}, {change.__name__}"
            assert (error is None) == goes_on, f"rank {rank}, {change.__name__}: {error or 'went on'}"
            assert goes_on or error.is_a(RuntimeError), f"rank {rank}, {change.__name__}: {error}"
        assert same, f"rank {rank}: parameters have changed"


# -- what hooks and optimizers keep


class Average:
    """A hook that is no function; it averages over the group in its state."""

    def __call__(self, state, bucket):
        dist.all_reduce(bucket.buffer(), group=state.process_group)
        return done(bucket.buffer().div_(state.process_group.size()))


class Group:
    """A hook's state."""

    def __init__(self, process_group):
        self.process_group = process_group


class Own:
    """A hook without a state, whose group the program changes."""

    group = None

    def __call__(self, state, bucket):
        assert state is None, f"a hook that was registered without a state gets {state!r}"
        dist.all_reduce(bucket.buffer(), group=self.group)
        return done(bucket.buffer().div_(self.group.size()))


class Odd(torch.optim.Optimizer):
    """Keeps a set of tensors for each parameter, and the sum of its gradients as a sparse tensor."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                seen = state.setdefault("seen", set())
                seen.add(torch.ones(()))
                gradient = parameter.grad.to_sparse()
                state["sum"] = gradient + state["sum"] if "sum" in state else gradient
                parameter.sub_(state["sum"].to_dense(), alpha=group["lr"] * len(seen))


#: hook and state of a model, by the group, and the optimizer of its shards
KEPT = {
    "torch's hook without a group": (lambda ctx: (None, allreduce_hook), torch.optim.SGD),
    "the library's hook with the model's group": (
        lambda ctx: (ctx.group, ctx.subject.default_hooks.allreduce_hook), Odd,
    ),
    "a hook of one's own": (lambda ctx: (Group(ctx.group), Average()), torch.optim.SGD),
    "a hook of one's own without a state": (lambda ctx: (None, Own()), torch.optim.SGD),
    "the library's hook with a clock": (
        lambda ctx: (ctx.subject.post_localSGD_hook.PostLocalSGDState(ctx.group, None, 2),
                     ctx.subject.post_localSGD_hook.post_localSGD_hook), torch.optim.SGD,
    ),
    "counts in groups": (lambda ctx: (ctx.group, ctx.subject.default_hooks.allreduce_hook), Skipping),
}  # fmt: skip


def arranged(kind, module):
    """What an optimizer of this class is given: one that skips empty groups several, so that most ranks have some."""
    return (in_groups_of_one if kind is Skipping else list)(module.parameters())


def lose_one_and_go_on(ctx):
    """The last rank is lost after two steps; by model, whose buffers the others have and whose they are to have, and
    the parameters after a third step of theirs."""
    regroup, wrapped, optimizers, Own.group = ctx.subject.regroup, [], [], ctx.group
    for hooked, kind in KEPT.values():
        module = models.Parts("ab")
        module.register_buffer("met", torch.zeros(1, dtype=torch.float64))
        wrapped.append(ddp(ctx, module, broadcast_buffers=False))
        module.met.fill_(2**40 + ctx.rank)
        wrapped[-1].register_comm_hook(*hooked(ctx))
        optimizers.append(ctx.subject.ZeroRedundancyOptimizer(arranged(kind, wrapped[-1]), kind, lr=LR))
        optimizers[-1].keep_mirror()

    def train(iteration):
        for place, (model, optimizer) in enumerate(zip(wrapped, optimizers, strict=True)):
            model.zero_grad()
            model(data(ctx.rank, iteration, place)).sum().backward()
            optimizer.step()

    train(0), train(1)
    if ctx.rank == ctx.world - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    lost = caught(train, 2)
    whose = []
    for model, optimizer in zip(wrapped, optimizers, strict=True):
        left = regroup(model, optimizer, 2)
        Own.group = left.group
        whose.append((model.module.met.item() - 2**40, left.source))
    train(2)
    return lost, whose, [numbers(model.module.named_parameters()) for model in wrapped]


@check("JOIN-057", worlds=(3,), backends=("gloo",), beyond=False, deadline_s=30)
def test_hooks_and_sharded_optimizers_of_every_kind_go_on_without_a_rank(ranks):
    run = ranks.run(lose_one_and_go_on, stall_s=20)
    expected = []
    for place, (_, kind) in enumerate(KEPT.values()):
        module = models.Parts("ab")
        optimizer = kind(arranged(kind, module), lr=LR)
        for iteration, left in enumerate((ranks.world, ranks.world, ranks.world - 1)):
            means = oracle.averaged_gradients(module, [data(rank, iteration, place) for rank in range(left)], left)
            for name, parameter in module.named_parameters():
                parameter.grad = means[name]
            optimizer.step()
        expected.append(numbers(module.named_parameters()))
    for rank, end in enumerate(run.outcomes[:-1]):
        assert isinstance(end, Finished), run.summary()
        lost, whose, found = end.value
        assert lost is not None, f"rank {rank} has heard of no loss"
        for name, (mine, its), seen, right in zip(KEPT, whose, found, expected, strict=True):
            assert mine == its, f"rank {rank}, {name}: the buffers of rank {mine}, not of rank {its}"
            assert seen == right, f"rank {rank}, {name}"
