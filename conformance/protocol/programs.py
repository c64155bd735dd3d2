"""What simulated ranks train: small joinables of a subject, and what one process computes for them.

Inputs are multiples of six, so that sums, halves and thirds of them are exact. Input ``i`` of rank ``r`` is the same in
every program; a model is a sum of weights times the input, so each weight's gradient is the input.
"""

# The base classes are the subject's, known only at run time; mypy cannot follow that.
# mypy: disable-error-code="valid-type,misc"

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from ..subjects import Subject

#: What a rank notes of an iteration or at the end: a name and numbers.
Note = tuple[str, tuple[float, ...]]

_TINY_MIB = 1e-6  # each parameter in a bucket of its own


def given(rank: int, iteration: int) -> float:
    """Input ``iteration`` of a rank: a power of two times six, so that each sum tells who has added to it."""
    return 6.0 * 2.0 ** (4 * iteration + rank)


class Trainer(Protocol):
    """One rank's joinables and its loop's body."""

    joinables: list[Any]
    log: list[Note]

    def iterate(self, iteration: int, number: float) -> None:
        """One iteration on this input."""

    def state(self) -> list[Note]:
        """What it holds after the block."""


# ---------------------------------------------------------------------------------------------------- plain joinables


class Counting:
    """One or two plain joinables; each sums its ranks' inputs, shadowed with zeros."""

    def __init__(self, subject: Subject, joinables: int = 1) -> None:
        self.log: list[Note] = []
        self._subject = subject
        self.joinables = [self._joinable(place) for place in range(joinables)]

    def iterate(self, iteration: int, number: float) -> None:
        for place, joinable in enumerate(self.joinables):
            handle = self._subject.Join.notify_join_context(joinable)
            if handle is not None:
                handle.wait()
                (active,) = handle.get_future().wait()
                self.log.append(("active", (float(active),)))
            self.log.append((f"sum {place}", (_summed(number, place),)))

    def state(self) -> list[Note]:
        return []

    def _joinable(self, place: int) -> Any:
        log = self.log

        class Hook(self._subject.JoinHook):  # type: ignore[name-defined]
            def main_hook(self) -> None:
                _summed(0.0, place)

            def post_hook(self, is_last_joiner: bool) -> None:
                log.append((f"last {place}", (float(is_last_joiner), _summed(1.0, place))))

        class Sums(self._subject.Joinable):  # type: ignore[name-defined]
            def __init__(self) -> None:
                super().__init__()

            def join_hook(self, **_: Any) -> Any:
                return Hook()

            join_device = property(lambda _: torch.device("cpu"))
            join_process_group = property(lambda _: dist.group.WORLD)

        return Sums()


def _summed(number: float, place: int) -> float:
    """The sum over the ranks; each joinable's message has a length of its own, so that none passes for another's."""
    tensor = torch.full((3 + place,), number, dtype=torch.float64)
    group: Any = dist.group.WORLD
    group.allreduce([tensor], dist.AllreduceOptions()).wait()
    return float(tensor[-1])


# ------------------------------------------------------------------------------------------------------------- models


class Weights(nn.Module):
    """The sum of its weights, or of some, times the input; a buffer counts the inputs that it has seen."""

    seen: torch.Tensor

    def __init__(self, count: int, buffer: bool) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.zeros(1, dtype=torch.float64) for _ in range(count)])
        if buffer:
            self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))
        self.buffer = buffer

    def forward(self, number: float, used: int) -> torch.Tensor:
        if self.buffer and self.training:
            self.seen.add_(number)
        return torch.stack([weight * number for weight in list(self.weights)[:used]]).sum()


@dataclass(frozen=True)
class Shape:
    """How models are built and what an iteration does with them."""

    models: int = 1
    weights: int = 1
    buffer: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    zero: bool = False
    counting: bool = False  # a plain joinable beside it
    counting_first: bool = False
    #: what this iteration is: "train", "skip" (no backward), "accumulate" (under no_sync), "evaluate" (and train)
    kinds: tuple[str, str, str] = ("train", "train", "train")
    #: whether the last weight is used by odd ranks only
    partly_used: bool = False

    def used(self, rank: int) -> int:
        """How many of the weights a rank uses."""
        return self.weights - (self.partly_used and rank % 2 == 0)


class Training:
    """DDP models, perhaps with ZeRO and a plain joinable, each stepped with its averaged gradients."""

    def __init__(self, subject: Subject, shape: Shape, rank: int) -> None:
        self.shape = shape
        self._rank = rank
        self.log: list[Note] = []
        modules = [Weights(shape.weights, shape.buffer) for _ in range(shape.models)]
        self.models = [
            subject.DistributedDataParallel(module, init_sync=False, bucket_cap_mb=_TINY_MIB, **shape.options)
            for module in modules
        ]
        self._optimizers = [_optimizer(subject, module, shape.zero) for module in modules]
        self._counting = Counting(subject) if shape.counting else None
        beside = [] if self._counting is None else self._counting.joinables
        zeros = self._optimizers if shape.zero else []
        self.joinables = [*beside, *self.models] if shape.counting_first else [*self.models, *zeros, *beside]

    def iterate(self, iteration: int, number: float) -> None:
        kind = self.shape.kinds[iteration]
        if kind != "accumulated":
            self._clear()
        used = self.shape.used(self._rank)
        if kind == "evaluate":
            with torch.no_grad():
                for model in self.models:
                    model.eval()(number, used)
                    model.train()
        with self.models[0].no_sync() if kind == "accumulate" else nullcontext():
            outputs = [model(number, used) for model in self.models]
            self._note_buffers(iteration)
            if kind != "skip":
                sum(outputs).sum().backward()  # type: ignore[union-attr]
        if kind not in ("skip", "accumulate"):
            self._step(iteration)
        if self._counting is not None:
            self._counting.iterate(iteration, number)

    def _note_buffers(self, iteration: int) -> None:
        for place, model in enumerate(self.models if self.shape.buffer else ()):
            self.log.append((f"buffer {place}.{iteration}", (float(model.module.seen),)))

    def _clear(self) -> None:
        for model in self.models:
            model.zero_grad(set_to_none=True)

    def _step(self, iteration: int) -> None:
        for place, model in enumerate(self.models):
            self.log.append((f"gradients {place}.{iteration}", _gradients(model)))
        for optimizer in self._optimizers:
            optimizer.step()

    def state(self) -> list[Note]:
        found: list[Note] = []
        for place, model in enumerate(self.models):
            found.append((f"weights {place}", tuple(float(weight.detach()) for weight in model.module.weights)))
            if not self.shape.zero:  # which makes use of a joined rank's
                found.append((f"gradients {place}", _gradients(model)))
            if self.shape.buffer:
                found.append((f"buffer {place}", (float(model.module.seen),)))
        return found + ([] if self._counting is None else self._counting.log)


def _gradients(model: Any) -> tuple[float, ...]:
    """Of each weight; NaN where there is none."""
    gradients = [weight.grad for weight in model.module.weights]
    return tuple(float("nan") if each is None else float(each) for each in gradients)


def _optimizer(subject: Subject, module: nn.Module, zero: bool) -> Any:
    if zero:
        return subject.ZeroRedundancyOptimizer(module.parameters(), optimizer_class=torch.optim.SGD, lr=1.0)
    return torch.optim.SGD(module.parameters(), lr=1.0)


# ----------------------------------------------------------------------------------------------------- what is expected


def _counted(inputs: Sequence[int], joinables: int, rank: int, *, first: bool = True) -> list[Note]:
    notes: list[Note] = []
    for iteration in range(inputs[rank]):
        active = _active(inputs, iteration)
        if first:
            notes.append(("active", (float(len(active)),)))
        total = sum(given(each, iteration) for each in active)
        notes += [(f"sum {place}", (total,)) for place in range(joinables)]
    last = float(inputs[rank] == max(inputs))
    return notes + [(f"last {place}", (last, float(len(inputs)))) for place in range(joinables)]


def _active(inputs: Sequence[int], iteration: int) -> list[int]:
    return [rank for rank, count in enumerate(inputs) if count > iteration]


class _Replicas:
    """One process that does what all ranks of a shape do."""

    def __init__(self, shape: Shape, inputs: Sequence[int], by_all: bool) -> None:
        self._shape, self._inputs, self._by_all = shape, inputs, by_all
        self.weights = [0.0] * shape.weights
        self.buffers = [0.0] * len(inputs)
        self.local: list[list[float | None]] = [[None] * shape.weights for _ in inputs]
        self.logs: list[list[Note]] = [[] for _ in inputs]

    def run(self) -> None:
        for iteration in range(max(self._inputs)):
            self._iterate(iteration, self._shape.kinds[iteration], _active(self._inputs, iteration))
        last = max(rank for rank, count in enumerate(self._inputs) if count == max(self._inputs))
        self.buffers = [self.buffers[last]] * len(self._inputs)

    def _iterate(self, iteration: int, kind: str, active: Sequence[int]) -> None:
        self._see(iteration, active, synchronised=iteration == 0 or self._shape.kinds[iteration - 1] != "accumulate")
        for rank in active if kind != "accumulated" else ():
            self.local[rank] = [None] * self._shape.weights
        if kind == "skip":
            return
        for rank in active:
            for place in range(self._shape.used(rank)):
                self.local[rank][place] = (self.local[rank][place] or 0.0) + given(rank, iteration)
        if kind != "accumulate":
            self._reduce(iteration, active)

    def _see(self, iteration: int, active: Sequence[int], *, synchronised: bool) -> None:
        if synchronised:
            self.buffers = [self.buffers[active[-1]]] * len(self._inputs)
        for rank in active:
            self.buffers[rank] += given(rank, iteration)
            if self._shape.buffer:
                seen = [(f"buffer {model}.{iteration}", (self.buffers[rank],)) for model in range(self._shape.models)]
                self.logs[rank] += seen

    def _reduce(self, iteration: int, active: Sequence[int]) -> None:
        divisor = len(self._inputs) if self._by_all else len(active)
        means: list[float] = []
        for place in range(self._shape.weights):
            parts = [part for rank in active if (part := self.local[rank][place]) is not None]
            means.append(sum(parts) / divisor if parts else float("nan"))
        for rank in active:
            self.local[rank] = list(means)
            named = [(f"gradients {model}.{iteration}", tuple(means)) for model in range(self._shape.models)]
            self.logs[rank] += named
        self.weights = [w if m != m else w - m for w, m in zip(self.weights, means, strict=True)]


def _comparable(gradients: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(float("nan") if each is None else each for each in gradients)


def _trained(shape: Shape, inputs: Sequence[int], by_all: bool) -> list[tuple[list[Note], list[Note]]]:
    replicas = _Replicas(shape, inputs, by_all)
    replicas.run()
    found = []
    for rank in range(len(inputs)):
        state: list[Note] = []
        for model in range(shape.models):
            state.append((f"weights {model}", tuple(replicas.weights)))
            if not shape.zero:
                state.append((f"gradients {model}", _comparable(replicas.local[rank])))
            if shape.buffer:
                state.append((f"buffer {model}", (replicas.buffers[rank],)))
        if shape.counting:
            state += _counted(inputs, 1, rank, first=shape.counting_first)
        found.append((replicas.logs[rank], state))
    return found


# ------------------------------------------------------------------------------------------------------------ programs


@dataclass(frozen=True)
class Program:
    """Something to train: how a rank makes its part, and each rank's expected (log, state)."""

    make: Callable[[Subject, int], Trainer]
    expected: Callable[[Sequence[int], bool], list[tuple[list[Note], list[Note]]]]
    divides: bool = True  # whether the divide setting matters
    wraps: bool = True  # whether the ranks wrap a model with DDP


def _plain(joinables: int) -> Program:
    return Program(
        lambda subject, _: Counting(subject, joinables),
        lambda inputs, _: [(_counted(inputs, joinables, rank), []) for rank in range(len(inputs))],
        divides=False,
        wraps=False,
    )


def has_torchs_ddp(subject: Subject) -> bool:
    """Whether the subject's DDP is torch's, which reads results from futures in C++, where no simulated rank waits."""
    offered = subject.names.get("DistributedDataParallel")
    return isinstance(offered, type) and nn.parallel.DistributedDataParallel in offered.__mro__


def _of(shape: Shape) -> Program:
    return Program(
        lambda subject, rank: Training(subject, shape, rank),
        lambda inputs, by_all: _trained(shape, inputs, by_all),
    )


PROGRAMS: Mapping[str, Program] = {
    "plain": _plain(1),
    "plain, plain": _plain(2),
    "ddp": _of(Shape()),
    "ddp, two buckets and a buffer": _of(Shape(weights=2, buffer=True)),
    "ddp, unused": _of(Shape(weights=2, options={"find_unused_parameters": True}, partly_used=True)),
    "ddp, static": _of(Shape(weights=2, options={"static_graph": True})),
    "ddp, a forward without backward": _of(Shape(kinds=("train", "skip", "train"))),
    "ddp, last without backward": _of(Shape(kinds=("train", "train", "skip"))),
    "ddp, accumulates": _of(Shape(weights=2, buffer=True, kinds=("accumulate", "accumulated", "train"))),
    "ddp, evaluates": _of(Shape(buffer=True, kinds=("train", "evaluate", "evaluate"))),
    "ddp, zero": _of(Shape(weights=2, zero=True)),
    "ddp, ddp": _of(Shape(models=2)),
    "ddp, plain": _of(Shape(counting=True)),
    "plain, ddp": _of(Shape(counting=True, counting_first=True)),
}
