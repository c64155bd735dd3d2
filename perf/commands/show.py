"""``python -m perf show RECORD``: the main table of a record again, and what was asked."""

from __future__ import annotations

from argparse import Namespace

from reports.records.identity import spoken

from ..analyse.figures import figures_table
from ..analyse.table import in_order, main_table, wide_console
from ..measure import void
from ..measure.reading import asked_for


def shown(given: Namespace) -> int:
    record = asked_for(given.record)
    console = wide_console()
    header = record.header
    state = "" if record.complete else " · not brought to its end"
    machine = header["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    console.print(f"{header['time']} · commit {header['commit'][:12] or 'unknown'}{state}", markup=False)
    console.print(f"{machine['processor']}, {machine['cores']} cores · {versions}", markup=False)
    console.print(spoken(header["command"]), markup=False, soft_wrap=True)
    for sentence in header.get("warnings", []):
        console.print(f"note: {sentence}", markup=False)
    rows = in_order(record.rows, header.get("asked", {}).get("cells", []))
    console.print(main_table(rows))
    for sentence in void.sentences(rows):
        console.print(f"\n{sentence}", markup=False, soft_wrap=True)
    for row in rows:
        if row.get("witness"):
            console.print(f"\n{row['status']}: {row['series']}\n{row['witness']}", markup=False, soft_wrap=True)
    figures = figures_table(rows)
    if figures is not None:
        console.print("\nderived figures", style="bold")
        console.print(figures)
    return 0
