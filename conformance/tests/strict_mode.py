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


def _subject(name: str, *, on: bool) -> Subject:
    class Chosen(DistributedDataParallel):
        def forward(self, *inputs: Any, **keywords: Any) -> Any:
            mode.enabled = on
            return super().forward(*inputs, **keywords)

    ours = gather()
    return Subject(name, ours.version, {**ours.names, "DistributedDataParallel": Chosen}, ours.lacks)


without = _subject("without", on=False)
strict = _subject("strict", on=True)
