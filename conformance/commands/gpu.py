"""``python -m conformance gpu PART``: what only an accelerator can show, into a file of findings."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

from ..bad_input import BadInput
from ..ending import terminated_like_interrupted
from ..engine import request as ask
from ..engine.judgement import BROKEN as STATUS_BROKEN


def gpu(given: Namespace) -> int:
    """Find out what the part is about; 1 if something does not hold."""
    if given.part == "facts":
        return _facts()
    from ..accelerator import failures, memory, sharing, streams
    from ..accelerator.findings import findings_at

    if not given.out:
        raise BadInput("say where the findings go: --out FILE")
    backends = ask.words(given.backend, "backend")
    if given.part != "sharing":
        (world,) = ask.worlds(given.world, backends[0])[:1]
    with findings_at(Path(given.out)) as findings, terminated_like_interrupted():
        match given.part:
            case "sharing":
                sharing.find(findings, backends)
            case "streams":
                streams.find(findings, backends[0], world, _cases(given.only), look=not given.only)
            case "failures":
                failures.find(findings, backends[0], world)
            case _:
                memory.find(findings, backends[0], world)
        for one in findings.all:
            print(f"{one.state:8} {one.what}{f': {one.why}' if one.why else ''}{_shown(one.value, one.unit)}")
        return STATUS_BROKEN if findings.broken else 0


def _cases(only: str) -> list:  # type: ignore[type-arg]
    from ..accelerator.streams import CASES

    named = {case.name: case for case in CASES}
    for name in (wanted := ask.words(only, "case") if only else named):
        if name not in named:
            raise BadInput(f"there is no case {name!r}; there are {', '.join(named)}")
    return [named[name] for name in wanted]


def _shown(value: float | None, unit: str) -> str:
    return "" if value is None else f": {value:.4g} {unit}".rstrip()


def _facts() -> int:
    from ..accelerator.machine import facts

    found = facts()
    print(json.dumps(found))
    if found["gpus"]:
        return 0
    print(f"conformance: no GPU can be used: {found['why']}", file=sys.stderr)
    return 2
