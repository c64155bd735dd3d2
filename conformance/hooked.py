"""What the checks of communication hooks share: models under DDP with a hook, simple hooks, and what to expect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import models, oracle
from .ranks import RankContext
from .training import Numbers, ddp, gradients, numbers

TINY_MIB = 1e-4  # about a hundred bytes: every layer of ``models.Sum`` has a bucket of its own
ITERATIONS = 4  # the first may use one large bucket, until the order of gradients is known; the last uses several


def hooked(
    ctx: RankContext,
    state: Any,
    hook: Callable[..., Any],
    model: nn.Module | None = None,
    group: dist.ProcessGroup | None = None,
    **options: Any,
) -> Any:
    """The subject's DDP around ``model`` (by default a sum of four layers in several buckets) with ``hook``."""
    options = {"bucket_cap_mb": TINY_MIB, "process_group": group, **options}
    wrapped = ddp(ctx, models.Sum() if model is None else model, **options)
    wrapped.register_comm_hook(state, hook)
    return wrapped


def step(model: Any, batch: torch.Tensor) -> Numbers:
    """One forward and backward from fresh gradients; the gradients."""
    model.zero_grad(set_to_none=True)
    model(batch).sum().backward()
    return gradients(model)


def steps(
    ctx: RankContext, model: Any, batch: oracle.Batch = models.divisible, count: int = ITERATIONS
) -> list[Numbers]:
    """The gradients of several iterations on this rank's data."""
    return [step(model, batch(ctx.rank, iteration)) for iteration in range(count)]


def steps_and_traffic(ctx: RankContext, model: Any) -> list[tuple[Numbers, int]]:
    """As ``steps``, with the number of collectives that each backward started (in a recorded run)."""
    told = []
    for iteration in range(ITERATIONS):
        model.zero_grad(set_to_none=True)
        output = model(models.divisible(ctx.rank, iteration)).sum()
        before = len(ctx.ledger())
        output.backward()
        told.append((gradients(model), len(ctx.ledger()) - before))
    return told


def done(value: Any) -> torch.futures.Future:
    """A completed future."""
    future: torch.futures.Future = torch.futures.Future()
    future.set_result(value)
    return future


def summing(group, bucket):  # type: ignore[no-untyped-def]  # a hook's annotations are judged: better none
    """A hook that adds up without dividing."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def alone(
    members: Sequence[int],
    *,
    divisor: int | None = None,
    batch: oracle.Batch = models.divisible,
    model: Callable[[], nn.Module] = models.Sum,
    count: int = ITERATIONS,
) -> list[Numbers]:
    """One process's gradients for ``steps`` over these ranks: their mean, or their sum divided by ``divisor``."""
    module = model()
    found = []
    for iteration in range(count):
        batches = [batch(rank, iteration) for rank in members]
        averaged = oracle.averaged_gradients(module, batches, divisor or len(members))
        found.append(numbers((name, averaged.get(name)) for name, _ in module.named_parameters()))
    return found


def generic(rank: int, iteration: int, rows: int = 8, width: int = 4) -> torch.Tensor:
    """Data without any pattern that floats could represent exactly."""
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1000 * rank + iteration))


def gap(ours: Sequence[Numbers], theirs: Sequence[Numbers]) -> float:
    """The largest difference between two runs, relative to the largest number of the second."""
    left, right = _flat(ours), _flat(theirs)
    assert left.shape == right.shape, f"{left.shape} against {right.shape} numbers"
    return ((left - right).abs().max() / right.abs().max()).item()


def _flat(run: Sequence[Numbers]) -> torch.Tensor:
    return torch.tensor([value for seen in run for values in seen.values() for value in values], dtype=torch.float64)
