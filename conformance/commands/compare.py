"""``python -m conformance compare A B``: what is newly broken, kept or listed in the second of two runs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from reports.records import RecordError

from ..bad_input import BadInput
from ..engine import request as ask
from ..pages import differences
from ..pages.compare import compare as compared
from ..pages.record_book import Source, read_source
from ..pages.write import put

PAGE, SUMMARY = "compare.html", "compare.md"


def compare(given: Namespace) -> int:
    """Print the comparison, write it into ``--out`` if asked; 1 if something is newly broken."""
    found = compared(_read(given.first), _read(given.second))
    if not (found.compares or found.worse):
        raise BadInput(f"{given.first} and {given.second} have no case in common: other clauses, subjects or worlds")
    out = ask.writable(Path(given.out)) if given.out is not None else None
    for line in differences.lines(found):
        print(line)
    if out is not None:
        try:
            put(out / SUMMARY, differences.markdown(found))
            put(out / PAGE, differences.page(found))
        except OSError as error:
            raise BadInput(f"cannot write into {out}: {error.strerror}; choose another folder with --out") from error
        print(f"{out / PAGE} · {out / SUMMARY}")
    return 1 if found.worse else 0


def _read(given: str) -> Source:
    try:
        return read_source(Path(given))
    except RecordError as error:
        raise BadInput(str(error)) from error
