"""``python -m conformance show CLAUSE``: one clause, its checks, its listed deviations and its example."""

from __future__ import annotations

import sys
import textwrap
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase

from .. import deviations
from ..bad_input import BadInput
from ..clauses import Catalogue, Clause, load
from ..clauses.anchors import fault
from ..engine.inventory import Declared, by_clause, declared
from .worked_examples import example_of


def show(given: Namespace) -> int:
    """Print everything that the suite knows of one clause."""
    clause = _find(load(), given.clause)
    for line in [*_about(clause), *_checks(by_clause(declared()).get(clause.id, [])), *_deviations(clause)]:
        print(line)
    example = example_of(clause.id)
    if example is not None and not given.no_example:
        print("\nstory")
        return _tell(example)
    return 0


def _tell(example: Callable[[], Iterable[str]]) -> int:
    from ..ranks.fork_server_client import (
        ForkServerFailed,  # brings torch along, which all else here does without
    )

    try:
        for line in example():
            print(f"  {line}" if line else "", flush=True)
    except ForkServerFailed as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 3
    return 0


def _find(catalogue: Catalogue, wanted: str) -> Clause:
    clause = catalogue.get(wanted.upper())
    if clause is None:
        raise BadInput(f"there is no clause {wanted!r}; `python -m conformance clauses` lists all")
    return clause


def _about(clause: Clause) -> Iterator[str]:
    yield f"{clause.id} · {clause.kind} · {clause.title}"
    yield textwrap.fill(clause.statement, 100, initial_indent="  ", subsequent_indent="  ")
    yield f"  source: {clause.source}"
    if clause.since:
        yield f"  since: torch {clause.since}"
    if clause.anchor:
        wrong = fault(clause)
        yield f"  anchor: “{clause.anchor}” in {clause.anchor_in}" + (f" — STALE: {wrong}" if wrong else "")
    if clause.note:
        yield f"  note: {clause.note}"
    if not clause.testable:
        yield f"  untestable: {clause.reason}"


def _checks(checks: list[Declared]) -> Iterator[str]:
    yield f"checks: {len(checks) or 'none'}"
    for found in checks:
        worlds = f" · worlds {found.worlds}" if found.worlds else ""
        backends = f" · backends {found.backends}" if found.backends else ""
        scenarios = f" · scenarios {', '.join(found.scenarios)}" if found.scenarios else ""
        yield f"  {found.sentence}"
        yield f"    {found.file.name}:{found.line} · {', '.join(found.clauses)}{worlds}{backends}{scenarios}"


def _deviations(clause: Clause) -> Iterator[str]:
    for path in sorted(deviations.HERE.glob("*.toml")):
        for deviation in deviations.load(path).deviations:
            if fnmatchcase(clause.id, deviation.clause):
                limits = [f"worlds {', '.join(map(str, deviation.worlds))}"] if deviation.worlds else []
                limits += [f"torch {deviation.torch}"] if deviation.torch else []
                limits += [f"on {deviation.backend}"] if deviation.backend else []
                yield f"deviation of {path.stem} · {deviation.outcome}{''.join(f' · {limit}' for limit in limits)}"
                yield f"    {deviation.reason}" + (f" ({deviation.link})" if deviation.link else "")
