"""``python -m conformance board``: judge every listed implementation where something changed, and write the page."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from ..bad_input import BadInput
from ..board import classes
from ..board.columns import Column, choose
from ..board.judge import judge, last
from ..board.page import COUNTED, Judged, publish
from ..ending import terminated_like_interrupted
from ..engine import request as ask
from ..pages.record_book import RECORD, Source


def board(given: Namespace) -> int:
    """Print the table and where the page is; 1 if a column has no answer of today."""
    columns, jobs = choose(given.columns), ask.number(given.jobs, "number of jobs")
    limit_s = 60 * ask.minutes(given.minutes)
    if given.show and not any((Path(given.out) / column.name / RECORD).is_file() for column in columns):
        raise BadInput(f"nothing of this has been judged in {given.out} yet; leave --show out to judge it now")
    out = ask.writable(Path(given.out))
    judged = []
    for column in columns:
        with terminated_like_interrupted():
            folder = out / column.name
            source, trouble = last(folder) if given.show else judge(column, folder, jobs, limit_s)
        judged.append(_known(column, source, trouble))
        if judged[-1].trouble:
            print(f"board: {column.name} {judged[-1].trouble}", file=sys.stderr)
    try:
        written = publish(judged, out)
    except OSError as error:
        raise BadInput(f"cannot write into {out}: {error.strerror}; choose another folder with --out") from error
    print("\n".join(_table(judged)))
    print(" · ".join(map(str, written)))
    return 1 if any(each.trouble for each in judged) else 0


def _known(column: Column, source: Source | None, trouble: str) -> Judged:
    """The answer of a column with what is known of its breaks; a word on those of which nothing is, and on lists."""
    if source is None:
        return Judged(column, source, trouble)
    source = classes.applied(source, classes.of(column))
    new = classes.unclassed(source)
    news = [f"has breaks that nobody has classed: {', '.join(new)}"] if new and column.subject != "impl" else []
    gone = [f"no longer shows what is listed: {text}" for text in source.footer.get("stale", ())]
    return Judged(column, source, "; ".join([*filter(None, [trouble]), *news, *gone]))


def _table(judged: list[Judged]) -> list[str]:
    rows: list[tuple[str, ...]] = [("column", "version", *COUNTED)]
    for each in judged:
        answers = list(each.answers().values())
        rows.append((each.column.name, each.version, *(str(answers.count(word)) for word in COUNTED)))
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
