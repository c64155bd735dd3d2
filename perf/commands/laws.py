"""``python -m perf laws RECORD…``: how each cost grows, the law that fits it, and whether it is the expected one."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

from conformance.bad_input import BadInput
from reports.records import RecordFile

from ..analyse.growth.costs import Series, series
from ..analyse.growth.printing import as_markdown, as_table
from ..analyse.table import wide_console
from .table import of_perf, write_text


def lawful(given: Namespace) -> int:
    """Print the laws; 0 whatever they are."""
    records = of_perf(given.records)
    found = series(records)
    if not found:
        raise BadInput("no cost was measured at three places; name the record of `make perf SWEEP=growth WORLD=8`")
    text = as_markdown(found, crowded(records))
    if given.markdown == "-":
        sys.stdout.write(text)
        return 0
    show(records, found)
    if given.markdown:
        write_text(given.markdown, text)
    return 0


def show(records: Sequence[RecordFile], found: Sequence[Series]) -> None:
    console = wide_console()
    console.print(as_table(found))
    console.print(crowded(records), markup=False, soft_wrap=True)


def crowded(records: Sequence[RecordFile]) -> str:
    """What the machine does to laws in the number of ranks."""
    machine = records[-1].header["machine"]
    return (
        f"On {machine['cores']} cores: more ranks than that take turns on them, so whatever each does grows linearly "
        "with their number, and such growth says nothing about ranks with cores of their own."
    )
