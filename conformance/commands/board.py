"""``python -m conformance board``: judge every listed implementation where something changed, and write the page."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from ..bad_input import BadInput
from ..board.columns import choose
from ..board.judge import judge
from ..board.page import COUNTED, Judged, publish
from ..engine import request as ask


def board(given: Namespace) -> int:
    """Print the table and where the page is; 1 if a column has no answer of today."""
    columns, jobs = choose(given.columns), ask.number(given.jobs, "number of jobs")
    out = ask.writable(Path(given.out))
    judged = []
    for column in columns:
        source, trouble = judge(column, out / column.name, jobs)
        judged.append(Judged(column, source, trouble))
        if trouble:
            print(f"board: {column.name} {trouble}", file=sys.stderr)
    try:
        written = publish(judged, out)
    except OSError as error:
        raise BadInput(f"cannot write into {out}: {error.strerror}; choose another folder with --out") from error
    print("\n".join(_table(judged)))
    print(" · ".join(map(str, written)))
    return 1 if any(each.trouble for each in judged) else 0


def _table(judged: list[Judged]) -> list[str]:
    rows: list[tuple[str, ...]] = [("column", "version", *COUNTED)]
    for each in judged:
        answers = list(each.answers().values())
        rows.append((each.column.name, each.version, *(str(answers.count(word)) for word in COUNTED)))
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
