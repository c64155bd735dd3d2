"""The command line: ``python -m perf run | list | show | export | table | laws | compare | trace | chart``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from conformance.ending import status_of

STATUSES = """exit status:
  0   every cell was measured, or could not be for a reason that is known
  1   a cell is void (weights that are not what one process computes, a broken guarantee), failed or hung; or nothing
      was measured, for example because the budget was used up before the first cell
  2   bad input, or something that this machine does not have; nothing was measured
  3   the harness itself failed midway (a full disk, say); finished cells are kept
  130 interrupted; finished cells are kept, and the same command continues"""

COMPARES = """The times of B over those of A, series by series, with 95 % intervals. Subjects of one record are paired
round by round, six rounds at the least. Runs are not: each counts as one number (Welch's test of their logarithms), and
four of each side are the fewest that tell anything. Verdicts are corrected for the number of series (Benjamini and
Hochberg)."""
SLOWER = """exit status:
  0   nothing in B is clearly slower
  1   a slow-down: its interval is clear of 1, more than chance does among so many series
  2   bad input; or too few runs or rounds to tell anything"""
EXPORTS = """Records as one tidy table: a row for each cell, or with --samples for each sample and rank of each phase.
Every row says which record, series and group it is of, and has the value of every axis."""
COLUMNS = """columns, with their units (_ns, _mib, _bytes, _per_s) in the names; what a cell does not have is empty:
  record, commit       the file, and the commit that it was measured at
  series, group        a cell's name; only cells of one group of one record were measured side by side
  workload … copy      the axes (`python -m perf list`); copy 2 is a cell that was measured once more
  status, reason       ok, void, failed, hung or not run, and why; only what is ok has times
of cells:
  rounds, time_ns      how many rounds, and the median over them of the slowest rank; on a GPU by its events
  cpu_ns               the same of the main thread's time on the processor, of the busiest rank
  gap_of_allowed       how far from what one process computes, over what rounding may do: up to 1 is right
  noise                share by which a cell differs from itself; noise_ratio_…: that comparison
  bus_bytes, exposed_ns, bound_ns, host_ns_per_parameter …    derived figures, ends of intervals as _low_ns, _high_ns
  min_wait_ns, max_wait_ns, max_peak_bytes …                  figures by rank, their least and their most
of samples:
  phase                all (the whole sample), forward, backward, step, or warmup, which has no rounds
  sample, rank, round  numbered from 0; variants of a group with the same round were measured in turn
  wall_ns, cpu_ns, device_ns    empty where that clock was not read"""
TABLES = "Every target for ours against torch's, from records of the sweep impl-vs-torch."
LAWS = "How costs grow with ranks, parameters, buckets and skew: laws fitted and expected, from the sweep growth."
TRACES = "Trace one iteration of up to four variants, of a RECORD or of those that the options name."


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser("python -m perf", description="Measure Join, DDP, ZeRO and their overlap.")
    commands = top.add_subparsers(
        dest="command", required=True, metavar="run | list | show | export | table | laws | compare | trace | chart"
    )
    _run(commands.add_parser(
        "run", help="measure a sweep", epilog=STATUSES, formatter_class=argparse.RawDescriptionHelpFormatter
    ))  # fmt: skip
    commands.add_parser("list", help="sweeps, workloads and axes")
    show = commands.add_parser("show", help="print a record's main table")
    show.add_argument("record", metavar="RECORD", help="a .jsonl file, or its .part while it is being written")
    _export(commands.add_parser(
        "export", help="records as tidy tables, for pandas, R or a spreadsheet", description=EXPORTS, epilog=COLUMNS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ))  # fmt: skip
    _reports(commands)
    _compare(commands.add_parser(
        "compare", help="two records, commits or subjects", description=COMPARES, epilog=SLOWER,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ))  # fmt: skip
    _trace(commands.add_parser("trace", help="one iteration on every rank, as a timeline", description=TRACES))
    chart = commands.add_parser("chart", help="draw the charts of records and traces")
    chart.add_argument("records", metavar="FILE", nargs="+", help="records (.jsonl) and traces (.trace.json)")
    chart.add_argument("--out", default="out/perf/charts", metavar="FOLDER", help="(default: %(default)s)")
    return top


def _export(export: argparse.ArgumentParser) -> None:
    export.add_argument("records", metavar="RECORD", nargs="+", help="a .jsonl or .part file; several make one table")
    forms = "json: a list of objects; parquet: needs pyarrow, and --out (default: %(default)s)"
    export.add_argument("--form", default="csv", choices=["csv", "json", "parquet"], help=forms)
    export.add_argument("--samples", action="store_true", help="every sample of every rank instead of every cell")
    export.add_argument("--out", default="", metavar="FILE", help="(default: standard output; .csv.gz packs)")


def _reports(commands: Any) -> None:
    table = commands.add_parser("table", help="targets: reached, missed, or cannot tell", description=TABLES)
    table.add_argument("--suite", default=[], action="append", metavar="RECORD", help="a record of `make conformance`")
    laws = commands.add_parser("laws", help="how each cost grows, and whether it grows as expected", description=LAWS)
    for command in (table, laws):
        command.add_argument("records", metavar="RECORD", nargs="+", help="several are evaluated together")
        command.add_argument("--markdown", default="", metavar="FILE", help="write it as Markdown, too (-: only that)")


def _compare(compare: argparse.ArgumentParser) -> None:
    compare.add_argument("first", metavar="A", help="a record or a folder of records; a commit; a subject")
    compare.add_argument("second", metavar="B", help="what stands against it: above 1, B is slower")
    compare.add_argument("--by", default="", choices=["record", "commit", "subject"], help="(default: what A is)")
    place = "for commits and subjects: a record, or a folder to look in (default: %(default)s)"
    compare.add_argument("--records", default="out/perf", metavar="PLACE", help=place)
    shares = "for runs: compare times as shares of this subject's, measured in the same rounds"
    compare.add_argument("--beside", default="", metavar="SUBJECT", help=shares)
    compare.add_argument("--markdown", default="", metavar="FILE", help="write a Markdown table, too (-: only that)")


def _trace(trace: argparse.ArgumentParser) -> None:
    trace.add_argument("record", metavar="RECORD", nargs="?", help="trace the most informative cells of this record")
    trace.add_argument(
        "--only", default=[], action="append", metavar="SERIES", help="these series of the record instead; repeatable"
    )
    trace.add_argument("--workload", default="transformer", metavar="NAME", help="(default: %(default)s)")
    trace.add_argument("--world", default="2", metavar="N", help="(default: %(default)s)")
    trace.add_argument("--subject", default="impl,torch", metavar="NAMES", help="(default: %(default)s)")
    trace.add_argument("--hook", default="none", metavar="NAMES", help="(default: %(default)s)")
    trace.add_argument("--zero", default="off", help="off, on or views (default: %(default)s)")
    trace.add_argument("--optimizer", default="sgd", help="sgd or adam (default: %(default)s)")
    trace.add_argument("--cap", default="1", metavar="MIB", help="bucket cap; 0: DDP's own (default: %(default)s)")
    trace.add_argument("--backend", default="auto", help="auto, gloo or nccl (default: %(default)s)")
    choices = ("workload", "world", "subject", "hook", "zero", "optimizer", "cap", "backend")
    trace.set_defaults(usual={name: trace.get_default(name) for name in choices})
    trace.add_argument("--out", default="out/perf", metavar="FOLDER", help="(default: %(default)s)")


def _run(run: argparse.ArgumentParser) -> None:
    run.add_argument("--sweep", default="default", metavar="NAME", help="a name from `list`, or a TOML file")
    run.add_argument(
        "--only", default=[], action="append", metavar="SERIES",
        help="only this series of the sweep, and what it is compared with; repeatable",
    )  # fmt: skip
    run.add_argument("--world", default="", metavar="N", help="the most ranks (default: 2; under a launcher all)")
    run.add_argument("--hosts", default="", metavar="N", help="one rank on each of N hosts of this machine instead")
    run.add_argument("--net", default="", metavar="RATE", help="rate of each host's link: 200mbit (default: 1gbit)")
    run.add_argument("--delay", default="", metavar="TIME", help="delay of each host's link, in each direction: 200us")
    run.add_argument("--subject", default="impl,torch", metavar="NAMES", help="impl, torch or package.module:attribute")
    run.add_argument("--backend", default="auto", help="auto, gloo or nccl (default: %(default)s)")
    run.add_argument("--budget", default="", metavar="TIME", help="fit the rounds into 90s, 10m or 1.5h")
    run.add_argument("--out", default="out/perf", metavar="FOLDER", help="output folder (default: %(default)s)")
    run.add_argument(
        "--judged", default="", metavar="RECORD",
        help="a record of the suite that says which guarantees hold, instead of judging them now; no: do not ask",
    )  # fmt: skip
    run.add_argument("--dry-run", action="store_true", help="only say which cells there are and how long they take")
    run.add_argument("--charts", action="store_true", help="draw charts of the record, and trace one iteration")
    run.add_argument("--fresh", action="store_true", help="do not continue an earlier run that did not end")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit status."""
    given = parser().parse_args(arguments)
    return status_of("perf", lambda: _command(given))


def _command(given: argparse.Namespace) -> int:
    """Load what the command needs, and do it."""
    match given.command:
        case "run":
            from .commands.run import run as command
        case "list":
            from .commands.list import listed as command
        case "export":
            from .commands.export import exported as command
        case "compare":
            from .commands.compare import compared as command
        case "table":
            from .commands.table import tabled as command
        case "laws":
            from .commands.laws import lawful as command
        case "trace":
            from .commands.trace import trace as command
        case "chart":
            from .commands.chart import charted as command
        case _:
            from .commands.show import shown as command
    return command(given)


if __name__ == "__main__":
    sys.exit(main())
