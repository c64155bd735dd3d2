"""fairscale's OSS: an optimizer sharded over ranks. Its parameters' owners follow their order, not their sizes."""

from __future__ import annotations

from typing import Any

import fairscale
import torch
from fairscale.optim import OSS

from .. import Subject
from . import lacking, without


class Sharded(OSS):
    """OSS under the names of ZeroRedundancyOptimizer's arguments."""

    def __init__(
        self, params: Any, optimizer_class: type[torch.optim.Optimizer], process_group: Any = None,
        parameters_as_bucket_view: bool = False, overlap_with_ddp: bool = False, **defaults: Any,
    ):  # fmt: skip
        without(locals(), "parameters_as_bucket_view", "overlap_with_ddp")
        super().__init__(params, optimizer_class, process_group, **defaults)

    def consolidate_state_dict(self, to: int = 0) -> None:
        """As ZeroRedundancyOptimizer's."""
        super().consolidate_state_dict(to)


subject = Subject(
    name="fairscale OSS",
    version=fairscale.__version__,
    names={"ZeroRedundancyOptimizer": Sharded},
    lacks=lacking(("join_hook", "join_device", "join_process_group"), "OSS has no join hook"),
)
