"""The command line: ``python -m perf run | list | show``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from conformance.bad_input import BadInput

STATUSES = """exit status:
  0   every cell was measured, or could not be for a reason that is known
  1   a cell is void (its weights are not what one process computes), failed or hung
  2   what was asked for cannot be had; nothing was measured
  3   the harness itself failed in the middle (a full disk, say); finished cells are kept
  130 interrupted; finished cells are kept, and the same command goes on from there"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser("python -m perf", description="Measure Join, DDP, ZeRO and their overlap.")
    commands = top.add_subparsers(dest="command", required=True, metavar="run | list | show")
    _run(commands.add_parser(
        "run", help="measure a sweep", epilog=STATUSES, formatter_class=argparse.RawDescriptionHelpFormatter
    ))  # fmt: skip
    commands.add_parser("list", help="sweeps, workloads and axes")
    show = commands.add_parser("show", help="print a record's main table")
    show.add_argument("record", metavar="RECORD", help="a .jsonl file, or its .part while it is being written")
    return top


def _run(run: argparse.ArgumentParser) -> None:
    run.add_argument("--sweep", default="default", metavar="NAME", help="a name from `list`, or a TOML file")
    run.add_argument("--world", default="", metavar="N", help="the most ranks (default: 2; under a launcher all)")
    run.add_argument("--subject", default="impl,torch", metavar="NAMES", help="impl, torch or package.module:attribute")
    run.add_argument("--backend", default="auto", help="auto, gloo or nccl (default: %(default)s)")
    run.add_argument("--budget", default="", metavar="TIME", help="fit the repeats into 90s, 10m or 1.5h")
    run.add_argument("--out", default="out/perf", metavar="FOLDER", help="of the records (default: %(default)s)")
    run.add_argument("--dry-run", action="store_true", help="only say which cells there are and how long they take")
    run.add_argument("--fresh", action="store_true", help="do not go on from an earlier run that did not end")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit status."""
    given = parser().parse_args(arguments)
    try:
        match given.command:
            case "run":
                from .commands.run import run as command
            case "list":
                from .commands.list import listed as command
            case _:
                from .commands.show import shown as command
        return command(given)
    except BadInput as error:
        print(f"perf: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has had enough
        sys.stderr.close()
        return 1


if __name__ == "__main__":
    sys.exit(main())
