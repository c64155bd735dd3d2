"""Makes one side of the streams late, so that whoever forgot to wait for it is found out.

A collective reads a gradient on a stream that must wait for the one which computed it, and the optimizer reads the
result on a stream that must wait for the collective. Where such a wait is missing, a run comes out right as long as
the other side is quick. So one side is held up by a sleep on the device, and the results must stay what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..ranks.recording import RecordingGroup

IN_TIME, GRADIENTS, COLLECTIVES = "in time", "late gradients", "late collectives"
_CYCLES = 20_000_000  # about 10 ms of a GPU
_METHODS = ("allreduce", "broadcast", "_allgather_base", "all_gather_single", "_reduce_scatter_base",
            "reduce_scatter_single", "allreduce_coalesced", "allgather", "reduce_scatter")  # fmt: skip


def late_gradients(parameters: Iterable[torch.Tensor], device: torch.device) -> None:
    """From now on every gradient of these is late on the stream that computes it."""
    for parameter in parameters:
        parameter.register_hook(lambda _: sleep(device))


def sleep(device: torch.device) -> None:
    """Hold up the current stream of a device, not the host; nothing on the CPU."""
    if device.type == "cuda":
        torch.cuda._sleep(_CYCLES)


@contextmanager
def late_collectives(device: torch.device) -> Iterator[int]:
    """Inside the block, collectives of this rank (of a recorded run) begin late, on whatever stream they run."""
    originals = {name: getattr(RecordingGroup, name) for name in _METHODS if hasattr(RecordingGroup, name)}
    for name, call in originals.items():
        setattr(RecordingGroup, name, _late(call, device))
    try:
        yield len(originals)
    finally:
        for name, call in originals.items():
            setattr(RecordingGroup, name, call)


def _late(call: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    def start(group: Any, *args: Any, **kwargs: Any) -> Any:
        # a collective that the caller waits for at once may run on the caller's own stream: nothing to hold up there
        waits = any(getattr(value, "asyncOp", True) is False for value in (*args, *kwargs.values()))
        if device.type != "cuda" or waits:
            return call(group, *args, **kwargs)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):  # the backend's own stream waits for the one that is current here
            sleep(device)
            return call(group, *args, **kwargs)

    return start
