"""``python -m conformance protocol``: explores the join protocol in one process; a row for each program and option."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from fnmatch import fnmatchcase

from ..bad_input import BadInput
from ..defects import catalogue
from ..ending import terminated_like_interrupted
from ..engine.judgement import BROKEN, INTERRUPTED, OK, UNDECIDED
from ..engine.request import minutes, number, numbers, subject_of, words
from ..protocol import driver
from ..protocol.configurations import WORLDS, Configuration, everything, telling
from ..protocol.search import Found
from ..protocol.table import Table

_SECONDS_FOR_A_DEFECT = 60.0  # of the processor


def protocol(given: Namespace) -> int:
    """Explore, or try planted defects; returns the exit status."""
    limit_s = 60 * minutes(given.minutes)
    jobs = number(given.jobs, "number of jobs")
    configurations = _asked(given)
    if given.defect and given.subject != "impl":
        raise BadInput(f"--defect plants mistakes in impl: leave --subject {given.subject} out")
    _ensure_explorable(given.subject, configurations)
    try:
        with terminated_like_interrupted():
            if given.defect:
                return _try_defects(words(given.defect, "pattern"), configurations, jobs)
            return _explore(given.subject, configurations, jobs, limit_s)
    except KeyboardInterrupt:
        print("conformance: interrupted", file=sys.stderr)
        return INTERRUPTED


def _asked(given: Namespace) -> list[Configuration]:
    from ..protocol.programs import PROGRAMS

    chosen = [name for name in PROGRAMS if fnmatchcase(name, given.program)]
    if not chosen:
        raise BadInput(f"no program is called {given.program!r}; there are: {'; '.join(PROGRAMS)}")
    worlds = numbers(given.worlds) if given.worlds else WORLDS
    if set(worlds) - set(WORLDS):
        raise BadInput("the protocol is explored at worlds 2 and 3")
    dividing = [name for name in chosen if PROGRAMS[name].divides]
    found = everything(chosen, dividing, worlds)
    if given.inputs:
        inputs = tuple(_count(part.strip()) for part in given.inputs.split(","))
        found = [each for each in found if each.inputs == inputs]
    if not found:
        raise BadInput(f"nothing of what is explored has inputs {given.inputs}; give for example 1,2 or 0,1,3")
    return found


def _ensure_explorable(spec: str, configurations: Sequence[Configuration]) -> None:
    """Each process loads the subject for itself, where nobody would see why it cannot be had."""
    from ..protocol.programs import PROGRAMS, has_torchs_ddp

    asked = {each.program for each in configurations}
    wrapped = [name for name, program in PROGRAMS.items() if name in asked and program.wraps]
    if has_torchs_ddp(subject_of(spec)) and wrapped:
        plain = [name for name, program in PROGRAMS.items() if not program.wraps]
        raise BadInput(
            f"program {wrapped[0]!r} cannot be explored with {spec}: torch's DDP reads results where no simulated rank "
            f"can wait for them; choose among {'; '.join(plain)} with --program, for example --program plain"
        )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise BadInput(f"number of inputs {text!r} is not a whole number")
    return int(text)


def _explore(subject: str, configurations: Sequence[Configuration], jobs: int, seconds: float) -> int:
    table, begun = Table(configurations), time.monotonic()
    broken: list[Found] = []
    for configuration, found in driver.explored(subject, configurations, jobs=jobs, seconds=seconds):
        table.add(configuration, found)
        if found.violation:
            broken.append(found)
            print(found.violation, flush=True)
        elif sys.stderr.isatty():
            print(f"\r{table.progress()} after {time.monotonic() - begun:.0f} s ", end="", file=sys.stderr, flush=True)
    print(f"\n{table}")
    if not broken and not table.complete:
        print(f"nothing was decided: no configuration was finished in {seconds / 60:g} minutes; give more --minutes")
        return UNDECIDED
    return BROKEN if broken else OK


def _try_defects(patterns: Sequence[str], configurations: Sequence[Configuration], jobs: int) -> int:
    wanted = catalogue.select(patterns, catalogue.load())
    ordered = telling(configurations)
    missed = 0
    for defect, violation in driver.violations_of(wanted, ordered, jobs=jobs, seconds=_SECONDS_FOR_A_DEFECT):
        lines = violation.splitlines()
        print(f"{defect.id}: {lines[0] if lines else 'NOT FOUND'}", flush=True)
        if len(wanted) == 1:
            print("\n".join(lines[1:]))
        missed += not violation
    print(f"{len(wanted) - missed} of {len(wanted)} defects found")
    return BROKEN if missed else OK
