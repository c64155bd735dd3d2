"""``python -m conformance soak``: random programs under slow ranks and pauses, and whether anything grows."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from pathlib import Path

from ..bad_input import BadInput
from ..ending import terminated_like_interrupted
from ..engine.judgement import BROKEN, INTERRUPTED, OK
from ..engine.request import numbers
from ..explore.judging import Failure
from ..faults import soak as soaking
from ..subjects import resolve

RECORD = "soak.jsonl"


def soak(given: Namespace) -> int:
    """First what grows, then programs until the time is over; 1 if anything grew or a program failed."""
    try:
        minutes = float(given.minutes)
    except ValueError:
        raise BadInput(f"--minutes {given.minutes}: give a number of minutes") from None
    (jobs,) = numbers(given.jobs, "number of jobs")[:1]
    (iterations,) = numbers(given.iterations, "number of iterations")[:1]
    (constructions,) = numbers(given.constructions, "number of constructions")[:1]
    resolve(given.subject)
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    seed = int(given.seed) if given.seed.isdecimal() else int(time.time()) % 1_000_000
    try:
        with terminated_like_interrupted():
            end = time.monotonic() + 60 * minutes
            growing = _growth(given.subject, iterations, constructions)
            left = max(0.0, end - time.monotonic())
            failed = _programs(given.subject, seed, left, jobs, out / RECORD)
    except KeyboardInterrupt:
        print("conformance: interrupted", file=sys.stderr)
        return INTERRUPTED
    return BROKEN if growing or failed else OK


def _growth(subject: str, iterations: int, constructions: int) -> int:
    grown = soaking.growth(subject, iterations, constructions)
    print(f"{subject}: {iterations} iterations, {constructions} constructions, after the warm-up → at the end\n")
    print(soaking.table(grown), flush=True)
    bad = 0
    for rank, of_rank in enumerate(grown):
        for each in of_rank:
            for name in each.growing(soaking.MOST):
                bad += 1
                print(f"\ngrowing: {name} on rank {rank}, over {each.what}: {each.first[name]:g} → {each.last[name]:g}")
    return bad


def _programs(subject: str, seed: int, seconds: float, jobs: int, path: Path) -> int:
    begun = time.monotonic()
    with path.open("w", encoding="utf-8") as record:
        record.write(json.dumps({"soak": 1, "subject": subject, "seed": seed}) + "\n")

        def say(count: int, failure: Failure | None) -> None:
            if sys.stderr.isatty():
                print(f"\r\033[K{subject}: {count} programs", end="", file=sys.stderr, flush=True)
            if failure is not None:
                shown = {"kind": failure.kind, "text": failure.text, "evidence": failure.evidence[-6000:]}
                record.write(json.dumps({"program": failure.program.json(), **shown}) + "\n")
                record.flush()
                print(f"\n{failure.kind}: {failure.text}\n    {failure.program.json()}", flush=True)

        count, failures = soaking.programs(subject, seed, seconds, jobs, say)
        record.write(json.dumps({"end": True, "programs": count, "failures": len(failures)}) + "\n")
    print(
        f"\n{subject}: seed {seed}, {count} random program{'s' * (count != 1)} in {time.monotonic() - begun:.0f} s on "
        "ranks that were stopped and slowed: "
        f"{len(failures)} mismatch{'es' * (len(failures) != 1)}",
        flush=True,
    )
    return len(failures)
