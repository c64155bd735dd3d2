"""``python -m conformance run``: checks what was asked, drives pytest through the plugin, records, reports, judges."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import pytest
from rich.console import Console

from reports.records import Writer, identity

from ..bad_input import BadInput
from ..clauses import Catalogue, load, matches
from ..ending import terminated_like_interrupted
from ..engine import inventory, plugin, report, resume
from ..engine import request as ask
from ..engine.judgement import BAD_INPUT, INTERNAL, INTERRUPTED, OK
from ..engine.progress import reporter
from ..engine.run import SuiteRun
from ..pages.header import about
from ..pages.write import write as write_pages
from ..ranks.agent_group import AgentGroup
from ..ranks.launched import SpreadCluster

RECORD = "conformance.jsonl"
JUNIT = "junit.xml"


def run(given: Namespace, agent_group: AgentGroup | None = None) -> int:
    """Run, report on standard output, write the records into ``--out``; returns the exit status.

    With a ``agent_group``, ranks run at the places that a launcher gave (see ``launched``).
    """
    checks = _checks(given.checks)
    catalogue = load()
    cited = list(inventory.by_clause(inventory.declared(checks)))
    asked = ask.asked(given, [*catalogue.by_id, *cited], "" if given.checks is None else str(checks))
    if given.dry_run:
        subjects = ", ".join(f"{name} {version}" for name, version in asked.versions.items())
        print(f"can be had: {subjects} on {asked.backend} at world {', '.join(map(str, asked.worlds))}")
        return OK
    out = ask.writable(Path(given.out))
    header = {**_header(asked, catalogue), **({"launcher": agent_group.about()} if agent_group else {})}
    with _streams() as (stdout, stderr), resume.alone_in(out):
        resume.set_aside(out / RECORD)
        earlier = resume.Earlier()
        if given.resume:
            earlier = resume.find(out / RECORD, header, given.resume, lambda text: _say(text, stderr))
        whole = given.check == "*" and asked.schedule is None
        suite_run = SuiteRun(asked, catalogue, whole, reporter(stderr), elsewhere=cited, earlier=earlier)
        if agent_group is not None:
            suite_run.clusters = partial(SpreadCluster, agent_group)
        with terminated_like_interrupted():
            status = _pytest(suite_run, checks, out, {**header, **earlier.header()})
        suite_run.reporter.end()
        if suite_run.judgement is not None and not suite_run.judgement.interrupted and not suite_run.suite_errors:
            earlier.drop()
        return _conclude(suite_run, status, out, stdout, stderr)


def _say(text: str, stderr: TextIO) -> None:
    print(f"conformance: {text}", file=stderr)


def _checks(given: str | None) -> Path:
    path = Path(given) if given is not None else inventory.CHECKS
    if not path.exists():
        raise BadInput(f"there are no checks at {path}")
    return path.resolve()


def _header(asked: ask.Asked, catalogue: Catalogue) -> dict[str, Any]:
    """The header of the record: who ran, what was asked, what the suite promises."""
    command = [sys.executable, "-m", "conformance", *sys.argv[1:]]
    header = identity("conformance", command, home=Path(__file__).parent)
    subjects = [{"name": name, "spec": spec, "version": asked.versions[name]} for name, spec in asked.subjects.items()]
    question = {
        "backend": asked.backend, "worlds": list(asked.worlds), "select": list(asked.select), "tier": asked.tier,
        "check": asked.check, "deadline": asked.deadline_s, "schedule": asked.schedule and list(asked.schedule),
        **({"poison": True} if asked.poison else {}),
    }  # fmt: skip
    about_suite = about(catalogue, asked.deviations, asked.checks)
    fingerprint = resume.source(asked.subjects, asked.checks)
    return {**header, "subjects": subjects, "asked": question, "source": fingerprint, **about_suite}


def _pytest(suite_run: SuiteRun, checks: Path, out: Path, header: Mapping[str, Any]) -> int:
    """Let pytest run the checks; the plugin keeps the results in the run."""

    def open_record() -> None:
        suite_run.writer = Writer(out / RECORD, {**header, "extent": suite_run.extent})

    files = inventory.files_of(checks, lambda clause: matches(clause, suite_run.asked.select)) or [checks]
    if checks == inventory.CHECKS:  # what the ranks need loads while pytest collects
        suite_run.prepare([f"conformance.checks.{file.stem}" for file in files])
    root, xml = checks if checks.is_dir() else checks.parent, f"--junitxml={out / JUNIT}"
    try:
        return plugin.Driver(suite_run, open_record).run(files, root, xml, "-o", "junit_suite_name=conformance")
    except OSError as error:  # a full disk, say: pytest does not expect that while it writes its last file
        suite_run.suite_errors.append(f"the records cannot be written: {error}")
        return INTERNAL
    finally:
        suite_run.close()


def _conclude(suite_run: SuiteRun, status: int, out: Path, stdout: TextIO, stderr: TextIO) -> int:
    """Print the report, or why there is none; the exit status of the whole."""
    for text in suite_run.suite_errors:
        print(f"conformance: the suite itself failed: {text}", file=stderr)
    judged = suite_run.judgement
    cut_short = status == INTERNAL and judged is not None and judged.exit_status != INTERNAL  # a full disk, say
    if judged is None or cut_short or suite_run.writer is None or not (suite_run.results or judged.interrupted):
        return _nothing(suite_run, status, stderr)
    record = suite_run.writer.path
    tty = stdout.isatty()
    console = Console(file=stdout, width=None if tty else 120, highlight=False)
    report.write(console, judged, suite_run.catalogue)
    console.print(f"records: {record} · {out / JUNIT}", soft_wrap=True)
    if record == out / RECORD:
        _pages(out, console, stderr)
    else:  # interrupted, where a whole run's record lies: that stays, and so does its page
        console.print(f"page: none of this run; {out / RECORD} is an earlier one's, and so is its page", soft_wrap=True)
    return INTERNAL if suite_run.suite_errors and not judged.interrupted else judged.exit_status


def _pages(out: Path, console: Console, stderr: TextIO) -> None:
    """The page, the summary and the badges, made from the record; the record and the judgement stand without them."""
    try:
        made, _ = write_pages([out / RECORD], out)
    except Exception as error:
        print(f"conformance: the page could not be made: {type(error).__name__}: {error}", file=stderr)
    else:
        console.print(f"page: {' · '.join(map(str, made))}", soft_wrap=True)


def _nothing(suite_run: SuiteRun, status: int, stderr: TextIO) -> int:
    """Say why nothing was judged."""
    if status == pytest.ExitCode.INTERRUPTED and not suite_run.suite_errors:
        print("conformance: interrupted before the first check had ended", file=stderr)
        return INTERRUPTED
    if suite_run.suite_errors:
        return BAD_INPUT if status == pytest.ExitCode.INTERRUPTED else INTERNAL
    if status == pytest.ExitCode.NO_TESTS_COLLECTED:
        worlds = ", ".join(map(str, suite_run.asked.worlds))
        which = f" named {suite_run.asked.check}" if suite_run.asked.check != "*" else ""
        which += " that takes a schedule" if suite_run.asked.schedule is not None else ""
        print(
            f"conformance: nothing to run: no check{which} of {', '.join(suite_run.asked.select)} "
            f"runs at world {worlds}; `python -m conformance show CLAUSE` says at which it does",
            file=stderr,
        )
        return BAD_INPUT
    print(f"conformance: pytest gave up with status {status}", file=stderr)
    return INTERNAL


@contextmanager
def _streams() -> Iterator[tuple[TextIO, TextIO]]:
    """Our own handles on the terminal: pytest captures the usual ones while checks run."""
    sys.stdout.flush()
    sys.stderr.flush()
    with os.fdopen(os.dup(1), "w") as stdout, os.fdopen(os.dup(2), "w") as stderr:
        yield stdout, stderr
