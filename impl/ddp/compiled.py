"""A forward inside ``torch.compile``: the wrapped module is compiled, the work of DDP around it runs as it is.

Imported when a compiled forward is traced for the first time, because the compiler takes seconds to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import kernels

if TYPE_CHECKING:
    from .wrapper import DistributedDataParallel


@torch.compiler.disable(recursive=False)
def forward(ddp: DistributedDataParallel, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As ``ddp.forward`` does it; only what the wrapped module does is left to the compiler."""
    inputs, kwargs = _before(ddp, inputs, kwargs)
    try:
        with kernels.compiled_by_bucket(ddp.bucket_bytes_cap):
            output = ddp._run_ddp_forward(*inputs, **kwargs)
    except BaseException as error:
        ddp._note_failed_forward(error)
        raise
    return _after(ddp, output)


@torch.compiler.disable
def _before(ddp: DistributedDataParallel, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return ddp._pre_forward(*inputs, **kwargs)


@torch.compiler.disable
def _after(ddp: DistributedDataParallel, output: Any) -> Any:
    return ddp._post_forward(output)
