"""torch's DDP whose forward and backward are compiled (captured and cut at buckets; no code generation)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..torch import subject as torch_subject


class CompiledDDP(torch_subject.DistributedDataParallel):
    """A wrapper that compiles itself where a user would write ``torch.compile(DDP(model))``."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.compile(backend="aot_eager")


subject = replace(
    torch_subject,
    name="torch compiled",
    names={**torch_subject.names, "DistributedDataParallel": CompiledDDP},
)
