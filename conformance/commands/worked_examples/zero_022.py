"""The Join documentation's own example, DDP and ZeRO in one context on uneven inputs: whose weights come out right?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from ...api.oracle import train_alone
from ...fixtures.models import integers
from ...ranks import Cluster, Finished, RankContext

SCHEDULES = ((5, 5), (10, 11), (5, 8), (8, 5))
SUBJECTS = ("torch", "impl")
LEARNING_RATE = 2.0**-6


def model() -> nn.Module:
    """Two layers, so that each of two ranks owns a shard."""
    layers = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 1, bias=False))
    for seed, parameter in enumerate(layers.parameters()):
        parameter.data.copy_(integers(*parameter.shape, seed=seed))
    return layers


def batch(rank: int, iteration: int) -> torch.Tensor:
    """What one rank reads in one iteration."""
    return integers(2, 4, seed=1000 * (rank + 1) + iteration)


def mean(output: torch.Tensor) -> torch.Tensor:
    return output.sum() / 8


def train(ctx: RankContext, schedule: Sequence[int]) -> list[list[float]]:
    """The example's loop on one rank; returns the weights afterwards, by parameter."""
    subject = ctx.subject
    ddp = subject.DistributedDataParallel(model())
    optimizer = subject.ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=LEARNING_RATE)
    with subject.Join([ddp, optimizer]):
        for iteration in range(schedule[ctx.rank]):
            optimizer.zero_grad()
            mean(ddp(batch(ctx.rank, iteration))).backward()
            optimizer.step()
    return [parameter.detach().flatten().tolist() for parameter in ddp.parameters()]


def alone(schedule: Sequence[int]) -> list[list[float]]:
    """The same training in one process by the documented rule: absent ranks add zero, divide by the initial size."""
    reference = model()
    optimizer = torch.optim.SGD(reference.parameters(), lr=LEARNING_RATE)
    final = list(train_alone(reference, optimizer, schedule, batch, loss=mean))[-1]
    return [weights.flatten().tolist() for weights in final.values()]


def tell() -> Iterator[str]:
    """Train the example on two ranks with every subject and in one process, and compare."""
    yield "Join([DDP, ZeroRedundancyOptimizer]), 2 ranks on Gloo, SGD; weights after the block."
    yield "One process is the measure; 'gap' is the largest difference of any weight from it, over all ranks."
    with Cluster("gloo") as cluster:
        for schedule in SCHEDULES:
            yield from _tell_one(cluster, schedule)


def _tell_one(cluster: Cluster, schedule: Sequence[int]) -> Iterator[str]:
    expected = alone(schedule)
    runs = {subject: cluster.run(train, (schedule,), world=2, subject=subject) for subject in SUBJECTS}
    finished = {name: run.values() for name, run in runs.items() if all(isinstance(o, Finished) for o in run.outcomes)}
    everyone = [weights for ranks in finished.values() for weights in ranks]
    layer = max(range(len(expected)), key=lambda k: max((_gap(w[k], expected[k]) for w in everyone), default=0.0))
    yield ""
    yield f"inputs per rank {schedule}, the first weights of layer {layer}"
    yield f"  {'one process':<12} {_shown(expected[layer])}"
    for subject, run in runs.items():
        if subject not in finished:
            yield f"  {subject:<12} {run.summary()}"
            continue
        first, second = finished[subject]
        gap = max(_gap(one, other) for weights in (first, second) for one, other in zip(weights, expected, strict=True))
        agree = "the ranks agree" if first == second else "the ranks differ"
        yield f"  {subject:<12} {_shown(first[layer])}   gap {gap:.6f}, {agree}"


def _shown(weights: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value: .5f}" for value in weights[:4]) + "]"


def _gap(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
