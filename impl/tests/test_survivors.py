"""Ranks are killed at random; the others go on, and end with what the oracle of that schedule computes.

``python -m impl.tests.test_survivors 300`` makes 300 kills.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from impl import DistributedDataParallel, ZeroRedundancyOptimizer
from impl.ddp.survivors import regroup
from impl.errors import PeerFailed
from impl.tests.comm_hook_ranks import _starting, run_on_ranks

pytestmark = pytest.mark.slow

_DEADLINE_S = 120.0
_STEPS = 8
_PLACES = ("before the forward", "in the backward", "before the step", "after the step")


def net():
    first, second = nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False)
    for layer in (first, second):
        nn.init.ones_(layer.weight)
    return nn.Sequential(first, second)


class Weights(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, factor):
        return sum((parameter * factor).sum() for parameter in self.inner.parameters())


def optimizer_of(module):
    return torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.5)


def work(folder, rank, world, kills):
    """Train; ``kills``: by rank, the step and the place at which it is killed."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=_DEADLINE_S))
    model = DistributedDataParallel(Weights(), bucket_cap_mb=1e-6)
    optimizer = optimizer_of(model)
    steps, schedule = 0, []

    def dies(step, place):
        if kills.get(rank) == (step, place):
            os.kill(os.getpid(), signal.SIGKILL)

    model.module.inner[1].weight.register_hook(lambda _: dies(steps, _PLACES[1]))
    ranks = tuple(range(world))
    while steps < _STEPS:
        try:
            dies(steps, _PLACES[0])
            optimizer.zero_grad()
            model(torch.tensor(float(world * (1 + rank + steps)))).backward()
            dies(steps, _PLACES[2])
            optimizer.step()
            schedule.append(ranks)
            steps += 1
            dies(steps - 1, _PLACES[3])
        except PeerFailed:
            left = regroup(model, optimizer, steps)
            if left.steps > steps:  # another rank had made this step with the one that is lost
                schedule.append(ranks)
            ranks, steps = left.ranks, left.steps
    weights = [parameter.tolist() for parameter in model.parameters()]
    Path(folder, str(rank)).write_text(json.dumps([schedule, weights]))
    os._exit(0)


def oracle(world, schedule):
    """One process: each step averages over the ranks that took part in it."""
    module = Weights()
    optimizer = optimizer_of(module)
    for step, ranks in enumerate(schedule):
        optimizer.zero_grad()
        factor = sum(world * (1 + rank + step) for rank in ranks) / len(ranks)
        module(torch.tensor(factor)).backward()
        optimizer.step()
    return [parameter.tolist() for parameter in module.parameters()]


def one_kill(seed):
    """Kill one or more of two to four ranks; what went wrong, or None."""
    drawn = random.Random(seed)
    world = drawn.choice([2, 3, 4])
    dying = drawn.sample(range(world), drawn.randint(1, world - 1))
    kills = {rank: (drawn.randrange(1, _STEPS), drawn.choice(_PLACES)) for rank in dying}
    with tempfile.TemporaryDirectory() as folder:
        orders = [(folder, rank, world, kills) for rank in range(world)]
        ranks = [_starting.Process(target=work, args=order, daemon=True) for order in orders]
        for process in ranks:
            process.start()
        end = time.monotonic() + _DEADLINE_S
        for process in ranks:
            process.join(max(end - time.monotonic(), 0))
        late = [rank for rank, process in enumerate(ranks) if process.exitcode is None]
        for process in ranks:
            process.kill()
        ended = {rank: Path(folder, str(rank)) for rank in range(world)}
        said = {rank: json.loads(file.read_text()) for rank, file in ended.items() if file.exists()}
    what = f"seed {seed}: {world} ranks, kills {kills}: "
    if late or set(said) != set(range(world)) - set(dying):
        return what + f"late {late}, ended {sorted(said)}"
    for rank, (schedule, weights) in said.items():
        if len(schedule) != _STEPS or weights != oracle(world, schedule):
            return what + f"rank {rank} has {weights} after {schedule}"
    schedules = [schedule for schedule, _ in said.values()]
    return None if all(schedule == schedules[0] for schedule in schedules) else what + f"schedules {schedules}"


@pytest.mark.parametrize("seed", range(20))
def test_the_survivors_of_random_kills_end_with_the_oracles_weights(seed):
    assert one_kill(seed) is None


def sharded(rank, world):
    model = DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.5)
    with pytest.raises(TypeError, match="taken its shard"):
        regroup(model, optimizer, 0)
    return True


def test_a_sharded_optimizer_is_refused_by_name():
    assert run_on_ranks(sharded, 2) == [True, True]


if __name__ == "__main__":
    count, first = (*map(int, sys.argv[1:]), *(300, 0)[len(sys.argv) - 1 :])  # so many, from this seed on
    wrong = [text for seed in range(first, first + count) if (text := one_kill(seed)) is not None]
    print(f"{count} kills: {count - len(wrong)} went on with the oracle's weights, {len(wrong)} did not")
    print("\n".join(wrong))
    sys.exit(bool(wrong))
