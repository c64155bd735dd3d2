"""torch's DDP whose forward and backward are compiled (captured and cut at buckets; no code generation)."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from ..torch import subject as torch_subject

for name in (
    "_dynamo.convert_frame", "_dynamo.backends.debugging", "_dynamo.backends.distributed", "_dynamo.repro.after_aot",
    "_functorch.aot_autograd", "_inductor.custom_graph_pass",
):  # fmt: skip
    import_module(f"torch.{name}")  # what the first compilation would load, in every rank again


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
