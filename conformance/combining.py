"""Combinations of what a user may combine under uneven inputs, every pair of choices together in some row.

A combination is trained inside one Join context and compared bit by bit with one process: the gradients after each
iteration of each rank, the buffer at each forward, the weights at the end. Where seven ranks share a mean, the last
bits are left open: who multiplies by a seventh instead of dividing by seven keeps every promise, and rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from . import models, oracle, scenario
from .pairwise import Forbidden, covering
from .ranks import RankContext
from .scenario import Schedule
from .training import Numbers, gradients, numbers, parameters

TINY_MIB = 1e-4  # about a hundred bytes: every layer has a bucket of its own
# By up to six and by eight, multiplying a whole multiple by the rounded reciprocal gives the whole number again; every
# second multiple of seven gives a neighbour of it.
ROUNDS = 7
CLOSE = 2.0**-20  # of the largest number at hand: eight summands, each rounded once or twice in 24 bits

SHAPES: dict[str, Callable[[int], Schedule]] = {
    "even": scenario.even,
    "rank 0 first": lambda world: scenario.one_short(world, 0),
    "rank 0 last": lambda world: scenario.one_long(world, 0),
    "rank 0 tied for last": lambda world: scenario.one_short(world, 1),
    "last rank first": lambda world: scenario.one_short(world, world - 1),
    "linear": scenario.linear,
    "halves": scenario.halves,
    "no inputs on rank 0": lambda world: scenario.without_inputs(world, 0),
    "no inputs on the last rank": lambda world: scenario.without_inputs(world, world - 1),
}
# the first value of each is the plain one, which a combination's name leaves out
FACTORS: dict[str, tuple[str, ...]] = {
    "shape": tuple(SHAPES),
    "members": ("everybody", "a subgroup"),
    "buckets": ("one bucket", "several buckets"),
    "buffers": ("no buffers", "buffers"),
    "gradients": ("copies", "views"),
    "graph": ("dynamic", "static"),
    "use": ("all used", "some unused", "some unused here and there"),
    "hook": ("no hook", "all-reduce hook", "fp16 hook"),
    "optimizer": ("plain", "sharded"),
    "divisor": ("by all", "by the active"),
}
FORBIDDEN: tuple[Forbidden, ...] = (
    {"world": (2,), "members": ("a subgroup",)},  # two ranks have no subgroup of several
    {"graph": ("static",), "use": ("some unused here and there",)},  # such a graph is not static
    # thirds of what eight ranks add up to have more digits than fp16 holds
    {"world": (8,), "hook": ("fp16 hook",), "divisor": ("by the active",)},
)


@dataclass(frozen=True)
class Combination:
    """One choice for every factor, and the worlds in which it is tried."""

    choices: tuple[tuple[str, str], ...]
    worlds: tuple[int, ...]

    def __getitem__(self, factor: str) -> str:
        return dict(self.choices)[factor]

    def members(self, world: int) -> list[int]:
        return list(range(self["members"] == "a subgroup", world))

    def schedule(self, world: int) -> Schedule:
        """Inputs of every rank of the world; those outside the subgroup have none."""
        members = self.members(world)
        return (0,) * (world - len(members)) + SHAPES[self["shape"]](len(members))

    def factor(self, size: int) -> int:
        """What a loss is multiplied with, so that every mean over the members is a whole number."""
        return size if self["divisor"] == "by all" else lcm(*range(1, size + 1))

    def divisors(self, schedule: Schedule) -> list[int]:
        """By what the sum of each iteration is divided."""
        active = [len(oracle.active_ranks(schedule, iteration)) for iteration in range(max(schedule))]
        return [len(schedule)] * len(active) if self["divisor"] == "by all" else active


def combinations(**limits: Sequence[str]) -> dict[str, Combination]:
    """Every pair of choices within these limits, the number of ranks included, at 2 to 4 ranks; and once more at 8.

    By name, which tells all that is not plain. What some implementations break is kept apart by limits, so that a
    break hides nothing else.
    """
    factors = {**FACTORS, **{factor: tuple(values) for factor, values in limits.items()}}
    found: dict[str, Combination] = {}
    for worlds in ((2, 3, 4), (8,)):
        for row in covering({"world": worlds, **factors}, FORBIDDEN):
            choices = tuple((factor, str(row[factor])) for factor in FACTORS)
            name = ", ".join(value for factor, value in choices if factor == "shape" or value != FACTORS[factor][0])
            before = found[name].worlds if name in found else ()
            found[name] = Combination(choices, (*before, int(str(row["world"]))))
    return found


# --- what is trained --------------------------------------------------------------------------------------------------


class Mixture(nn.Module):
    """Layers side by side, so that no gradient depends on any weight; the last is used if the input's mark says so."""

    def __init__(self, buffers: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.last = nn.Linear(4, 4)
        for index, parameter in enumerate(self.parameters()):
            nn.init.constant_(parameter, float(index))
        self.count: torch.Tensor | None
        self.register_buffer("count", torch.zeros(1) if buffers else None)
        self.step = 1.0  # of the buffer, at each forward
        self.seen: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.count is not None:
            self.seen.append(self.count.item())
            self.count += self.step
        data, mark = x[:, :4], x[0, 4]
        outputs = [(index + 1) * layer(data) for index, layer in enumerate(self.layers)]
        if mark:
            outputs.append(self.last(data))
        return torch.stack(outputs).sum(dim=0)


def batch(combination: Combination, rank: int, iteration: int) -> torch.Tensor:
    """One row of four small numbers, and the mark that says whether the last layer is used."""
    used = combination["use"] == "all used" or (combination["use"] == "some unused here and there" and rank == 0)
    return torch.cat([models.integers(1, 4, seed=1000 * rank + iteration), torch.full((1, 1), float(used))], dim=1)


class Trained(NamedTuple):
    """What one member brings home."""

    gradients: list[Numbers]  # after each of its own iterations
    parameters: Numbers  # after the block
    seen: list[float]  # the buffer at each of its forwards


SETTINGS: dict[str, Any] = {"lr": 0.25, "momentum": 0.5}


def train_each(ctx: RankContext, combination: Combination, several: Sequence[Schedule]) -> list[Trained] | None:
    """Rank function: train the combination on each schedule; None outside of the subgroup."""
    members = combination.members(ctx.world)
    group = dist.new_group(members) if len(members) < ctx.world else None
    if ctx.rank not in members:
        return None
    place = members.index(ctx.rank)
    return [train(ctx, combination, schedule[-len(members) :], place, group) for schedule in several]


def train(ctx: RankContext, combination: Combination, schedule: Schedule, place: int, group: Any) -> Trained:
    """Train in one context of DDP and, if it is sharded, the optimizer."""
    module = Mixture(combination["buffers"] == "buffers").to(ctx.device)
    module.step = 1.0 + place
    model = ctx.subject.DistributedDataParallel(module, process_group=group, **_options(combination))
    if combination["hook"] != "no hook":
        hooks = ctx.subject.default_hooks
        hook = hooks.fp16_compress_hook if combination["hook"] == "fp16 hook" else hooks.allreduce_hook
        model.register_comm_hook(group, hook)
    optimizer, joined = _optimizer(ctx, combination, model, group)
    seen, factor = [], combination.factor(len(schedule))
    with ctx.subject.Join(joined, divide_by_initial_world_size=combination["divisor"] == "by all"):
        for iteration in range(schedule[place]):
            optimizer.zero_grad(set_to_none=True)
            (factor * model(batch(combination, place, iteration).to(ctx.device)).sum()).backward()
            seen.append(gradients(model))
            optimizer.step()
    return Trained(seen, parameters(model), module.seen)


def _options(combination: Combination) -> dict[str, Any]:
    static = combination["graph"] == "static"
    return {
        "bucket_cap_mb": TINY_MIB if combination["buckets"] == "several buckets" else 25,
        "gradient_as_bucket_view": combination["gradients"] == "views",
        "static_graph": static,
        "find_unused_parameters": combination["use"] != "all used" and not static,
    }


def _optimizer(ctx: RankContext, combination: Combination, model: Any, group: Any) -> tuple[Any, list[Any]]:
    """The optimizer, and what takes part in the context."""
    if combination["optimizer"] == "plain":
        return torch.optim.SGD(model.parameters(), **SETTINGS), [model]
    sharded = ctx.subject.ZeroRedundancyOptimizer
    zero = sharded(model.parameters(), torch.optim.SGD, process_group=group, **SETTINGS)
    return zero, [model, zero]


# --- what one process says --------------------------------------------------------------------------------------------


def assert_as_alone(
    combination: Combination, several: Sequence[Schedule], told: Sequence[list[Trained] | None]
) -> None:
    """Every member did what one process says, on every schedule."""
    members = combination.members(len(told))
    for number, schedule in enumerate(several):
        mine = schedule[-len(members) :]
        averages, last, seen = alone(combination, mine)
        divisors = combination.divisors(mine)
        for place, rank in enumerate(members):
            answers = told[rank]
            assert answers is not None
            where = f"rank {rank}, schedule {schedule}"
            for iteration, found in enumerate(answers[number].gradients):
                alike = same(found, averages[iteration], exactly=divisors[iteration] != ROUNDS)
                assert alike, f"gradients of {where}, iteration {iteration}"
            assert len(answers[number].gradients) == mine[place], f"iterations of {where}"
            assert same(answers[number].parameters, last, exactly=ROUNDS not in divisors), f"parameters of {where}"
            assert answers[number].seen == seen[place], f"buffer of {where}"


def same(found: Numbers, wanted: Numbers, exactly: bool) -> bool:
    """Whether two sets of numbers are equal, to the bit or up to rounding."""
    if exactly or found == wanted:
        return found == wanted
    shapes = [{name: None if row is None else len(row) for name, row in each.items()} for each in (found, wanted)]
    pairs = [pair for name in wanted for pair in zip(found.get(name) or (), wanted[name] or (), strict=False)]
    most = CLOSE * max((abs(number) for _, number in pairs), default=0.0)
    return shapes[0] == shapes[1] and all(abs(one - other) <= most for one, other in pairs)


def alone(combination: Combination, schedule: Schedule) -> tuple[list[Numbers], Numbers, list[list[float]]]:
    """One process's gradients of every iteration, its parameters at the end, and the buffer at each forward."""
    module, factor = Mixture(False), combination.factor(len(schedule))
    optimizer = torch.optim.SGD(module.parameters(), **SETTINGS)
    averages, last = [], parameters(module)
    for step in oracle.steps_alone(
        module, optimizer, schedule, lambda rank, iteration: batch(combination, rank, iteration),
        divide_by_initial=combination["divisor"] == "by all", loss=lambda output: factor * output.sum(),
    ):  # fmt: skip
        averages.append(numbers((name, step.gradients.get(name)) for name, _ in module.named_parameters()))
        last = numbers(step.parameters.items())
    buffers = combination["buffers"] == "buffers"
    own, _ = oracle.buffers_seen(schedule, [1.0 + place for place in range(len(schedule))])
    return averages, last, own if buffers else [[] for _ in schedule]
