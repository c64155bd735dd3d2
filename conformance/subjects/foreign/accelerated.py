"""accelerate: a model is prepared (torch's DDP inside), and uneven inputs go through ``join_uneven_inputs``.

That method has no effect where ranks train on CPUs, as its documentation says.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

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
    return _accelerator([DistributedDataParallelKwargs(**options)]).prepare(module)


def _accelerator(handlers: Sequence[Any] = ()) -> Accelerator:
    """One that finds a launcher's variables, which are gone when the model is wrapped."""
    ranks = {"RANK": dist.get_rank(), "LOCAL_RANK": dist.get_rank(), "WORLD_SIZE": dist.get_world_size()}
    variables = {name: str(value) for name, value in ranks.items()}
    with patch.dict(os.environ, variables, MASTER_ADDR="127.0.0.1", MASTER_PORT="1"):
        accelerator = Accelerator(cpu=dist.get_backend() == "gloo", kwargs_handlers=list(handlers))
    assert accelerator.distributed_type in (DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
    return accelerator


def joined(joinables: Sequence[Any], enable: bool = True, *given: Any, **options: Any) -> Any:
    """``Join`` as accelerate offers it, which passes on no option of a joinable's."""
    if given or options:
        raise Unsupported("join_uneven_inputs never throws, and passes on no option")
    accelerator = _accelerator()
    if not accelerator.multi_device:
        raise Unsupported("join_uneven_inputs has no effect on CPUs")
    return accelerator.join_uneven_inputs(list(joinables), even_batches=not enable)


# what users call on torch's own classes, which are inside
for name in ("_set_params_and_buffers_to_ignore_for_model", "join"):
    setattr(prepared, name, getattr(torch_subject.DistributedDataParallel, name))
setattr(joined, "notify_join_context", staticmethod(torch_subject.Join.notify_join_context))  # noqa: B010

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
