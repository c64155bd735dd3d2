"""A forward inside ``torch.compile``: the wrapped module is compiled, the work of DDP around it runs as it is.

Imported when a compiled forward is traced for the first time, because the compiler takes seconds to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from ..comm.uncompiled import call_uncompiled
from . import kernels
from .config import DDPConfig
from .pending_backward import with_graphs


class Wrapper(Protocol):
    """The parts of a forward, by torch's names."""

    _config: DDPConfig

    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> Any: ...
    def _run_ddp_forward(self, *inputs: Any, **kwargs: Any) -> Any: ...
    def _forward_failed(self, error: BaseException) -> None: ...
    def _post_forward(self, output: Any, given: Mapping[torch.Tensor, Any]) -> Any: ...


@torch.compiler.disable(recursive=False)
def forward(ddp: Wrapper, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As ``ddp.forward`` does it; only what the wrapped module does is left to the compiler."""
    inputs, kwargs = call_uncompiled(ddp._pre_forward, *inputs, **kwargs)
    given = call_uncompiled(with_graphs, inputs, kwargs)
    try:
        with kernels.CompiledByBucket(ddp._config.caps.steady_bytes):
            output = ddp._run_ddp_forward(*inputs, **kwargs)
    except BaseException as error:
        ddp._forward_failed(error)
        raise
    return call_uncompiled(ddp._post_forward, output, given)
