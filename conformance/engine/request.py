"""What a run was asked for, checked before anything starts: subjects, backend, worlds, clauses, deviations."""

from __future__ import annotations

import shlex
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..bad_input import BadInput
from ..clauses import matches
from ..deviations import Deviation, DeviationFile, built_in, load
from ..results import Result
from ..subjects import Subject, SubjectError, is_built_in, resolve
from .tiers import QUICK, TIERS
from .tiers import WORLDS as WORLDS_OF

WORLDS = WORLDS_OF[QUICK]
MOST_RANKS = 256


@dataclass(frozen=True)
class Asked:
    """Everything that a run is about."""

    subjects: dict[str, str]  # spec by the subject's own name, in the order asked
    versions: dict[str, str]  # version by name
    backend: str
    worlds: tuple[int, ...]
    select: tuple[str, ...]  # patterns of clause ids
    check: str = "*"  # pattern of check names
    deadline_s: float | None = None  # for one run of ranks; None: the cluster's own
    jobs: int = 1
    deviations: dict[str, tuple[Deviation, ...]] = field(default_factory=dict)  # by name of the subject
    checks: str = ""  # folder or file of checks instead of the suite's own
    tier: str = ""  # see tiers.py; empty: every case of what was asked for
    poison: bool = False  # whether buffers of collectives in flight hold NaN: see ranks/poison.py
    schedule: tuple[int, ...] | None = None  # inputs per rank, instead of the schedules that checks try by themselves

    def again(self, subject: str, worlds: Iterable[int], clause: str, check: str, schedule: str = "") -> str:
        """The command that runs one check of this run again, with one schedule only if it is given."""
        words = ["run", "--subject", self.subjects[subject], "--backend", self.backend]
        words += ["--worlds", ",".join(map(str, worlds)), "--select", clause, "--check", check]
        words += ["--schedule", schedule] if schedule else []
        words += ["--poison"] if self.poison else []
        words += ["--deadline", f"{self.deadline_s:g}"] if self.deadline_s else []
        return shlex.join(["python", "-m", "conformance", *words, *(["--checks", self.checks] if self.checks else [])])

    def again_for(self, results: Sequence[Result]) -> str:
        """The command that runs the check of these results again; with the schedule that is known to break it."""
        case, worlds = results[0].case, sorted({result.case.world for result in results})
        for result in results:
            if result.schedule:  # worth more than all worlds
                return self.again(case.subject, [result.case.world], result.clause, case.check, result.schedule)
        return self.again(case.subject, worlds, results[0].clause, case.check)


def asked(given: Namespace, known: Sequence[str], checks: str = "") -> Asked:
    """Everything that a command line asks for, looked at from the cheapest to the dearest.

    ``known``: the ids of all clauses; ``checks``: where they are, if they are not the suite's own.
    """
    select = patterns(given.select, known)
    jobs = number(given.jobs, "number of jobs")
    deadline_s = seconds(given.deadline) if given.deadline is not None else None
    of_tier = tier(given.tier)
    only, sizes = schedule_and_worlds(given.schedule, given.worlds, given.backend, of_tier)
    found = subjects(given.subject)
    specs = {name: spec for name, (spec, _) in found.items()}
    versions = {name: subject.version for name, (_, subject) in found.items()}
    return Asked(
        specs, versions, given.backend, sizes, select, given.check, deadline_s, jobs,
        deviations(given.deviations, specs, known), checks, of_tier, given.poison, only,
    )  # fmt: skip


def numbers(text: str, what: str = "world") -> tuple[int, ...]:
    """Whole numbers above 0, separated by commas; doubles are dropped."""
    found: list[int] = []
    for part in words(text, what):
        if not part.isdecimal() or int(part) < 1:
            raise BadInput(f"{what} {part!r} is not a whole number above 0; give for example 1,2,3,4")
        found.append(int(part))
    return tuple(dict.fromkeys(found))


def writable(folder: Path, option: str = "--out") -> Path:
    """The folder, made if there is none, after seeing that files can be made in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or str(error)
        raise BadInput(f"cannot write into {folder}: {why}; choose another folder with {option}") from error
    return folder.resolve()


def number(text: str, what: str) -> int:
    """One whole number above 0."""
    found = text.strip()
    if not found.isdecimal() or int(found) < 1:
        raise BadInput(f"{what} {text!r} is not a whole number above 0; give for example 2")
    return int(found)


def minutes(text: str, what: str = "minutes") -> float:
    """A number of minutes above 0."""
    return _above_0(text, f"{what} {text!r} is not a number above 0; give for example 10")


def seed(text: str) -> int | None:
    """The number of a draw; None if the text is empty."""
    if text and not text.isdecimal():
        raise BadInput(f"seed {text!r} is not a whole number; give for example 7")
    return int(text) if text else None


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    return _above_0(text, f"deadline {text!r} is not a number of seconds above 0")


def _above_0(text: str, refusal: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise BadInput(refusal)
    return found


def words(text: str, what: str) -> tuple[str, ...]:
    """Words separated by commas; an empty one is refused."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise BadInput(f"{what} {text!r} has an empty part; separate several by single commas")
    return tuple(dict.fromkeys(parts))


def subjects(text: str) -> dict[str, tuple[str, Subject]]:
    """Specs separated by commas, as name -> (spec, subject)."""
    found: dict[str, tuple[str, Subject]] = {}
    specs = words(text, "subject")
    for spec in specs:
        if [part.strip() for part in text.split(",")].count(spec) > 1:
            raise BadInput(f"subject {spec!r} is named more than once; name it once")
    for spec in specs:
        subject = subject_of(spec)
        if subject.name in found:
            other = found[subject.name][0]
            raise BadInput(f"subjects {other!r} and {spec!r} are both called {subject.name!r}; rename one")
        found[subject.name] = (spec, subject)
    return found


def subject_of(spec: str) -> Subject:
    """The one subject of this spec."""
    try:
        return resolve(spec)
    except SubjectError as error:
        raise BadInput(str(error)) from error


def tier(text: str) -> str:
    """The name of a tier, or nothing for every case of what was asked for."""
    if text and text not in TIERS:
        raise BadInput(f"there is no tier {text!r}; there are {' and '.join(TIERS)}")
    return text


def schedule(text: str) -> tuple[int, ...]:
    """How many inputs each rank has, separated by commas: as many numbers as there are ranks."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise BadInput(f"schedule {text!r} is not a list of whole numbers; give each rank's inputs, for example 0,1")
    return tuple(map(int, parts))


def schedule_and_worlds(
    wanted: str | None, given: str | None, backend: str, tier: str
) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    """The one schedule to run, if one is wanted, with the worlds: a schedule says for how many ranks it is."""
    if wanted is None:
        return None, worlds(given, backend, WORLDS_OF.get(tier, WORLDS))
    found = schedule(wanted)
    if given is not None and numbers(given) != (len(found),):
        raise BadInput(f"schedule {wanted!r} is for {len(found)} ranks, and the worlds are {given}; leave --worlds out")
    return found, worlds(str(len(found)), backend)


def worlds(text: str | None, backend: str, usual: Sequence[int] = WORLDS) -> tuple[int, ...]:
    """The world sizes to run at; without a wish: the usual ones, as far as the backend can give them."""
    found = tuple(usual) if text is None else numbers(text)
    if max(found) > MOST_RANKS:
        raise BadInput(f"world {max(found)} is more than the {MOST_RANKS} ranks that one machine is asked to hold")
    obstacles = {world: _obstacle(backend, world) for world in found}
    possible = tuple(world for world in found if not obstacles[world])
    wanted = found if text is not None else found[:1]  # without a wish, one possible world is enough
    for world in wanted:
        if obstacles[world] and not (text is None and possible):
            raise BadInput(f"{obstacles[world]}; ask for fewer ranks, or use --backend gloo")
    return possible


def _obstacle(backend: str, world: int) -> str:
    """Why so many ranks cannot have this backend here; empty if they can."""
    from ..ranks.backends import NotRunnable, ensure_runnable

    try:
        ensure_runnable(backend, world)
    except NotRunnable as error:
        return str(error)
    except (Exception, SystemExit) as error:  # a module that somebody else wrote may raise anything, or end the process
        return f"backend {backend!r} cannot be loaded: {type(error).__name__}: {error}"
    return ""


def patterns(text: str, known: Iterable[str]) -> tuple[str, ...]:
    """Clause patterns, each of which must match something."""
    found = words(text, "clause pattern")
    known = list(known)
    for pattern in found:
        if not any(matches(clause, [pattern]) for clause in known):
            raise BadInput(f"clause pattern {pattern!r} matches nothing; `python -m conformance clauses` lists all")
    return found


def deviations(
    files: Sequence[str], specs: dict[str, str], known: Iterable[str]
) -> dict[str, tuple[Deviation, ...]]:
    """The deviations of every subject: the suite's own list for a built-in one, and those of the files.

    ``known``: the ids of all clauses, one of which each entry of the files must be about.
    """
    found = {name: built_in(spec) if is_built_in(spec) else () for name, spec in specs.items()}
    known = list(known)
    for file in files:
        name, more = _whose(file, load(Path(file)), specs)
        for deviation in more:
            if not any(matches(clause, [deviation.clause]) for clause in known):
                where = f"{file}: {deviation.place.partition(', ')[2]}"
                raise BadInput(
                    f"{where}: there is no clause {deviation.clause!r}; `python -m conformance clauses` lists all"
                )
        found[name] += more
    return found


def _whose(file: str, read: DeviationFile, specs: dict[str, str]) -> tuple[str, tuple[Deviation, ...]]:
    """The subject that a file of deviations is about: the one that it names, or the only one that it can mean."""
    if read.subject:
        if read.subject not in specs:
            raise BadInput(f"{file}: is about subject {read.subject!r}, which is not in this run ({', '.join(specs)})")
        return read.subject, read.deviations
    guests = [name for name, spec in specs.items() if not is_built_in(spec)]
    for names in (list(specs), guests):
        if len(names) == 1:
            return names[0], read.deviations
    raise BadInput(f"{file}: does not say whose deviations these are; put subject = \"name\" at its top")
