"""torch's DDP with its reducer written in Python, which ``torch.compile`` asks for by a setting of dynamo's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch._dynamo

from ..torch import subject as torch_subject


class PythonReducerDDP(torch_subject.DistributedDataParallel):
    """The setting is read when a model is wrapped and at each forward; nothing else of the process sees it."""

    def __init__(self, *given: Any, **named: Any) -> None:
        with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
            super().__init__(*given, **named)

    def forward(self, *given: Any, **named: Any) -> Any:
        with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
            return super().forward(*given, **named)


subject = replace(
    torch_subject,
    name="torch python_reducer",
    names={**torch_subject.names, "DistributedDataParallel": PythonReducerDDP},
)
