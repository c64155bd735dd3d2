"""What runs inside a rank's process: set up the group, call the function, report, wait for the word to end."""

from __future__ import annotations

import os
import traceback
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..subjects import Unsupported, resolve
from .context import RankContext
from .outcomes import Caught, Finished, Raised


def work(pipe: Any, job: tuple[Any, ...]) -> None:
    number, port, rank, world, backend, subject, function, args, init, env = job
    os.environ.update(env)
    torch.set_num_threads(1)
    store = dist.PrefixStore(f"run{number}", dist.TCPStore("127.0.0.1", port, is_master=False))
    if init:
        dist.init_process_group(
            backend, store=dist.PrefixStore("pg", store), rank=rank, world_size=world, timeout=timedelta(seconds=60)
        )
    if isinstance(subject, str):
        subject = resolve(subject)
    ctx = RankContext(rank, world, subject, backend, torch.device("cpu"), dist.PrefixStore("check", store))
    try:
        pipe.send(Finished(function(ctx, *args)))
    except BaseException as error:
        kinds = tuple(kind.__name__ for kind in type(error).__mro__)
        pipe.send(Raised(Caught(kinds, str(error)), traceback.format_exc(), isinstance(error, Unsupported)))
    pipe.recv()
    os._exit(0)
