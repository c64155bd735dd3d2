"""Ranks are killed at random; the others go on, and end with what the oracle of that schedule computes.

``python -m impl.tests.test_survivors 300`` makes 300 kills, with an ordinary optimizer or a sharded one that keeps a
mirror, inside a ``Join`` or without.
"""

import collections
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn

from impl import DistributedDataParallel, Join, ZeroRedundancyOptimizer
from impl.comm import heartbeats
from impl.comm.collectives import all_reduce
from impl.comm.ranks import Team
from impl.ddp import survivors
from impl.ddp.hooks import post_localSGD_hook
from impl.ddp.mixed_precision import _MixedPrecision
from impl.ddp.survivors import last_whole, regroup
from impl.errors import PeerFailed
from impl.tests.comm_hook_ranks import _starting, run_on_ranks
from impl.tests.zero_training import OPTIMIZERS, halving
from impl.zero import copies
from impl.zero.publisher import Publisher

pytestmark = pytest.mark.slow

_DEADLINE_S = 120.0
_STEPS = 8
_PLACES = ("before the forward", "in the backward", "before the step", "after the step")
_PLACES_OF_ZERO = ("before the publication", "before the sizes", "before the copies", "with the copies on their way")
_IN_REGROUP = "before the new group is formed"
_LIMIT_S = 15.0
_SOON_S = 0.3  # as long as the steps may take, or longer
_OPTIMIZERS = {
    "momentum": (torch.optim.SGD, {"lr": 0.5, "momentum": 0.5}),
    "adam": (torch.optim.Adam, {"lr": 0.25}),
    "counting": OPTIMIZERS["counting"],  # in its groups and in itself
}


@dataclass(frozen=True)
class Cell:
    """What one kill is tried on."""

    world: int
    kills: dict[int, tuple]  # by rank: the step and the place, or None and seconds
    optimizer: str = "momentum"
    sharded: bool = False
    distance: int = 1
    limits: tuple[int, ...] | None = None  # in a Join: how many inputs each rank has
    numels: tuple[int, ...] = (2, 2)
    views: bool = False
    scheduled: bool = False
    lags: tuple | None = None  # a rank, and the step in whose exchange it stays until another is lost

    @staticmethod
    def drawn(seed):
        draw = random.Random(seed)
        world = draw.choice([2, 3, 4])
        dying = draw.sample(range(world), draw.randint(1, world - 1))
        kills = {rank: (draw.randrange(1, _STEPS), draw.choice(_PLACES)) for rank in dying}
        return Cell(world, kills)

    @staticmethod
    def drawn_sharded(seed):
        draw = random.Random(f"sharded {seed}")
        world = draw.choice([2, 3, 4])
        dying = draw.sample(range(world), draw.choice([1] * 4 + list(range(1, world))))
        kills = {}
        for rank in dying:
            place = draw.choice([*_PLACES, *_PLACES_OF_ZERO, None, None])
            kills[rank] = (draw.randrange(1, _STEPS), place) if place else (None, draw.random() * _SOON_S)
        limits = tuple(draw.randint(1, _STEPS) for _ in range(world)) if draw.random() < 0.5 else None
        numels = tuple(draw.randint(1, 9) for _ in range(draw.randint(2, 7)))
        optimizer, distance = draw.choice(list(_OPTIMIZERS)), draw.randint(1, world - 1)
        return Cell(world, kills, optimizer, True, distance, limits, numels, draw.random() < 0.5)

    def inputs(self, rank):
        return _STEPS if self.limits is None else self.limits[rank]

    def factor(self, rank, step):
        return float(self.world * (1 + rank + step))


class Weights(nn.Module):
    def __init__(self, numels):
        super().__init__()
        self.inner = nn.ParameterList([torch.ones(numel) for numel in numels])

    def forward(self, factor):
        return sum((parameter * factor).sum() for parameter in self.inner)


def work(folder, rank, cell):
    """Train; ends with a file that says what this rank has been through, unless it is killed."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", cell.world)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=cell.world, timeout=timedelta(seconds=_DEADLINE_S)
    )
    said = Trainer(rank, cell).train()
    Path(folder, f"{rank}.part").write_text(json.dumps(said))
    os.rename(f"{folder}/{rank}.part", f"{folder}/{rank}")
    os._exit(0)


class Trainer:
    def __init__(self, rank, cell):
        self.rank, self.cell = rank, cell
        self.model = DistributedDataParallel(Weights(cell.numels), bucket_cap_mb=1e-6)
        kind, options = _OPTIMIZERS[cell.optimizer]
        if cell.sharded:
            groups = groups_of(self.model.module)
            self.optimizer = ZeroRedundancyOptimizer(groups, kind, parameters_as_bucket_view=cell.views, **options)
            self.optimizer.keep_mirror(cell.distance)
        else:
            self.optimizer = kind(groups_of(self.model.module), **options)
        self.scheduler = halving(self.optimizer) if cell.scheduled else None
        self.stayed = False
        self.ranks, self.steps = list(range(cell.world)), 0
        # from which step on which ranks took part
        self.segments = [(0, self.ranks)]
        self._plant()

    def _plant(self):
        step, where = self.cell.kills.get(self.rank, (None, None))
        self.timer = threading.Timer(0 if where is None else where, self._die) if step is None else None
        if self.timer is not None and where is not None:
            self.timer.start()
        self.model.module.inner[-1].register_hook(lambda _: self._dies(_PLACES[1]))
        before(survivors, "_new_group", lambda: self._dies(_IN_REGROUP))
        before(Publisher, "publish", lambda: self._dies(_PLACES_OF_ZERO[0]))
        before(copies, "all_reduce", lambda: self._dies(_PLACES_OF_ZERO[1]))
        before(copies, "all_to_all", lambda: self._dies(_PLACES_OF_ZERO[2]))
        after(copies, "all_to_all", lambda: self._dies(_PLACES_OF_ZERO[3]))
        after(copies, "all_to_all", self._stays)

    def _made(self):
        return self.optimizer.mirror.steps if self.cell.sharded else self.steps

    def _dies(self, place, step=None):
        if self.cell.kills.get(self.rank) == (self._made() if step is None else step, place):
            self._die()

    def _stays(self):
        stays = not self.stayed and self.cell.lags == (self.rank, self._made())
        self.stayed = self.stayed or stays
        while stays:
            self.model.reducer.team.guard()  # raises PeerFailed
            time.sleep(0.01)

    def _die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def train(self):
        while True:
            try:
                self._all_steps()
                break
            except PeerFailed:
                try:
                    left = regroup(self.model, self.optimizer, self._made(), limit_s=_LIMIT_S)
                except RuntimeError as error:
                    return {"refused": f"{type(error).__name__}: {error}"}
                self.ranks, self.steps = list(left.ranks), left.steps
                self.segments.append((left.steps, self.ranks))
        if self.timer is not None:
            self.timer.cancel()
        weights = [parameter.tolist() for parameter in self.model.parameters()]
        return {"segments": self.segments, "weights": weights}

    def _all_steps(self):
        if self.cell.limits is None:
            self._own_steps()
        else:
            joined = [self.model, self.optimizer] if self.cell.sharded else [self.model]
            with Join(joined, divide_by_initial_world_size=False):
                self._own_steps()
        # nobody leaves while another may still need it
        all_reduce(self.model.reducer.team, torch.zeros(1), "the end").wait()

    def _own_steps(self):
        while self.steps < self.cell.inputs(self.rank):
            self._dies(_PLACES[0])
            self.optimizer.zero_grad()
            self.model(torch.tensor(self.cell.factor(self.rank, self.steps))).backward()
            self._dies(_PLACES[2])
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
            self.steps += 1
            self._dies(_PLACES[3], self.steps - 1)


def groups_of(module):
    """Two groups, of which only the first has the optimizer's own rate; alike for all optimizers."""
    parameters = list(module.parameters())
    return [{"params": parameters[::2]}, {"params": parameters[1::2], "lr": 0.125}]


def before(owner, name, act):
    original = getattr(owner, name)

    def acting(*args, **kwargs):
        act()
        return original(*args, **kwargs)

    setattr(owner, name, acting)


def after(owner, name, act):
    original = getattr(owner, name)

    def acting(*args, **kwargs):
        result = original(*args, **kwargs)
        act()
        return result

    setattr(owner, name, acting)


def oracle(cell, segments):
    """One process: each step averages over the ranks that took part in it."""
    module = Weights(cell.numels)
    kind, options = _OPTIMIZERS[cell.optimizer]
    optimizer = kind(groups_of(module), **options)
    scheduler = halving(optimizer) if cell.scheduled else None
    for step in range(_STEPS):
        alive = next(ranks for first, ranks in reversed(segments) if first <= step)
        ranks = [rank for rank in alive if cell.inputs(rank) > step]
        if not ranks:
            break
        optimizer.zero_grad()
        module(torch.tensor(sum(cell.factor(rank, step) for rank in ranks) / len(ranks))).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return [parameter.tolist() for parameter in module.parameters()]


def one_kill(cell, went_on_from=None):
    """How the survivors ended: "right", "refused: ..." or "wrong: ..."."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [_starting.Process(target=work, args=(folder, rank, cell), daemon=True) for rank in range(cell.world)]
        for process in ranks:
            process.start()
        end = time.monotonic() + _DEADLINE_S
        for process in ranks:
            process.join(max(end - time.monotonic(), 0))
        late = [rank for rank, process in enumerate(ranks) if process.exitcode is None]
        for process in ranks:
            process.kill()
        ended = {rank: Path(folder, str(rank)) for rank in range(cell.world)}
        said = {rank: json.loads(file.read_text()) for rank, file in ended.items() if file.exists()}
    if late or not set(said) >= set(range(cell.world)) - set(cell.kills):
        return f"wrong: late {late}, ended {said}"
    ending = judged(cell, said)
    if went_on_from is not None and ending == "right":
        starts = {each["segments"][1][0] for each in said.values()}
        return "right" if starts == {went_on_from} else f"wrong: went on from {starts}"
    return ending


def judged(cell, said):
    for rank, each in said.items():
        if "refused" not in each and each["weights"] != oracle(cell, each["segments"]):
            return f"wrong: rank {rank} has {each['weights']} after {each['segments']}, of {said}"
    refused = {rank: each["refused"] for rank, each in said.items() if "refused" in each}
    # others had ended, and taken their shards with them, before this rank had heard that nobody needed it any more
    ended = any(len(each.get("segments", ())) == 1 for each in said.values())
    if not all("rank" in text for text in refused.values()) or (refused and len(cell.kills) == 1 and not ended):
        return f"wrong: refused {refused}"
    if refused:
        return f"refused: {refused}"
    if len({json.dumps(each["segments"]) for each in said.values()}) > 1:
        return f"wrong: {said}"
    missed = sorted(set(cell.kills) & set(said))
    return f"right, but not killed: {missed}" if missed else "right"


@pytest.mark.parametrize("seed", range(20))
def test_the_survivors_of_random_kills_end_with_the_oracles_weights(seed):
    assert one_kill(Cell.drawn(seed)) == "right"


@pytest.mark.parametrize("seed", range(12))
def test_those_of_a_sharded_optimizer_with_a_mirror_do_or_name_the_shard_that_is_gone(seed):
    assert one_kill(Cell.drawn_sharded(seed)).startswith(("right", "refused"))


@pytest.mark.parametrize("place", [*_PLACES, *_PLACES_OF_ZERO])
def test_a_rank_with_a_shard_may_be_lost_at_any_place_of_a_step(place):
    assert one_kill(Cell(3, {1: (2, place)}, "adam", sharded=True, numels=(3, 4, 2, 5))) == "right"


@pytest.mark.parametrize("place", _PLACES_OF_ZERO)
def test_a_rank_that_shadows_may_be_lost(place):
    assert one_kill(Cell(3, {1: (4, place)}, "adam", sharded=True, limits=(6, 2, 7), numels=(3, 4, 2))) == "right"


def test_settings_that_the_program_has_changed_since_the_last_step_go_on():
    kills = {1: (3, _PLACES[1])}
    assert one_kill(Cell(3, kills, "adam", sharded=True, numels=(3, 4, 2), scheduled=True)) == "right"


@pytest.mark.parametrize("place", _PLACES_OF_ZERO)
def test_what_the_optimizer_counts_beside_its_state_goes_back_with_it(place):
    assert one_kill(Cell(3, {1: (2, place)}, "counting", sharded=True, numels=(3, 4, 2, 5), views=True)) == "right"


def test_ranks_go_back_by_a_step_where_one_had_not_got_the_copies_of_the_last():
    kills, lags = {1: (3, _PLACES[0])}, (2, 2)  # the copies of rank 1 lie on rank 2
    assert one_kill(Cell(3, kills, "counting", sharded=True, numels=(3, 4, 2), lags=lags), went_on_from=2) == "right"


def test_ranks_do_not_go_back_where_it_had_those_of_the_lost_one():
    kills, lags = {1: (3, _PLACES[0])}, (0, 2)
    assert one_kill(Cell(3, kills, "counting", sharded=True, numels=(3, 4, 2), lags=lags), went_on_from=3) == "right"


def test_one_rank_that_is_left_goes_on_alone():
    assert one_kill(Cell(2, {0: (3, _PLACES_OF_ZERO[3])}, "adam", sharded=True, numels=(3, 4, 2))) == "right"


def test_ranks_that_are_lost_one_after_the_other_are_all_replaced():
    kills = {0: (1, _PLACES[1]), 1: (3, _PLACES[1]), 2: (5, _PLACES[1])}
    assert one_kill(Cell(4, kills, "adam", sharded=True, numels=(3, 4, 2, 5, 1))) == "right"


@pytest.mark.parametrize(
    ("sharded", "place"),
    [(False, _IN_REGROUP), (True, _IN_REGROUP), (True, _PLACES_OF_ZERO[0]), (True, _PLACES_OF_ZERO[3])],
)
def test_a_rank_that_is_lost_while_the_others_regroup_is_left_out_too(sharded, place):
    kills = {1: (2, _PLACES[1]), 3: (2, place)}
    assert one_kill(Cell(4, kills, "adam", sharded=sharded, numels=(3, 4, 2, 5))) == "right"


def test_a_shard_that_is_lost_with_its_copies_is_named():
    together = {1: (3, _PLACES[1]), 2: (3, _PLACES[1])}
    found = one_kill(Cell(4, together, "adam", sharded=True, numels=(3, 4, 2, 5)))
    assert found.startswith("refused")
    assert found.count("the shard of rank 1 is gone") == 2


def test_copies_at_a_distance_survive_the_loss_of_neighbours():
    together = {0: (3, _PLACES[1]), 1: (3, _PLACES[1])}
    assert one_kill(Cell(4, together, "adam", sharded=True, distance=2, numels=(3, 4, 2, 5))) == "right"


class Nobody:
    """A guard that knows of no lost rank."""

    def begin_anew(self):
        pass

    def lost(self):
        return set()


def take_over_from_the_last(rank, world):
    """Parameters and buffers of a model after taking over those of the last rank; two of them are not in buckets."""
    module = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1)])
    module.register_buffer("unsaved", torch.zeros(1), persistent=False)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["1.weight", "2.running_mean"])
    model = DistributedDataParallel(module, delay_all_reduce_named_params=[("0.weight", module[0].weight)],
                                    param_to_hook_all_reduce=module[2].weight)  # fmt: skip
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.fill_(1 + rank)
    ranks = list(range(world))
    plan = {"ranks": ranks, "here": ranks, "source": world - 1, "steps": 1, "mirrored": None, "gone": [],
            "counted": [], "timeout_s": _LIMIT_S}  # fmt: skip
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    taken = survivors._take_over(plan, model.reducer.team, Nobody(), model, optimizer, None, _LIMIT_S)
    taken.go_on(model, optimizer, None)
    return sorted({tensor.item() for tensor in (*module.parameters(), *module.buffers())})


def test_what_is_ignored_or_delayed_is_taken_over_too():
    assert run_on_ranks(take_over_from_the_last, 2) == [[2.0]] * 2


def test_the_plan_of_survivors_is_what_those_with_the_most_steps_have_made():
    team = SimpleNamespace(members=range(4), global_rank=lambda rank: 10 + rank)
    made = {1: (4, 4), 2: (5, 6), 3: (5, 5)}  # one is behind, one is in the next backward
    reports = {rank: {"steps": steps, "counted": [count], "forms": ""} for rank, (steps, count) in made.items()}
    plan = survivors._plan(team, reports)
    assert (plan["ranks"], plan["source"], plan["steps"], plan["counted"]) == ([11, 12, 13], 12, 5, [5])
    # with copies, which were begun after two steps; the first has run out of inputs and counts its own
    for rank, steps in {1: 4, 2: 7, 3: 7}.items():
        reports[rank] |= {"steps": steps, "mirrored": 5, "held": [(owner, [4, 5]) for owner in range(4)]}
    assert survivors._plan(team, reports)["steps"] == 7


@pytest.mark.parametrize(
    ("held", "found"),
    [
        ([{0: [3, 4], 1: [3, 4]}, {1: [3, 4], 2: [3, 4]}], (4, [])),
        ([{0: [4, 5], 2: [3, 4]}, {1: [3, 4], 0: [3, 4]}], (4, [])),  # the first is a step ahead
        ([{0: [4, 5], 2: [4]}, {1: [3, 4], 0: [3]}], (4, [])),
        ([{0: [3, 4], 3: [3, 4]}, {1: [3, 4], 0: [3, 4]}], (None, [2])),
        ([{0: [4], 1: [4]}, {1: [4], 2: []}], (None, [2])),  # after load_state_dict
        ([{0: [5], 1: [3]}, {2: [5]}], (None, [1])),
        ([{}, {}], (None, [0, 1, 2])),
    ],
)
def test_the_survivors_go_on_from_the_last_step_that_they_hold_whole(held, found):
    owners = {rank for each in held for rank in each} | {0, 1, 2}
    assert last_whole(held, sorted(owners)) == found


def die():
    """As a killed process's, its connections end; it stays, so that the test hears nothing of it."""
    for beats in heartbeats._by_world.values():
        while beats.missing:  # the others would see the process that stays
            time.sleep(0.01)
        beats._left = True
        beats.close()


def stepped(model, optimizer):
    optimizer.zero_grad()
    model(torch.tensor(1.0)).backward()
    optimizer.step()


def two_models(rank, _world, sharded):
    """Two models on one group, the second stepped twice in each iteration; rank 2 is lost in iteration 2."""
    models = [DistributedDataParallel(Weights((2, 3))) for _ in range(2)]
    kind = ZeroRedundancyOptimizer if sharded else lambda parameters, kind, lr: kind(parameters, lr=lr)
    optimizers = [
        torch.optim.SGD(models[0].parameters(), lr=0.5),
        kind(models[1].parameters(), torch.optim.SGD, lr=0.5),
    ]
    if sharded:
        optimizers[1].keep_mirror()
    steps = [0, 0]
    try:
        for place in itertools.cycle((0, 1, 1)):
            if (rank, steps) == (2, [3, 4]):
                return die()
            stepped(models[place], optimizers[place])
            steps[place] += 1
    except PeerFailed:
        pass
    left = [regroup(*each, _LIMIT_S) for each in zip(models, optimizers, steps, strict=True)]
    for each in zip(models, optimizers, strict=True):
        stepped(*each)
    return [(each.ranks, each.steps) for each in left], [model.module.inner[0][0].item() for model in models]


@pytest.mark.parametrize("sharded", [False, True])
def test_several_models_of_a_group_go_on_each_from_its_own_last_step(sharded):
    found = ([((0, 1), 3), ((0, 1), 4)], [1 - 4 * 0.5, 1 - 5 * 0.5])
    assert run_on_ranks(two_models, 3, sharded) == [found, found, None]


def one_outside(rank, _world):
    """Ranks 0, 2 and 3 share a model; rank 1, which does not, is lost first, and then rank 3."""
    group = dist.new_group([0, 2, 3])
    beats = Team.of().guard._beats
    while beats.missing:
        time.sleep(0.01)
    if rank == 1:
        return die()
    model = DistributedDataParallel(Weights((2, 3)), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    while not beats.losses.has(1):
        time.sleep(0.01)
    stepped(model, optimizer)
    if rank == 3:
        return die()
    with pytest.raises(PeerFailed, match=r"rank 2 \(global rank 3\) has stopped answering"):
        stepped(model, optimizer)
    left = regroup(model, optimizer, 1, _LIMIT_S)
    stepped(model, optimizer)
    return left.ranks, left.steps, model.module.inner[0][0].item()


def test_a_rank_that_is_lost_outside_of_the_models_group_is_none_of_its_affair():
    assert run_on_ranks(one_outside, 4) == [((0, 2), 1, 0.0), None, ((0, 2), 1, 0.0), None]


def local_sgd(rank, _world):
    """Gradients are averaged on the machine since iteration 3; rank 2 is lost in iteration 4, rank 1 counts further."""
    state = post_localSGD_hook.PostLocalSGDState(None, None, 2)
    model = DistributedDataParallel(Weights((2, 3)))
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    optimizer, gradients = torch.optim.SGD(model.parameters(), lr=0.5), []
    try:
        for step in range(4):
            if (rank, step) == (2, 3):
                return die()
            model.zero_grad()
            model(torch.tensor(float(rank))).backward()
            optimizer.step()
    except PeerFailed:
        state.iter = 3 + rank
    regroup(model, optimizer, 3, _LIMIT_S)
    for _ in range(2):
        model.zero_grad()
        model(torch.tensor(float(rank))).backward()
        gradients.append(model.module.inner[0].grad[0].item())
    return state.iter, dist.get_process_group_ranks(state.subgroup), gradients


def test_states_of_hooks_go_on_from_one_iteration_and_over_the_ranks_that_are_left():
    found = (5, [0, 1], [0.5, 0.5])
    assert run_on_ranks(local_sgd, 3) == [found, found, None]


def between_forward_and_backward(rank, _world):
    """In mixed precision rank 0 meets the failure between a forward and its backward, rank 1 in its backward."""
    lowered = _MixedPrecision(param_dtype=torch.bfloat16)
    model = DistributedDataParallel(Weights((2, 3)), bucket_cap_mb=1e-6, mixed_precision=lowered)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-20)
    stepped(model, optimizer)
    loss = model(torch.tensor(1.0))
    if rank == 2:
        return die()
    with pytest.raises(PeerFailed):
        while rank == 0:
            model.reducer.team.guard()
            time.sleep(0.01)
        loss.backward()
    regroup(model, optimizer, 1, _LIMIT_S)
    stepped(model, optimizer)
    return sorted({(parameter.dtype, *parameter.tolist()[:1]) for parameter in model.parameters()})


def test_a_failure_between_forward_and_backward_in_mixed_precision_leaves_full_values():
    found = [(torch.float32, 1 - 2.0**-19)]
    assert run_on_ranks(between_forward_and_backward, 3) == [found, found, None]


class Step(NamedTuple):
    number: int
    size: float


class Fine(torch.optim.SGD):
    """Keeps its parameters in finer copies, the last step in a tuple of its own, and counts its steps in itself."""

    calls = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        for parameter in self.param_groups[0]["params"]:
            fine = self.state[parameter].setdefault("fine", parameter.detach().float())
            fine.sub_(parameter.grad.float(), alpha=2.0**-12)
            parameter.copy_(fine)
            self.state[parameter]["last"] = Step(self.calls, 2.0**-12)


def states_that_are_finer(rank, _world, ahead):
    """One rank has made a step more when rank 2 is lost."""
    model = DistributedDataParallel(Weights((2, 3)).bfloat16())
    optimizer = Fine(model.parameters())
    stepped(model, optimizer)
    if rank == 2:
        return die()
    if rank == ahead:
        optimizer.step()
    with pytest.raises(PeerFailed):
        while True:
            model.reducer.team.guard()
            time.sleep(0.01)
    left = regroup(model, optimizer, optimizer.calls, _LIMIT_S)
    assert all(state["last"] == Step(2, 2.0**-12) for state in optimizer.state.values())
    stepped(model, optimizer)
    fine = {value for state in optimizer.state.values() for value in state["fine"].tolist()}
    return left.source, left.steps, optimizer.calls, fine


@pytest.mark.parametrize("ahead", [0, 1])
def test_what_the_rank_with_the_most_steps_has_is_taken_over_to_the_bit(ahead):
    found = ahead, 2, 3, {1 - 3 * 2.0**-12}
    assert run_on_ranks(states_that_are_finer, 3, ahead) == [found, found, None]


def regroup_inside(_rank, _world):
    model = DistributedDataParallel(Weights((2, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with model.join(), pytest.raises(RuntimeError, match="Leave the block"):
        regroup(model, optimizer, 0)
    return True


def test_a_model_in_a_join_context_is_refused():
    assert run_on_ranks(regroup_inside, 2) == [True, True]


def net():
    return nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False))


def sharded(rank, world):
    model = DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.5)
    with pytest.raises(TypeError, match="keep_mirror"):
        regroup(model, optimizer, 0)
    half = dist.new_group([0])
    if rank == 0:
        elsewhere = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, process_group=half, lr=0.5)
        elsewhere.keep_mirror()
        with pytest.raises(ValueError, match="same process group"):
            regroup(model, elsewhere, 0)
    return True


def test_a_sharded_optimizer_without_copies_or_on_other_ranks_is_refused_by_name():
    assert run_on_ranks(sharded, 2) == [True, True]


def loaded(rank, world):
    model = DistributedDataParallel(Weights((3, 4)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.5)
    optimizer.keep_mirror()
    model(torch.tensor(1.0)).backward()
    optimizer.step()
    found = [[optimizer.mirror.steps, optimizer.mirror.held()]]
    optimizer.consolidate_state_dict(0)
    states = [optimizer.state_dict() if rank == 0 else None]
    dist.broadcast_object_list(states)
    optimizer.load_state_dict(states[0])
    found.append([optimizer.mirror.steps, optimizer.mirror.held()])
    optimizer.step()
    found.append([optimizer.mirror.steps, optimizer.mirror.held()])
    optimizer.keep_mirror()
    found.append([optimizer.mirror.steps, optimizer.mirror.held()])
    return found


def test_copies_are_given_up_where_a_state_is_loaded_and_made_anew_where_they_are_asked_for_again():
    for rank, found in enumerate(run_on_ranks(loaded, 2)):
        other = 1 - rank
        assert found == [
            [1, {rank: [0, 1], other: [0, 1]}],
            [1, {rank: [], other: []}],
            [2, {rank: [2], other: [2]}],
            [0, {rank: [3], other: [3]}],  # no two states have the same number
        ]


def begun_under_inference_mode(rank, world):
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(4)]
    optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.5)
    with torch.inference_mode():
        optimizer.keep_mirror()
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.ones(3)
        optimizer.step()
    return optimizer.mirror.steps


def test_copies_may_be_begun_under_inference_mode():
    assert run_on_ranks(begun_under_inference_mode, 2) == [3, 3]


def misused(rank, world):
    model = DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.5)
    for distance in (0, 2, -1, 1.0, True, "1"):
        with pytest.raises(ValueError, match="leads to no other rank"):
            optimizer.keep_mirror(distance)
    overlapping = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.5)
    with pytest.raises(ValueError, match="overlap_with_ddp=True"):
        overlapping.keep_mirror()
    with Join([model, optimizer]), pytest.raises(RuntimeError, match="inside a join context"):
        optimizer.keep_mirror()
    return optimizer.mirror is None


def test_a_mirror_is_refused_where_it_cannot_be():
    assert run_on_ranks(misused, 2) == [True, True]


class Unpicklable(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["function"] = lambda: None


def unpicklable(rank, world):
    model = DistributedDataParallel(Weights((3, 4)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), Unpicklable, lr=0.5)
    optimizer.keep_mirror()
    model(torch.tensor(1.0)).backward()
    with pytest.raises(TypeError, match="functions and handles"):
        optimizer.step()
    return True


def test_a_state_that_cannot_travel_is_refused_by_name():
    assert run_on_ranks(unpicklable, 2) == [True, True]


if __name__ == "__main__":
    count, first = (*map(int, sys.argv[1:3]), *(300, 0)[len(sys.argv[1:3]) :])  # so many, from this seed on
    drawn = Cell.drawn_sharded if sys.argv[3:] == ["zero"] else Cell.drawn
    found = collections.Counter()
    for seed in range(first, first + count):
        ending = one_kill(drawn(seed))
        found[ending.split(":")[0]] += 1
        if not ending.startswith("right"):
            print(f"seed {seed}, {asdict(drawn(seed))}: {ending}", flush=True)
    print(f"{count} kills: {dict(found)}")
    sys.exit(bool(found["wrong"]))
