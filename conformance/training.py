"""The training loops that the checks of DDP share: what runs on a rank, and what one process says of it.

Results travel as plain lists of numbers (exact for floats), so that a failed comparison shows the numbers themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from . import oracle
from .ranks import RankContext
from .subjects import Unsupported

Numbers = dict[str, Any]  # a name to the flat list of a tensor's elements, or to None where there is no gradient


def numbers(named: Iterable[tuple[str, torch.Tensor | None]]) -> Numbers:
    """Names with the elements of their tensors as flat lists; None stays None."""
    return {name: None if tensor is None else tensor.detach().flatten().tolist() for name, tensor in named}


def gradients(module: nn.Module) -> Numbers:
    """Every parameter's gradient by its name in the wrapped module; None where there is none."""
    return numbers((name.removeprefix("module."), p.grad) for name, p in module.named_parameters())


def parameters(module: nn.Module) -> Numbers:
    """Every parameter by its name in the wrapped module."""
    return numbers((name.removeprefix("module."), p) for name, p in module.named_parameters())


def gradient(parameter: nn.Parameter) -> float:
    """The gradient of a one-element parameter."""
    if parameter.grad is None:
        raise AssertionError("the parameter has no gradient after backward")
    return parameter.grad.item()


def ddp(ctx: RankContext, model: nn.Module, **options: Any) -> Any:
    """The subject's DDP around ``model``."""
    return ctx.subject.DistributedDataParallel(model, **options)


def private(owner: Any, name: str) -> Any:
    """An attribute that the documents name but do not promise; a subject may honestly not have it."""
    found = getattr(owner, name, None)
    if found is None:
        raise Unsupported(f"{type(owner).__name__} has no {name}; it is not part of the public interface")
    return found


@dataclass(frozen=True)
class Job:
    """One uneven training run: what to train, how long on each rank, and with which options."""

    model: Callable[[], nn.Module]
    batch: oracle.Batch
    schedule: tuple[int, ...]
    lr: float = 0.0  # 0: no optimizer step
    ddp: Mapping[str, Any] = field(default_factory=dict)
    join: Mapping[str, Any] | None = field(default_factory=dict)  # None: no context


@dataclass(frozen=True)
class Trained:
    """What one rank brings home from a ``Job``."""

    gradients: list[Numbers]  # after each of its own iterations
    last_gradients: Numbers  # after the block
    parameters: Numbers  # after the block


def train(ctx: RankContext, job: Job) -> Trained:
    """Rank function: train ``job`` under the subject's DDP, in a Join context unless ``job.join`` is None."""
    model = ddp(ctx, job.model(), **job.ddp)
    context = nullcontext() if job.join is None else model.join(**job.join)
    seen = iterate(ctx, model, job, context)
    return Trained(seen, gradients(model), parameters(model))


def train_each(ctx: RankContext, jobs: Sequence[Job]) -> list[Trained]:
    """Rank function: train several jobs one after the other, each with a model of its own."""
    return [train(ctx, job) for job in jobs]


def iterate(ctx: RankContext, model: Any, job: Job, context: AbstractContextManager[Any]) -> list[Numbers]:
    """Train this rank's iterations of ``job`` inside ``context``; the gradients after each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=job.lr)
    seen: list[Numbers] = []
    with context:
        for iteration in range(job.schedule[ctx.rank]):
            optimizer.zero_grad(set_to_none=True)
            model(job.batch(ctx.rank, iteration)).sum().backward()
            seen.append(gradients(model))
            if job.lr:
                optimizer.step()
    return seen


def expected(job: Job) -> tuple[list[Numbers], Numbers]:
    """One process's answer to ``job``: the averaged gradients of every iteration, and the parameters at the end."""
    model = job.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=job.lr)
    divide_by_initial = (job.join or {}).get("divide_by_initial_world_size", True)
    seen: list[Numbers] = []
    last = parameters(model)
    for step in oracle.steps_alone(model, optimizer, job.schedule, job.batch, divide_by_initial=divide_by_initial):
        seen.append(numbers((name, step.gradients.get(name)) for name, _ in model.named_parameters()))
        last = numbers(step.parameters.items())
    return seen, last


def assert_as_alone(job: Job, trained: Sequence[Trained]) -> None:
    """Every rank saw one process's gradients in each of its iterations and holds its parameters at the end."""
    averages, last = expected(job)
    for rank, mine in enumerate(trained):
        for iteration, seen in enumerate(mine.gradients):
            assert seen == averages[iteration], f"rank {rank}, iteration {iteration}, schedule {job.schedule}"
        assert len(mine.gradients) == job.schedule[rank], f"rank {rank} made {len(mine.gradients)} iterations"
        assert mine.parameters == last, f"parameters of rank {rank} after the block, schedule {job.schedule}"
