"""``python -m conformance soak``: random programs under slow ranks and pauses, and whether anything grows."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from pathlib import Path

from ..bad_input import BadInput
from ..ending import terminated_like_interrupted
from ..engine import request as ask
from ..engine.judgement import BROKEN, INTERRUPTED, OK, UNDECIDED
from ..explore.judging import Failure
from ..faults import soak as soaking

RECORD = "soak.jsonl"


def soak(given: Namespace) -> int:
    """First what grows, then programs for so many minutes; 1 if anything grew or a program failed."""
    minutes, jobs = ask.minutes(given.minutes), ask.number(given.jobs, "number of jobs")
    iterations = _turns(given.iterations, "iterations", soaking.LEAST_ITERATIONS)
    constructions = _turns(given.constructions, "constructions", soaking.LEAST_CONSTRUCTIONS)
    seed = ask.seed(given.seed)
    seed = int(time.time()) % 1_000_000 if seed is None else seed
    subject = ask.subject_of(given.subject)
    if missing := [name for name in soaking.NEEDED if name not in subject.names]:
        raise BadInput(f"subject {subject.name!r} does not provide {', '.join(missing)}, which this trains with")
    out = ask.writable(Path(given.out))
    try:
        with terminated_like_interrupted():
            growing = _growth(given.subject, iterations, constructions)
            count, failed = _programs(given.subject, seed, 60 * minutes, jobs, out / RECORD)
    except KeyboardInterrupt:
        print("conformance: interrupted", file=sys.stderr)
        return INTERRUPTED
    if not count and not growing:
        print(f"nothing was decided of random programs: none ran in {minutes:g} minutes; give more --minutes")
        return UNDECIDED
    return BROKEN if growing or failed else OK


def _turns(text: str, what: str, least: int) -> int:
    """A number of iterations or constructions that leaves some to compare after the warm-up."""
    found = ask.number(text, f"number of {what}")
    if found < least:
        raise BadInput(f"{found} {what} end within the warm-up, and nothing could be compared; give {least} or more")
    return found


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


def _programs(subject: str, seed: int, seconds: float, jobs: int, path: Path) -> tuple[int, int]:
    """How many programs ran, and how many of them failed."""
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
    return count, len(failures)
