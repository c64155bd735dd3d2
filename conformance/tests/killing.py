"""Kills runs at random moments and looks at what they leave: ``python -m conformance.tests.killing --kills 200``.

Small runs of the suite, perf, the nightly and the board, each kind again and again in a folder of its own. After every
SIGKILL: what had been recorded is there as it was, a record that is not finished says so (it is named ``.part``, or its
footer tells), and no process is left. Now and then a run is let go to its end, and must end as if nothing had been.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from reports.records import RecordError, read
from reports.records.lines import whole_lines

from . import fakes

KINDS = ("conformance", "perf", "nightly", "board")
MARK = "JOINERY_KILL_MARK"
_GONE_S = 120.0  # for all to be gone: a fork server that is still importing torch sees its driver's end only then
_LIMIT_S = 900.0  # for a run of seconds, on a loaded machine
_EVERY = 8  # so often a run goes to its end
_TOLD = 20  # so often how far it is

_SWEEP = 'title = "small"\nrounds = 2\nblock = 2\n[[cells]]\nworkload = "tiny"\nsize = "400"\n'
_BOARD = """
import sys
from conformance.board import columns
small = columns.Column("small", "fake_subject:subject", "a small one", select="JOIN-001")
columns.load = lambda path=None: (small,)
from conformance.__main__ import main
sys.exit(main(["board", "--columns", "small", "--out", "out"]))
"""
_RUN = "-m conformance run --checks test_fake.py --subject fake_subject:subject --select FAKE-001,FAKE-008,FAKE-010 "
_COMMANDS = {
    "conformance": _RUN + "--worlds 1,2 --out out --resume possible",
    "perf": "-m perf run --sweep small.toml --world 2 --subject torch --judged no --out out",
    "nightly": "-m reports nightly --history history --out out --machine box --budget 2s --world 2"
    " --conformance '{python} -m reports.simulate.made_rows conformance --out {out}'"
    " --perf '{python} -m reports.simulate.made_rows perf --out {out}'",
    "board": "board.py",
}


@dataclass
class Tally:
    """What became of one kind of run."""

    kills: int = 0
    ended: int = 0  # before the kill came
    whole: int = 0  # let go to their end, and right
    lost: list[str] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)  # files that are not finished and do not say so
    orphans: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)  # runs to the end that did not get there

    @property
    def faults(self) -> list[str]:
        return [*self.lost, *self.altered, *self.unnamed, *self.orphans, *self.stuck]


@dataclass(frozen=True)
class Recorded:
    """What a folder holds that must not be lost: finished files by digest, and the rows of all."""

    files: dict[str, str]
    rows: Counter[str]


def recorded(place: Path) -> Recorded:
    """Look at everything that commands have recorded under a folder."""
    files, rows = {}, Counter[str]()
    for path in sorted(place.rglob("*")):
        if "raw" in path.parts:  # a page's copies, which go with the page
            continue
        if path.suffix == ".jsonl" or (path.name.endswith(".part") and ".jsonl" in path.name):
            rows.update(_key(row) for row in whole_lines(path) if row.get("line") == "row")
        if path.suffix == ".jsonl" or ("history" in path.parts and path.is_file() and path.suffix == ".json"):
            files[str(path.relative_to(place))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return Recorded(files, rows)


def _key(row: dict[str, object]) -> str:
    """What tells one result from another, whenever and how fast it came."""
    return " ".join(str(row.get(name, "")) for name in ("clause", "check", "scenario", "world", "series"))


def _rows_of(place: Path) -> Counter[str]:
    """Every row that is somewhere, finished or not."""
    found = Counter[str]()
    for path in place.rglob("*.jsonl*"):
        found.update({_key(row) for row in whole_lines(path) if row.get("line") == "row"})
    return found


class Kind:
    """Runs of one kind, in one folder."""

    def __init__(self, name: str, place: Path) -> None:
        self.name, self.place, self.tally = name, place, Tally()
        place.mkdir(parents=True)
        fakes.lay(place)
        (place / "small.toml").write_text(_SWEEP)
        (place / "board.py").write_text(_BOARD)
        start = time.monotonic()
        self.to_the_end()
        self.usual_s = time.monotonic() - start

    def start(self, mark: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(fakes.HOME), str(self.place)])
        environment = {**os.environ, "PYTHONPATH": path, MARK: mark}
        return subprocess.Popen(
            [sys.executable, *shlex.split(_COMMANDS[self.name])], cwd=self.place, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=(self.place / "said").open("ab"),
        )  # fmt: skip

    def to_the_end(self) -> None:
        """A run that nobody disturbs: it takes up what killed ones have left, and ends."""
        process = self.start(uuid.uuid4().hex)
        try:
            status = process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        if status in (0, 1):  # 1: a verdict
            self.tally.whole += 1
        else:
            self.tally.stuck.append(f"{self.name}: status {status}: {(self.place / 'said').read_text()[-300:]}")

    def kill(self, draw: random.Random) -> None:
        """Start a run, kill it at some moment, and look."""
        before, mark = recorded(self.place), uuid.uuid4().hex
        process = self.start(mark)
        try:
            process.wait(draw.uniform(0.05, 1.1) * self.usual_s)
            self.tally.ended += 1
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self.tally.kills += 1
        self._look(before, mark)

    def _look(self, before: Recorded, mark: str) -> None:
        left = alive(mark, _GONE_S)
        self.tally.orphans += [f"{self.name}: process {pid}: {what}" for pid, what in left.items()]
        now = recorded(self.place)
        for file, digest in before.files.items():
            if file not in now.files:
                self.tally.lost.append(f"{self.name}: {file}")
            elif now.files[file] != digest and not self._replaced(file):
                self.tally.altered.append(f"{self.name}: {file}")
        missing = set(before.rows) - set(_rows_of(self.place))
        self.tally.lost += [f"{self.name}: the row {row}" for row in missing]
        for file in now.files:
            if file.endswith(".jsonl") and not _has_ended(self.place / file):
                self.tally.unnamed.append(f"{self.name}: {file}")

    def _replaced(self, file: str) -> bool:
        """Whether a later run of the same question has put its own record there, as it may in its --out."""
        return "history" not in Path(file).parts and _has_ended(self.place / file)


def _has_ended(path: Path) -> bool:
    """Whether a record has a footer, which may say that its run was asked to end before it was done."""
    try:
        return read(path).footer is not None
    except RecordError:
        return "work-" in str(path)  # a nightly's own folder, where its commands write as they go


def alive(mark: str, patience_s: float) -> dict[int, str]:
    """Processes that were started for a run, as soon as there are none or patience ends."""
    end = time.monotonic() + patience_s
    while (found := _marked(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def _marked(mark: str) -> dict[int, str]:
    found = {}
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if f"{MARK}={mark}".encode() in Path("/proc", entry, "environ").read_bytes():
                found[int(entry)] = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode()[:80]
        except OSError:  # it has ended, or is another user's
            continue
    return found


def kill_all(kinds: list[str], kills: int, seed: int, place: Path, minutes: float) -> list[Kind]:
    """So many kills of all kinds together, in turn; fewer if the time is over."""
    draw, end, done = random.Random(seed), time.monotonic() + 60 * minutes, 0
    made = [Kind(name, place / name) for name in kinds]
    while done < kills and time.monotonic() < end:
        one = made[done % len(made)]
        known = len(one.tally.faults)
        one.kill(draw)
        for fault in one.tally.faults[known:]:
            print(f"kill {done}: {fault}", file=sys.stderr, flush=True)
        done += 1
        if one.tally.kills % _EVERY == _EVERY - 1:
            one.to_the_end()
        if done % _TOLD == 0:
            print(f"{done} of {kills}", file=sys.stderr, flush=True)
    for one in made:
        one.to_the_end()
    return made


def table(made: list[Kind]) -> str:
    heads = ("run", "kills", "ended before", "run to the end", "lost", "altered", "not named", "orphans", "stuck")
    lines = [heads]
    for one in made:
        told = one.tally
        faults = (told.lost, told.altered, told.unnamed, told.orphans, told.stuck)
        counts = (told.kills, told.ended, told.whole, *map(len, faults))
        lines.append((one.name, *map(str, counts)))
    return "\n".join("  ".join(cell.rjust(len(head)) for cell, head in zip(line, heads, strict=True)) for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser("python -m conformance.tests.killing", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="at most")
    parser.add_argument("--kinds", default=",".join(KINDS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="killed-") as folder:
        made = kill_all(given.kinds.split(","), given.kills, given.seed, Path(folder), given.minutes)
    print(table(made))
    faults = [fault for one in made for fault in one.tally.faults]
    print("\n".join(faults) or "nothing lost, nothing altered, nothing left running")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
