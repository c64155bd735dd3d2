"""What the quick tier let pass, met with random programs: ``python -m conformance explore`` on a mutant as subject."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine.judgement import BROKEN, OK
from .drawing import VARIABLE

_SUBJECT = "conformance.power.mutated:subject"
_START_S = 600.0  # for loading and for the last batch, besides the minutes


@dataclass(frozen=True)
class Asked:
    """How long, on which programs, and where to put what was found."""

    minutes: float
    seed: int
    jobs: int
    out: Path


def explored(identity: str, asked: Asked) -> Mapping[str, Any]:
    """Whether random programs kill a mutant, with a witness; else why they could not be run."""
    folder = asked.out / "explored" / re.sub(r"[^\w.]+", "-", identity)
    words = ["--minutes", str(asked.minutes), "--seed", str(asked.seed), "--jobs", str(asked.jobs)]
    try:
        done = _explore(["--subject", _SUBJECT, *words, "--out", str(folder)], 60 * asked.minutes, identity)
    except subprocess.TimeoutExpired:
        return {"killed": True, "outcome": "hung", "witness": "the exploration did not come to its end"}
    if done.returncode not in (OK, BROKEN):
        return {"trouble": " ".join(done.stderr.split())[-300:]}
    for failure in _failures(folder) if done.returncode == BROKEN else ():
        sound = _explore(["--subject", "impl", "--program", str(failure["program"])], 0.0)
        if sound.returncode == OK:
            witness = f"{failure.get('text', '')} (program {failure['program']})"
            return {"killed": True, "outcome": "failed", "witness": witness}
    return {"killed": False}


def _explore(words: list[str], seconds: float, mutant: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "conformance", "explore", *words], env={**os.environ, VARIABLE: mutant},
        capture_output=True, text=True, timeout=seconds + _START_S, check=False,
    )  # fmt: skip


def _failures(folder: Path) -> Iterator[Mapping[str, Any]]:
    """The failures in the record of an exploration, in the order in which they were met."""
    for path in sorted(folder.rglob("explored.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            new = json.loads(line).get("new") or []
            yield from (each for each in (new if isinstance(new, list) else [new]) if "program" in each)
