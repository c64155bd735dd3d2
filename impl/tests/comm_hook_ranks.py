"""A few real ranks for the tests of the hooks: starts processes, runs a function on each, returns results by rank."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_DEADLINE_S = 300.0
_starting = multiprocessing.get_context("forkserver")
# torch._dynamo: an optimizer imports it on first use, which takes seconds
_starting.set_forkserver_preload(["torch", "torch._dynamo", "impl.ddp"])


def run_on_ranks(function: Callable[..., Any], world: int, *args: Any) -> list[Any]:
    """Run ``function(rank, world, *args)`` on ``world`` fresh processes over Gloo; raises if one fails or is late."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "store")
        pipes, processes = [], []
        for rank in range(world):
            ours, theirs = _starting.Pipe(duplex=False)
            process = _starting.Process(target=_work, args=(theirs, meeting, rank, world, function, args), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            return [_result(pipe, rank) for rank, pipe in enumerate(pipes)]
        finally:
            for process in processes:
                process.kill()
                process.join()


def _result(pipe: multiprocessing.connection.Connection, rank: int) -> Any:
    if not pipe.poll(_DEADLINE_S):
        raise TimeoutError(f"rank {rank} has not finished within {_DEADLINE_S} s")
    fine, value = pipe.recv()
    if not fine:
        raise AssertionError(f"rank {rank} failed:\n{value}")
    return value


def _work(
    pipe: multiprocessing.connection.Connection,
    meeting: str,
    rank: int,
    world: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    deadline = timedelta(seconds=_DEADLINE_S)
    try:
        store = dist.FileStore(meeting, world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=deadline)
        pipe.send((True, function(rank, world, *args)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    time.sleep(2 * _DEADLINE_S)  # nobody leaves while a peer may still need it; the parent kills
