"""Prints how long a step of a compiled DDP takes where backward and a network share the time.

    python -m conformance hosts --hosts 2 --rate 500mbit -- -m conformance.examples.compiled_overlap

Eight layers of 1 MiB wait where a GPU would compute. ``--whole`` keeps the compiler from splitting the graph at the
buckets, so that all gradients come at the end; ``--torch`` takes torch's own class, ``--steps N`` other than 12.
"""

import argparse
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

FORWARD_S, BACKWARD_S = 0.01, 0.02


@torch.library.custom_op("joinery::held", mutates_args=())
def held(carry: torch.Tensor, _weight: torch.Tensor) -> torch.Tensor:
    """One layer's forward: it takes time, and its value means nothing."""
    time.sleep(FORWARD_S)
    return carry.clone()


@torch.library.custom_op("joinery::held_backward", mutates_args=())
def held_backward(weight: torch.Tensor) -> torch.Tensor:
    """One layer's gradient."""
    time.sleep(BACKWARD_S)
    return torch.ones_like(weight)


held.register_fake(lambda carry, _: torch.empty_like(carry))
held_backward.register_fake(torch.empty_like)
held.register_autograd(
    lambda ctx, ahead: (ahead, held_backward(*ctx.saved_tensors)),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),  # noqa: ARG005 torch passes names
)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(512, 512))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = held(x, self.weight)
        return out


def median_ms(model: nn.Module, call: Any, steps: int) -> float:
    """Of a step, after some that compile and let the buckets settle."""
    times = []
    for _ in range(5 + steps):
        model.zero_grad()
        dist.barrier()
        start = time.perf_counter()
        call(torch.zeros(1)).sum().backward()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[5:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--steps", type=int, default=12)
    asked = parser.parse_args()
    if asked.torch:
        from torch.nn.parallel import DistributedDataParallel
    else:
        from impl import DistributedDataParallel  # type: ignore[assignment]
    torch._dynamo.config.optimize_ddp = not asked.whole
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(*(Layer() for _ in range(8))), bucket_cap_mb=1.0)
    eager = median_ms(model, model, asked.steps)
    compiled = median_ms(model, torch.compile(model, backend="aot_eager"), asked.steps)
    if dist.get_rank() == 0:
        print(f"a step takes {eager:.0f} ms, and compiled {'whole' if asked.whole else 'in pieces'} {compiled:.0f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
