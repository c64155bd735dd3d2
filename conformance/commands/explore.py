"""``python -m conformance explore``: training programs drawn at random, compared with one process."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from ..bad_input import BadInput
from ..ending import terminated_like_interrupted
from ..engine import request as ask
from ..engine.judgement import BROKEN, INTERRUPTED, OK, UNDECIDED
from ..explore import axes
from ..explore.judging import FALLS_OVER, failure_of
from ..explore.offering import lacking
from ..explore.program import Program
from ..explore.script import write
from ..explore.session import Asked, Cause, Explored, drawn_features, explore
from ..explore.summary import summary
from ..ranks import Cluster


def explore_command(given: Namespace) -> int:
    """Explore each subject; 1 if a program failed, of torch if one failed for no listed reason; 4 if none ran."""
    found = ask.subjects(given.subject)
    for name, (_, subject) in found.items():
        if missing := lacking(Program(), subject):
            raise BadInput(f"subject {name!r} does not provide {missing}, which every program asks for")
    subjects = [spec for spec, _ in found.values()]
    if given.program:
        with terminated_like_interrupted():
            return _one(given.program, subjects, Path(given.out))
    minutes, jobs = ask.minutes(given.minutes), ask.number(given.jobs, "number of jobs")
    seed = ask.seed(given.seed)
    seed = int(time.time()) % 1_000_000 if seed is None else seed
    out = ask.writable(Path(given.out))
    try:
        with terminated_like_interrupted():
            return _explored(given, subjects, seed, 60 * minutes / len(subjects), jobs, out)
    except KeyboardInterrupt:
        print(f"conformance: interrupted; the same command with seed {seed} goes on", file=sys.stderr)
        return INTERRUPTED


def _explored(given: Namespace, subjects: list[str], seed: int, seconds: float, jobs: int, out: Path) -> int:
    """Each subject for so long; the exit status."""
    unknown, undecided = 0, False
    for name in subjects:
        folder = _folder(out, name)
        asked = Asked(name, seed, seconds, jobs, folder, given.first)
        print(f"{name}: seed {seed}, {asked.seconds:.0f} s", flush=True)
        explored = explore(asked, _say(asked))
        text, unlisted = summary(explored, name, drawn_features(name))
        print(text, flush=True)
        (folder / "summary.md").write_text(text + "\n", encoding="utf-8")
        unknown += unlisted
        if not explored.programs:
            undecided = True
            print(f"nothing was decided of {name}: no program ran in {asked.seconds:.0f} s; give more --minutes")
    return BROKEN if unknown else UNDECIDED if undecided else OK


def _say(asked: Asked) -> Callable[[Explored, list[Cause]], None]:
    live = sys.stdout.isatty()

    def say(explored: Explored, causes: list[Cause]) -> None:
        met = sum(1 for pair in axes.legal_pairs() if explored.pairs[pair])
        line = (
            f"{asked.subject}: {explored.programs} programs in {explored.seconds:.0f} s, "
            f"{met} pairs of features met, {explored.failures()} failures of {len(explored.causes)} causes"
        )
        print(f"\r\033[K{line}" if live else line, end="" if live else "\n", flush=True)
        for cause in causes:
            path = write(asked.out, cause.program, asked.subject, cause.text) if cause.kind != FALLS_OVER else ""
            print(f"\n{cause.kind}: {cause.text}\n    {cause.program.json()}\n    {path}", flush=True)

    return say


def _one(text: str, subjects: list[str], out: Path) -> int:
    """Judge one program; if it fails, write it as a script."""
    try:
        program = Program.read(Path(text).read_text(encoding="utf-8") if text.endswith(".json") else text)
    except (ValueError, OSError) as error:
        raise BadInput(f"--program {text}: {error}; a failure's record and `make explore` print programs") from error
    failed = False
    with Cluster(placing=False) as cluster:
        for name in subjects:
            partly: list[str] = []
            failure = failure_of(program, cluster, name, partly=partly)
            if failure is None:
                print(f"{name}: as one process{f', compared in part from {partly[0]}' if partly else ''}")
                continue
            failed = True
            print(f"{name}: {failure.kind}: {failure.text}")
            if failure.evidence:
                print(failure.evidence)
            if failure.kind != FALLS_OVER:
                print(f"    {write(_folder(out, name), program, name, failure.text)}")
    return BROKEN if failed else OK


def _folder(out: Path, subject: str) -> Path:
    """Where what is found about a subject is written."""
    folder = ask.writable(out) / subject.replace(":", "_")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
