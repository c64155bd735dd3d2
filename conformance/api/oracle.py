"""The oracle: what one process computes. N ranks on any schedule must leave exactly this.

A *schedule* is a list of iteration counts, one per rank. In iteration ``i`` the active ranks are those whose count is
above ``i``; an absent rank contributes a zero gradient; the sum is divided by the initial world size, or by the number
of active ranks when asked. Data comes from a function ``batch(rank, iteration) -> tensor``, so that the oracle and the
ranks read the same numbers. With small integers and power-of-two divisors all arithmetic is exact and equality bitwise;
elsewhere compare with a tolerance and say why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from .differences import difference

Batch = Callable[[int, int], torch.Tensor]
Loss = Callable[[torch.Tensor], torch.Tensor]
State = dict[str, torch.Tensor]


def active_ranks(schedule: Sequence[int], iteration: int) -> list[int]:
    """The ranks that still have data in this iteration."""
    return [rank for rank, count in enumerate(schedule) if count > iteration]


def local_gradients(model: torch.nn.Module, batch: torch.Tensor, loss: Loss = torch.sum) -> dict[str, torch.Tensor]:
    """The gradients of one rank's batch alone, by parameter name; parameters without one are left out."""
    model.zero_grad(set_to_none=True)
    torch.autograd.backward(loss(model(batch)))
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def averaged_gradients(
    model: torch.nn.Module,
    batches: Iterable[torch.Tensor],
    divisor: int,
    loss: Loss = torch.sum,
) -> dict[str, torch.Tensor]:
    """Sum over the batches of each one's gradient, divided by ``divisor``; unused parameters are left out.

    Each summand is divided first and the quotients are added in rank order; with power-of-two divisors and small
    integers that equals any other order.
    """
    total: dict[str, torch.Tensor] = {}
    for batch in batches:
        for name, gradient in local_gradients(model, batch, loss).items():
            total[name] = total[name] + gradient / divisor if name in total else gradient / divisor
    return total


class Replicas:
    """Every rank's own buffers of a model whose parameters are common to all: what buffer broadcasts make of them.

    At the start of an iteration everybody, joined ranks included, takes over the buffers of ``source(active ranks)``
    (DDP's is the first rank, within a Join the highest active one); then each active rank's forward changes its own.
    """

    def __init__(self, model: torch.nn.Module, world: int, source: Callable[[Sequence[int]], int]) -> None:
        self._buffers, self._source = dict(model.named_buffers()), source
        self.held = [self._copied()] * world  # by rank; replaced whole, never written to

    def _copied(self) -> State:
        return {name: buffer.detach().clone() for name, buffer in self._buffers.items()}

    @torch.no_grad()
    def _load(self, state: State) -> None:
        for name, buffer in self._buffers.items():
            buffer.copy_(state[name])

    def take_over(self, active: Sequence[int]) -> None:
        """Everybody takes over the buffers of the one whose count when these are active."""
        self.held = [self.held[self._source(active)]] * len(self.held)

    def visited(self, active: Sequence[int], batches: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """The active ranks' batches of an iteration; while one is out, the model has that rank's buffers."""
        self.take_over(active)
        for rank, batch in zip(active, batches, strict=True):
            self._load(self.held[rank])
            yield batch
            self.held[rank] = self._copied()


@dataclass(frozen=True)
class Step:
    """What one iteration leaves behind on every rank that took part in it."""

    gradients: State  # averaged over the ranks, before the optimizer used them
    parameters: State  # after the optimizer's step


def steps_alone(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Sequence[int],
    batch: Batch,
    *,
    divide_by_initial: bool = True,
    loss: Loss = torch.sum,
    replicas: Replicas | None = None,
) -> Iterator[Step]:
    """Train in one process by the documented rule; yields after every iteration of the busiest rank.

    Without ``replicas`` the buffers of the model see all forwards, one after the other.
    """
    for iteration in range(max(schedule)):
        active = active_ranks(schedule, iteration)
        divisor = len(schedule) if divide_by_initial else len(active)
        batches: Iterable[torch.Tensor] = (batch(rank, iteration) for rank in active)
        batches = batches if replicas is None else replicas.visited(active, batches)
        gradients = averaged_gradients(model, batches, divisor, loss)
        for name, parameter in model.named_parameters():
            parameter.grad = gradients.get(name)
        optimizer.step()
        yield Step(gradients, {name: parameter.detach().clone() for name, parameter in model.named_parameters()})


def train_alone(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Sequence[int],
    batch: Batch,
    *,
    divide_by_initial: bool = True,
    loss: Loss = torch.sum,
) -> Iterator[State]:
    """Like ``steps_alone``, but yields only the parameters."""
    for step in steps_alone(model, optimizer, schedule, batch, divide_by_initial=divide_by_initial, loss=loss):
        yield step.parameters


def buffers_seen(schedule: Sequence[int], steps: Sequence[float]) -> tuple[list[list[float]], list[list[float]]]:
    """What a counter held as a buffer shows when an uneven schedule is trained with buffer broadcasts.

    At the start of an iteration everybody, joined ranks included, receives the counter of the highest active rank;
    then each active rank adds its own step. Returns, per rank, the values at the start of its own forwards and the
    values received while it had joined.
    """
    counters = [0.0] * len(schedule)
    own: list[list[float]] = [[] for _ in schedule]
    shadowed: list[list[float]] = [[] for _ in schedule]
    for iteration in range(max(schedule)):
        active = active_ranks(schedule, iteration)
        counters = [counters[active[-1]]] * len(schedule)
        for rank, counter in enumerate(counters):
            (own if rank in active else shadowed)[rank].append(counter)
        for rank in active:
            counters[rank] += steps[rank]
    return own, shadowed


def first_difference(ours: State, theirs: State) -> str | None:
    """Name the first parameter that differs in a single bit and by how much; None if there is none."""
    for name, expected in theirs.items():
        if name not in ours:
            return f"{name} is missing"
        got = ours[name]
        if got.shape != expected.shape or not torch.equal(got, expected):
            return difference({name: got}, {name: expected}) or f"{name}: the tensors differ"
    return None
