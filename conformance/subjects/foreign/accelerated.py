"""accelerate: a model is prepared (torch's DDP inside), and uneven inputs go through ``join_uneven_inputs``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import accelerate
import torch.distributed as dist
from accelerate import Accelerator, DistributedDataParallelKwargs, DistributedType
from torch import nn

from .. import Subject, Unsupported
from ..torch import subject as torch_subject
from . import taken

_TAKEN = (
    "dim", "broadcast_buffers", "bucket_cap_mb", "find_unused_parameters", "check_reduction", "gradient_as_bucket_view",
    "static_graph",
)  # fmt: skip


def prepared(module: nn.Module, **options: Any) -> Any:
    """The model as ``Accelerator.prepare`` returns it, under a launcher's variables."""
    options = taken(options, *_TAKEN)
    ranks = {"RANK": dist.get_rank(), "LOCAL_RANK": dist.get_rank(), "WORLD_SIZE": dist.get_world_size()}
    os.environ.update({name: str(value) for name, value in ranks.items()}, MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(**options)])
    assert accelerator.distributed_type is DistributedType.MULTI_CPU
    return accelerator.prepare(module)


@contextmanager
def joined(joinables: Sequence[Any], enable: bool = True, **options: Any) -> Iterator[None]:
    """``Join`` as accelerate offers it, which passes on no option of a joinable's."""
    if options:
        raise Unsupported(f"no option {min(options)}")
    accelerator = Accelerator(cpu=True)
    with accelerator.join_uneven_inputs(list(joinables), even_batches=not enable):
        yield


# what users call on torch's own classes, which are inside
for name in ("_set_params_and_buffers_to_ignore_for_model", "join"):
    setattr(prepared, name, getattr(torch_subject.DistributedDataParallel, name))
setattr(joined, "notify_join_context", torch_subject.Join.notify_join_context)  # noqa: B010

subject = Subject(
    name="accelerate",
    version=accelerate.__version__,
    names={
        "DistributedDataParallel": prepared,
        "Join": joined,
        "Joinable": torch_subject.Joinable,
        "JoinHook": torch_subject.JoinHook,
    },
    lacks={"throw_on_early_termination": "join_uneven_inputs never throws"},
)
