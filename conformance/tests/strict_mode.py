"""Our implementation without strict mode and with it, as two subjects of one run: what strict mode costs.

    make perf SWEEP=overlap ARGS='--judged no' \\
        SUBJECT=conformance.tests.strict_mode:without,conformance.tests.strict_mode:strict

A model is in strict mode or not as its environment says when it is built.
"""

from __future__ import annotations

import os
from typing import Any

from conformance.subjects import Subject
from conformance.subjects.impl import gather
from impl.comm.ranks import STRICT
from impl.ddp import DistributedDataParallel


def _subject(name: str, *, on: bool) -> Subject:
    class Chosen(DistributedDataParallel):
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            os.environ[STRICT] = "1" if on else "0"
            super().__init__(*arguments, **keywords)

    ours = gather()
    return Subject(name, ours.version, {**ours.names, "DistributedDataParallel": Chosen}, ours.lacks)


without = _subject("without", on=False)
strict = _subject("strict", on=True)
