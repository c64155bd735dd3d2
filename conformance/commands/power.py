"""``python -m conformance power``: how many random mutants of our implementation the quick tier kills."""

from __future__ import annotations

import random
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reports.records import Writer, identity

from ..bad_input import BadInput
from ..defects import catalogue, last_run
from ..ending import terminated_like_interrupted
from ..engine import inventory
from ..engine.judgement import BROKEN, INTERRUPTED, OK, UNDECIDED
from ..engine.request import number, writable
from ..engine.request import seed as seed_of
from ..power import exploring, measure, triage, written
from ..power.drawing import Mutant, Pool
from ..power.rate import KILLED, NOT_REACHED, STILLBORN, SURVIVED, TROUBLE, Rate, rates
from ..power.reach import Reach, Store
from ..power.triage import UNTRIAGED, Judged
from ..workers import Driver

RECORD = "power.jsonl"
Row = dict[str, Any]


def power(given: Namespace) -> int:
    """Draw, try, print and record; returns the exit status."""
    wanted = number(given.mutants, "number of mutants")
    jobs = number(given.jobs, "number of jobs")
    seed, minutes = seed_of(given.seed), _minutes(given.explore)
    seed = random.SystemRandom().randrange(1000, 1_000_000) if seed is None else seed
    entries = triage.load()
    most = number(given.cases, "number of cases") if given.cases else None
    if given.mutant and given.written:
        raise BadInput("--mutant names one of a draw, and --written tries those of a file: give one of the two")
    pool = Pool.of_impl()
    if given.list:
        return _list(pool, seed, wanted)
    drawn = iter([_named(pool, given.mutant)]) if given.mutant else pool.draw(seed)
    if given.written:
        if given.history:
            raise BadInput("--history keeps rates of random draws; leave it out with --written")
        mutants = written.load(Path(given.written), pool.sources)
        drawn, wanted = iter(mutants), len(mutants)
    out = writable(Path(given.out))
    if given.history:
        writable(Path(given.history), "--history")
    store = Store(out, pool.sources)
    ended = measure.Ended(out / f"mutants-{store.digest}.jsonl")
    if given.mutant:
        ended.pop(given.mutant, None)  # to be tried again
        wanted = 1
    driver = Driver(jobs, ["conformance.power.worker", str(inventory.CHECKS)], measure.LIMIT_S)
    rows: list[Row] = []
    try:
        with terminated_like_interrupted(), driver:
            reached = measure.reach(driver, pool, store, lambda text: print(text, flush=True))
            for one in reached.useless:
                print(f"left out: {one.case} ended {one.outcome} on the sound implementation with marks")
            if given.unreached:
                return _unreached(reached, pool)
            for row in measure.trials(driver, drawn, wanted, reached, ended, most):
                rows.append(row)
                print(_line(row, entries), flush=True)
        if minutes:
            asked = exploring.Asked(minutes, seed, jobs, out)

            def explored(row: Row) -> Mapping[str, Any]:
                name = f"{given.written}{written.NAMED}{row['operator']}" if given.written else row["mutant"]
                mutant = written.named(name, pool.sources) if given.written else pool.named(name)
                assert mutant is not None
                return exploring.explored(name, reached.concerned(mutant), asked)

            _explore(rows, entries, explored, ended, minutes)
    except KeyboardInterrupt:
        done = f"{len(rows)} mutant{'s' * (len(rows) != 1)}"
        print(f"conformance: interrupted after {done}; the same command continues", file=sys.stderr)
        return INTERRUPTED
    return _conclude(given, seed, rows, entries, out)


def _minutes(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise BadInput(f"--explore {text!r} is not a number of minutes")
    return found


def _named(pool: Pool, identity: str) -> Mutant:
    found = pool.named(identity)
    if found is None:
        raise BadInput(f"there is no mutant {identity!r} of impl as it is now; `--list` prints a draw")
    return found


def _list(pool: Pool, seed: int, most: int) -> int:
    for mutant, _ in zip(pool.draw(seed), range(most), strict=False):
        print(f"{mutant.id}  (line {mutant.edit.line})\n{mutant.diff}\n")
    return OK


def _unreached(reached: Reach, pool: Pool) -> int:
    """Print what no case executes, where no check can see what is done, and how no condition comes out."""
    missing = reached.unreached()
    for place in missing:
        text = pool.sources[place.file].splitlines()[place.line - 1].strip()
        print(f"{place.file}:{place.line}: {f'never: {place.way}' if place.way else text}")
    ways = sum(bool(place.condition) for place in missing)
    print(f"\nstatements of functions that no case executes: {len(missing) - ways}; conditions that only come out")
    print(f"in one way: {ways}; raising ones and their conditions left out")
    return OK


def _explore(
    rows: Sequence[Row], entries: dict[str, Judged], explored: Callable[[Row], Mapping[str, Any]], ended: measure.Ended,
    minutes: float,
) -> None:
    """Survivors that count meet faults and random programs; what these kill is killed. Each is asked once."""
    for row in rows:
        if row["end"] not in (SURVIVED, NOT_REACHED) or not triage.judged(row["mutant"], entries).counts:
            continue
        if row.get("explored", 0) >= minutes:
            continue
        found = explored(row)
        if found.get("killed"):
            row.update(end=KILLED, by=found["by"], outcome=found["outcome"], witness=found["witness"])
        if "trouble" not in found:
            ended.add({**row, "explored": minutes})
        why = found.get("trouble") or found.get("witness") or "neither faults nor random programs saw anything"
        print(f"explored    {row['mutant']}: {why}", flush=True)


def _line(row: Row, entries: dict[str, Judged]) -> str:
    """A row as a line; of a survivor with its diff, and what it was judged to be."""
    head = f"{row['end']:<11} {row['mutant']}"
    if row["end"] == KILLED:
        return f"{head}\n            by {row['by']} ({row['tried']} of {row['cases']}): {row['witness'][:160]}"
    if row["end"] in (STILLBORN, TROUBLE):
        return f"{head}\n            {row['witness'][:200]}"
    judged = triage.judged(row["mutant"], entries)
    said = f"{judged.kind}: {judged.reason}".rstrip(": ")
    diff = "\n".join(f"            {line}" for line in row["diff"].splitlines())
    met = f"{row['tried']} of {row['cases']} cases"
    return f"{head} (line {row['line']}, {met})\n{diff}\n            {said}"


def _conclude(given: Namespace, seed: int, rows: Sequence[Row], entries: dict[str, Judged], out: Path) -> int:
    if given.mutant:
        return OK if rows and rows[0]["end"] == KILLED else BROKEN
    found = rates(rows, entries)
    print(f"\n{_table(found)}\n")
    for row in rows:
        if row["end"] == TROUBLE:
            print(f"could not be tried: {row['mutant']}: {row['witness']}")
    print(_sentence(found[0], given.written or f"seed {seed}"))
    if float(given.explore):
        for by in (exploring.MATRIX, exploring.PROGRAMS):
            print(f"of these by {by}: {sum(row.get('by') == by for row in rows)}")
    print(_in_sample())
    if given.cases:
        print(f"a mutant met {given.cases} cases at most: more of them would perhaps be killed by all")
    path = _recorded(out, {"written": given.written} if given.written else {"seed": seed}, rows, found, entries)
    print(f"record: {path}")
    if given.history:
        folder = Path(given.history) / "power"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / f"{time.strftime('%Y-%m-%dT%H%M%SZ', time.gmtime())}-{seed}.jsonl")
    if not found[0].counted:
        return UNDECIDED
    return BROKEN if any(one.untriaged for one in found) else OK


def _table(found: Sequence[Rate]) -> str:
    heads = ("", "drawn", "counted", "killed", "rate", "95 % interval", "without plain errors")
    lines = [_columns(*heads)]
    for one in found:
        low, high = one.interval
        rate, subtle = ("" if each is None else f"{each:.1%}" for each in (one.value, one.subtle))
        interval = f"{low:.1%} to {high:.1%}"
        lines.append(_columns(one.part, one.drawn, one.counted, one.killed, rate, interval, subtle))
    return "\n".join(lines)


def _columns(part: str, drawn: object, counted: object, killed: object, rate: str, interval: str, subtle: str) -> str:
    return f"{part:<8} {drawn:>6} {counted:>8} {killed:>7} {rate:>8}   {interval:<17} {subtle}".rstrip()


def _sentence(whole: Rate, draw: str) -> str:
    low, high = whole.interval
    rest = f"; {whole.untriaged} survivors are not triaged and count as gaps" if whole.untriaged else ""
    rate = "nothing to kill" if whole.value is None else f"{whole.value:.1%} ({low:.1%} to {high:.1%})"
    return (
        f"power on {draw}: {rate} of {whole.counted} mutants killed, out of sample; "
        f"{whole.excluded} more are equivalent, or show only in time or on an accelerator{rest}"
    )


def _in_sample() -> str:
    last = last_run.kept()
    if not last:
        return f"in sample: {len(catalogue.load())} planted defects, not all tried here yet (make defects)"
    return f"in sample: {last['killed']} of {last['of']} planted defects killed ({last['time']}, {last['commit'][:8]})"


def _recorded(
    out: Path, draw: dict[str, Any], rows: Sequence[Row], found: Sequence[Rate], entries: dict[str, Judged]
) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    header = identity("power", home=Path(__file__).parent)
    with Writer(out / RECORD, {**header, **draw}) as writer:
        for row in rows:
            judged = Judged("") if row["end"] in (KILLED, STILLBORN, TROUBLE) else triage.judged(row["mutant"], entries)
            writer.write({**row, "class": judged.kind, "reason": judged.reason})
        writer.close({"rates": [one.row() for one in found], "in_sample": last_run.kept()})
    return writer.path


__all__ = ["RECORD", "UNTRIAGED", "power"]
