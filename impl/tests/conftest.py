"""What the tests of impl on real ranks share."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist

from conformance.ranks import Cluster


@pytest.fixture
def alone() -> Iterator[None]:
    """In a world of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def gloo_cluster() -> Iterator[Cluster]:
    """Fresh Gloo ranks for every run."""
    with Cluster("gloo", deadline_s=60) as made:
        yield made


@pytest.fixture
def run(gloo_cluster: Cluster) -> Callable[..., list[Any]]:
    """Runs a function on ranks with our implementation as the subject; the ranks' results."""

    def on_ranks(function: Callable[..., Any], *args: Any, world: int) -> list[Any]:
        return gloo_cluster.run(function, args, world=world, subject="impl").values()

    return on_ranks
