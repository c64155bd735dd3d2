"""What the quick tier let pass, met with random programs: ``python -m conformance explore`` on a mutant as subject."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
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
    minutes, folder = asked.minutes, asked.out / "explored" / re.sub(r"[^\w.]+", "-", identity)
    command = [
        sys.executable, "-m", "conformance", "explore", "--subject", _SUBJECT, "--minutes", str(minutes),
        "--seed", str(asked.seed), "--jobs", str(asked.jobs), "--out", str(folder),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, env={**os.environ, VARIABLE: identity}, capture_output=True, text=True,
            timeout=60 * minutes + _START_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"killed": True, "outcome": "hung", "witness": "the exploration did not come to its end"}
    if done.returncode not in (OK, BROKEN):
        return {"trouble": " ".join(done.stderr.split())[-300:]}
    if done.returncode == OK:
        return {"killed": False}
    return {"killed": True, "outcome": "failed", "witness": _first_failure(folder) or done.stdout[-300:]}


def _first_failure(folder: Path) -> str:
    for path in sorted(folder.rglob("explored.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row.get("new"):
                return str(row["new"][0].get("text", ""))
    return ""
