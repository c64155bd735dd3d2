"""How far rounding, and how far typical mistakes, take a workload from what one process computes: for tests of perf.

Everything happens in this one process; distances are counted as ``verify`` counts them, in units of what is allowed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from conformance.api import oracle
from conformance.bad_input import BadInput

from ..plan import sweep
from ..plan.axes import ALONE
from ..plan.planning import Place, plan
from ..workloads import KNOWN, SPARSE, Workload, load
from .reliance import BUFFERED
from .verify import ExpectedValues, expected_values

Gradients = oracle.State


@dataclass(frozen=True, order=True)
class Case:
    """What decides a turn's trajectory. Cells that differ in nothing else leave the same weights and buffers."""

    workload: str
    size: str
    optimizer: str
    schedule: tuple[int, ...]  # batches of each of ``ranks``
    ranks: tuple[int, ...]
    follows_last: bool  # whose buffers count: of the highest active rank, or of the first
    joins: bool  # and whether all take them over at the end

    def __str__(self) -> str:
        whose = {(True, True): "join", (True, False): "after join"}.get((self.follows_last, self.joins), "plain")
        if len(self.ranks) == 1:
            return f"{self.workload} {self.size} {self.optimizer} {self.schedule[0]} of rank {self.ranks[0]}"
        counts = "-".join(map(str, self.schedule)) if len(set(self.schedule)) > 1 else self.schedule[0]
        return f"{self.workload} {self.size} {self.optimizer} {counts} at {len(self.ranks)} {whose}"


def cases(worlds: Iterable[int]) -> list[Case]:
    """All that the sweeps measure with Gloo at ``WORLD`` of each of these, each once."""
    found = set()
    for world in worlds:
        for name in sweep.names():
            asked = sweep.load(name)
            try:
                planned = plan(asked, ["torch", "impl"], world, lambda _size: Place("gloo", "cpu"))
            except BadInput:  # it has no cell for so few ranks
                continue
            for cell in planned.all_cells():
                length = asked.epoch if cell.unit == "epoch" else asked.block_of(cell.workload) + 1
                shared = (cell.workload, cell.size, cell.optimizer)
                schedule = cell.trained(length)
                if cell.hook in ALONE:
                    own = [rank for rank, count in enumerate(schedule) if count]
                    found |= {Case(*shared, (schedule[rank],), (rank,), False, False) for rank in own}
                else:
                    buffered = cell.workload in BUFFERED
                    whose = (cell.follows_last and buffered, cell.joins and buffered)
                    found.add(Case(*shared, schedule, tuple(range(cell.world)), *whose))
    return sorted(found)


def even(world: int, iterations: int) -> list[Case]:
    """Every workload with every optimizer that it goes with, whether a sweep has it or not."""
    pairs = [(name, "sgd") for name in KNOWN] + [(name, "adam") for name in KNOWN if name not in SPARSE]
    ranks = tuple(range(world))
    return [Case(name, "cpu", kind, (iterations,) * world, ranks, False, False) for name, kind in pairs]


@dataclass
class Trained:
    """A model at the end of a turn, and what its last iteration began with. Lists are by place."""

    model: nn.Module
    buffers: list[oracle.State]
    own: list[oracle.State]  # before all took over the last rank's, where a Join ended
    gradients: dict[int, Gradients]  # of the last iteration, by place
    before: tuple[nn.Module, torch.optim.Optimizer]  # before its step
    held: list[oracle.State]  # buffers before it


def train(
    case: Case,
    *,
    reversely: bool = False,
    dtype: torch.dtype = torch.float32,
    nudged: bool = False,
    lost: tuple[int, int] = (-1, -1),
) -> Trained:
    """Train the case as the oracle does, or so that it rounds otherwise.

    Args:
        reversely: add up from the last rank to the first, and divide once at the end
        dtype: of parameters, buffers and inputs
        nudged: every parameter begins one unit in the last place off, up or down
        lost: an iteration and a place whose gradients are left out, a mistake
    """
    workload = load(case.workload, case.size)
    model = workload.model().to(dtype)
    if nudged:
        _nudge(model)
    kind, settings = workload.optimizer(case.optimizer)
    optimizer = kind(model.parameters(), **settings)
    replicas = oracle.Replicas(model, len(case.ranks), max if case.follows_last else min)
    for iteration in range(max(case.schedule)):
        active = oracle.active_ranks(case.schedule, iteration)
        order = active[::-1] if reversely else active
        held, before = replicas.held, (model, optimizer)
        batches = replicas.visited(order, [_batch(workload, case.ranks[place], iteration, dtype) for place in order])
        gradients = (oracle.local_gradients(model, batch, _itself) for batch in batches)
        each = dict(zip(order, gradients, strict=True))
        if iteration == max(case.schedule) - 1:
            before = copy.deepcopy(before)
        counted = [each[place] for place in order if (iteration, place) != lost]
        step(model, optimizer, averaged(counted, len(case.ranks), late=reversely))
    own = replicas.held
    if case.joins:
        replicas.take_over(active)
    return Trained(model, replicas.held, own, each, before, held)


def _itself(loss: torch.Tensor) -> torch.Tensor:
    return loss


def _nudge(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            up = torch.rand(parameter.shape, generator=generator) < 0.5
            parameter.copy_(torch.nextafter(parameter, torch.where(up, torch.inf, -torch.inf)))


def _batch(workload: Workload, rank: int, iteration: int, dtype: torch.dtype) -> Any:
    parts = workload.batch(rank, iteration)
    return tuple(part.to(dtype) if part.is_floating_point() else part for part in parts)


def averaged(each: Sequence[Gradients], divisor: int, late: bool = False) -> Gradients:
    """The sum over the divisor; with ``late`` divided once, after adding up."""
    total: Gradients = {}
    for one in each:
        for name, gradient in one.items():
            part = gradient if late else gradient / divisor
            total[name] = total[name] + part if name in total else part
    return {name: gradient / divisor for name, gradient in total.items()} if late else total


def step(model: nn.Module, optimizer: torch.optim.Optimizer, gradients: Gradients) -> None:
    for name, parameter in model.named_parameters():
        parameter.grad = gradients.get(name)
    optimizer.step()


# -- distances


@dataclass(frozen=True)
class Expectation:
    """What ``verify`` holds the ranks of a case to."""

    parameters: ExpectedValues
    buffers: tuple[ExpectedValues, ...]  # by place

    def of_parameters(self, model: nn.Module) -> float:
        return self.parameters.gap(parameter.float() for parameter in model.parameters())[0]

    def of_buffers(self, buffers: Sequence[oracle.State]) -> float:
        """The farthest of all ranks."""
        pairs = zip(self.buffers, buffers, strict=True)
        return max(row.gap(tensor.float() for tensor in state.values())[0] for row, state in pairs)


def expectation(case: Case, trained: Trained) -> Expectation:
    """As ``verify.expected`` makes it."""
    model = load(case.workload, case.size).model()
    start = dict([*model.named_parameters(), *model.named_buffers()])
    buffers = tuple(expected_values(list(held.items()), start) for held in trained.buffers)
    return Expectation(expected_values(list(trained.model.named_parameters()), start), buffers)


def rounding(case: Case, wanted: Expectation) -> dict[str, float]:
    """How far off a right result may be, by what makes it round otherwise."""
    ways: dict[str, Callable[[], Trained]] = {
        "another order, one ulp": lambda: train(case, reversely=True, nudged=True),
        "float64": lambda: train(case, dtype=torch.float64),
    }
    found = {}
    for name, way in ways.items():
        other = way()
        found[name] = max(wanted.of_parameters(other.model), wanted.of_buffers(other.buffers))
    return found


def mistakes(case: Case, trained: Trained, wanted: Expectation) -> dict[str, float]:
    """How far off wrong results are: one mistake in the last iteration, or in the first, where more come after it."""
    world, each = len(case.ranks), trained.gradients
    whole = list(each.values())
    steps = {"divisor one too large": averaged(whole, world + 1)}
    if len(each) > 1:
        for place in each:
            others = [gradients for other, gradients in each.items() if other != place]
            steps[f"rank {place} lost"] = averaged(others, world)
    if len(each) != world:
        steps["divided by the active ranks"] = averaged(whole, len(each))
    found = {name: wanted.of_parameters(_after(trained, gradients)) for name, gradients in steps.items()}
    found["step missed"] = wanted.of_parameters(trained.before[0])
    if world > 1 and max(case.schedule) > 1:
        last = max(oracle.active_ranks(case.schedule, 0))
        found[f"rank {last} lost at first"] = wanted.of_parameters(train(case, lost=(0, last)).model)
    return found


def _after(trained: Trained, gradients: Gradients) -> nn.Module:
    """The model, had the last step been made with these gradients."""
    model, optimizer = copy.deepcopy(trained.before)
    step(model, optimizer, gradients)
    return model


def stale(case: Case, trained: Trained, wanted: Expectation) -> dict[str, float]:
    """How far off buffers are that miss an update, a broadcast, or what a Join leaves at its end."""
    places = range(len(case.ranks))
    wrong = {(place, "misses the last iteration"): trained.held[place] for place in places}
    source = (max if case.follows_last else min)(trained.gradients)
    for place in trained.gradients.keys() - {source}:
        if case.joins:
            wrong[place, "keeps its own after the Join"] = trained.own[place]
        elif max(case.schedule) > 1:
            wrong[place, "misses the last broadcast"] = _unshared(case, trained, place)
    return {
        f"rank {place} {what}": wanted.buffers[place].gap(state.values())[0] for (place, what), state in wrong.items()
    }


def _unshared(case: Case, trained: Trained, place: int) -> oracle.State:
    """The buffers of a rank whose last forward began with what it had itself."""
    model, _ = copy.deepcopy(trained.before)
    for name, buffer in model.named_buffers():
        buffer.copy_(trained.held[place][name])
    batch = _batch(load(case.workload, case.size), case.ranks[place], max(case.schedule) - 1, torch.float32)
    with torch.no_grad():
        model(batch)
    return dict(model.named_buffers())
