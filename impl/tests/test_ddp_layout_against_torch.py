"""Where buckets are never rebuilt, what goes into each of them is what torch puts there."""

import random

import pytest
import torch
from torch import nn

from impl.ddp import DistributedDataParallel

pytestmark = pytest.mark.slow

WORDS = ("bucket_sizes", "num_parameter_tensors", "total_parameter_size_bytes")


class Heap(nn.Module):
    """Parameters of many sizes, of two dtypes in places."""

    def __init__(self, sizes, dtypes):
        super().__init__()
        self.all = nn.ParameterList(
            nn.Parameter(torch.ones(size, dtype=dtype)) for size, dtype in zip(sizes, dtypes, strict=True)
        )

    def forward(self, x):
        return sum((x * each.sum() for each in self.all), x)


def layout(kind, module, cap):
    model = kind(module, find_unused_parameters=True, bucket_cap_mb=cap)
    model(torch.ones(1)).sum().backward()
    log = model._get_ddp_logging_data()
    return {word: log[word] for word in WORDS}


def drawn(seed):
    generator = random.Random(seed)
    count = generator.randint(1, 12)
    sizes = [generator.choice([1, 1000, 60_000, 130_000, 510_000]) for _ in range(count)]
    dtypes = [generator.choice([torch.float32] * 3 + [torch.float64]) for _ in range(count)]
    return Heap(sizes, dtypes), generator.choice([0.1, 0.5, 1.5, 25])


def test_random_models_have_torchs_buckets(alone):
    several = 0
    for seed in range(30):
        ours, theirs = (
            layout(kind, *drawn(seed)) for kind in (DistributedDataParallel, nn.parallel.DistributedDataParallel)
        )
        assert ours == theirs, f"seed {seed}"
        several += "," in ours["bucket_sizes"]
    assert several >= 10, "too few of the models have more than one bucket"
