"""Our implementation without strict mode and with it, as two subjects of one run: what strict mode costs.

    make perf SWEEP=overlap ARGS='--judged no' \\
        SUBJECT=conformance.tests.strict_mode:without,conformance.tests.strict_mode:strict

An iteration begins with a forward on every rank, and from there on its variant's choice holds.
"""

from __future__ import annotations

from typing import Any

from conformance.subjects import Subject
from conformance.subjects.impl import gather
from impl.comm import strict as mode
from impl.ddp import DistributedDataParallel


class _Without(DistributedDataParallel):
    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        mode.enabled = False
        return super().forward(*inputs, **keywords)


class _Strict(DistributedDataParallel):
    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        mode.enabled = True
        return super().forward(*inputs, **keywords)


def _with(name: str, kind: type[DistributedDataParallel]) -> Subject:
    ours = gather()
    return Subject(name, ours.version, {**ours.names, "DistributedDataParallel": kind}, ours.lacks)


without = _with("without", _Without)
strict = _with("strict", _Strict)
