"""The command line: ``python -m conformance run | clauses | show | …``; ``--help`` lists all commands."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from typing import Any

from .ending import status_of

STATUSES = """exit status:
  0   every clause is kept, or its break is a listed deviation, and no listed deviation is stale
  1   a clause is broken that is not listed, or a listed deviation did not show
  2   bad input, something that this machine does not have, or a check that cannot be read; nothing was judged
  3   the suite itself failed: midway (a full disk, say; standard error says how), or in some check, which the report
      calls a suite error; the other clauses were judged all the same
  4   nothing was decided: every case was unsupported or not run, and the report says why
  130 interrupted; what was finished is recorded, marked as interrupted"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser("python -m conformance", description="Judge implementations of Join, DDP and ZeRO.")
    words = (
        "run | clauses | show | page | compare | defects | explore | power | protocol | faults | soak | repro | "
        "hosts | board | gpu"
    )
    commands = top.add_subparsers(dest="command", required=True, metavar=words)
    _run(commands.add_parser(
        "run", help="run the checks and judge", epilog=STATUSES, formatter_class=argparse.RawDescriptionHelpFormatter
    ))  # fmt: skip
    clauses = commands.add_parser("clauses", help="list the catalogue with its coverage")
    clauses.add_argument("--select", default="*", metavar="PATTERNS", help="clause ids, e.g. 'JOIN-*,DDP-001'")
    show = commands.add_parser("show", help="print one clause with its checks, and run its example")
    show.add_argument("clause", metavar="CLAUSE", help="e.g. JOIN-025")
    show.add_argument("--no-example", action="store_true", help="do not run the clause's example, where it has one")
    repro = commands.add_parser("repro", help="write a script that shows a listed break, and a text to file upstream")
    repro.add_argument("clause", metavar="CLAUSE", help="one with a listed deviation of torch, e.g. ZERO-022")
    repro.add_argument("--subject", default="torch", metavar="NAME", help="whose: torch, or a column of the board")
    repro.add_argument("--out", default="out/repros", metavar="FOLDER", help="for both files (default: %(default)s)")
    _pages(commands)
    _hosts(commands.add_parser("hosts", help="run a script on hosts of this machine, over a network of a chosen rate"))
    _defects(commands.add_parser("defects", help="plant defects in our implementation and see whether they are caught"))
    board = commands.add_parser("board", help="judge third-party implementations as well, and write one page")
    board.add_argument("--columns", default="*", metavar="NAMES", help="e.g. torch,megatron (default: all)")
    board.add_argument("--jobs", default="2", metavar="N", help="checks at once (default: %(default)s)")
    board.add_argument("--show", action="store_true", help="judge nothing: write the page from the latest answers")
    board.add_argument("--minutes", default="30", metavar="N", help="at most for each column (default: %(default)s)")
    board.add_argument("--out", default="out/board", metavar="FOLDER", help="output folder (default: %(default)s)")
    _protocol(commands.add_parser("protocol", help="explore the join protocol: every order of steps, every failure"))
    _explore(commands.add_parser("explore", help="training programs drawn at random, compared with one process"))
    _faults(commands.add_parser("faults", help="every fault at every point in every role: what the ranks make of it"))
    _soak(commands.add_parser("soak", help="thousands of iterations under slow ranks and pauses: does anything grow?"))
    _power(commands.add_parser("power", help="how many random mutants of our implementation the quick tier kills"))
    _gpu(commands.add_parser("gpu", help="what only an accelerator shows: streams, failures, memory; see `make gpu`"))
    return top


def _gpu(gpu: argparse.ArgumentParser) -> None:
    gpu.add_argument("part", choices=("facts", "sharing", "streams", "failures", "memory"), metavar="PART")
    gpu.add_argument("--backend", default="nccl", metavar="NAME", help="for sharing: backends (default: %(default)s)")
    gpu.add_argument("--world", default="2", metavar="N", help="number of ranks (default: %(default)s)")
    gpu.add_argument("--only", default="", metavar="CASES", help="for streams: only these, by name (default: all)")
    gpu.add_argument("--out", default="", metavar="FILE", help="where the findings go; those already in it are kept")


def _explore(explore: argparse.ArgumentParser) -> None:
    explore.add_argument("--subject", default="impl,torch", metavar="NAMES", help="as for run (default: %(default)s)")
    explore.add_argument("--minutes", default="10", metavar="N", help="for all subjects (default: %(default)s)")
    explore.add_argument("--seed", default="", metavar="N", help="of the draw (default: a new one each time)")
    explore.add_argument("--jobs", default="2", metavar="N", help="programs at a time (default: %(default)s)")
    explore.add_argument("--first", action="store_true", help="end with the first failure")
    explore.add_argument("--program", default="", metavar="JSON", help="judge this program, or the one in a .json file")
    explore.add_argument("--out", default="out/explore", metavar="FOLDER", help="output folder (default: %(default)s)")


def _faults(faults: argparse.ArgumentParser) -> None:
    faults.add_argument("--subject", default="impl", metavar="NAMES", help="as for run (default: %(default)s)")
    faults.add_argument("--select", default="*", metavar="PATTERNS", help="cell ids, e.g. 'SIGKILL/*,*/shadowing/*'")
    faults.add_argument("--tenth", action="store_true", help="only a tenth of them, drawn by --seed")
    faults.add_argument(
        "--strict", action=argparse.BooleanOptionalAction, default=True,
        help="ours in its strict mode, or as it is without it (default: strict)",
    )  # fmt: skip
    faults.add_argument("--seed", default="", metavar="N", help="which tenth (default: 0)")
    faults.add_argument("--jobs", default="2", metavar="N", help="cells that compute at a time (default: %(default)s)")
    faults.add_argument("--list", action="store_true", help="only list the cells")
    faults.add_argument("--out", default="out/faults", metavar="FOLDER", help="output folder (default: %(default)s)")


def _soak(soak: argparse.ArgumentParser) -> None:
    soak.add_argument("--subject", default="impl", metavar="NAME", help="as for run (default: %(default)s)")
    soak.add_argument("--minutes", default="20", metavar="N", help="time for random programs (default: %(default)s)")
    soak.add_argument("--seed", default="", metavar="N", help="of the draw (default: a new one each time)")
    soak.add_argument("--jobs", default="2", metavar="N", help="programs at a time (default: %(default)s)")
    soak.add_argument("--iterations", default="2000", metavar="N", help="of one model (default: %(default)s)")
    soak.add_argument("--constructions", default="500", metavar="N", help="models to build (default: %(default)s)")
    soak.add_argument("--out", default="out/soak", metavar="FOLDER", help="output folder (default: %(default)s)")


def _run(run: argparse.ArgumentParser) -> None:
    run.add_argument("--subject", default="impl,torch", metavar="NAMES", help="impl, torch or package.module:attribute")
    run.add_argument("--backend", default="gloo", help="gloo, nccl or package.module:name (default: %(default)s)")
    run.add_argument("--worlds", metavar="SIZES", help="world sizes, e.g. 2,4 (default: 1 to 4 as far as possible)")
    run.add_argument("--select", default="*", metavar="PATTERNS", help="clauses, e.g. 'JOIN-*,DDP-001' (default: all)")
    run.add_argument("--check", default="*", metavar="PATTERN", help="only checks of this name")
    run.add_argument("--checks", metavar="PATH", help="a folder or file of checks instead of the suite's own")
    run.add_argument("--deviations", action="append", default=[], metavar="FILE", help="known deviations; repeatable")
    run.add_argument("--deadline", metavar="SECONDS", help="for one run of ranks, unless the check sets its own")
    run.add_argument("--tier", default="", metavar="NAME", help="quick or full (default: every case selected)")
    run.add_argument("--schedule", metavar="COUNTS", help="inputs of each rank, e.g. 0,1 (checks of schedules)")
    run.add_argument("--poison", action="store_true", help="NaN in the buffers of collectives from start to wait")
    run.add_argument(
        "--resume", nargs="?", const="required", choices=("required", "possible"), metavar="possible",
        help="continue the unfinished record in --out; 'possible': start anew, and say why, if there is none",
    )  # fmt: skip
    run.add_argument("--dry-run", action="store_true", help="only see whether all this can be had; judge nothing")
    run.add_argument("--jobs", default="1", metavar="N", help="checks at a time (default: %(default)s)")
    run.add_argument("--out", default="out/conformance", metavar="FOLDER", help="output folder (default: %(default)s)")


def _pages(commands: Any) -> None:
    page = commands.add_parser("page", help="make one page from records, of one machine or of several")
    page.add_argument("records", nargs="+", metavar="RECORD", help="a record, or a folder with conformance.jsonl")
    page.add_argument("--out", default="out/conformance", metavar="FOLDER", help="output folder (default: %(default)s)")
    compare = commands.add_parser("compare", help="what is newly broken in the second of two runs; status 1 if any")
    compare.add_argument("first", metavar="A", help="a record, or a folder with conformance.jsonl")
    compare.add_argument("second", metavar="B", help="the later one")
    compare.add_argument("--out", metavar="FOLDER", help="write compare.html and compare.md there")


def _defects(defects: argparse.ArgumentParser) -> None:
    patterns = "ids or clauses, e.g. 'ddp/*,JOIN-025' (default: all)"
    defects.add_argument("--select", default="*", metavar="PATTERNS", help=patterns)
    defects.add_argument("--jobs", default="2", metavar="N", help="defects at a time (default: %(default)s)")
    defects.add_argument("--list", action="store_true", help="only list them")
    defects.add_argument(
        "--try", dest="try_only", action="store_true", help="only plant them: does each still find its place?"
    )
    defects.add_argument("--defects", metavar="FOLDER", help="a folder of defects instead of the suite's own")
    defects.add_argument("--checks", metavar="FOLDER", help="a folder of checks instead of the suite's own")


def _protocol(protocol: argparse.ArgumentParser) -> None:
    protocol.add_argument("--minutes", default="10", metavar="N", help="at most (default: %(default)s)")
    protocol.add_argument("--jobs", default="2", metavar="N", help="processes (default: %(default)s)")
    protocol.add_argument("--subject", default="impl", metavar="NAME", help="impl or package.module:attribute")
    protocol.add_argument("--program", default="*", metavar="PATTERN", help="only programs of this name")
    protocol.add_argument("--worlds", metavar="SIZES", help="2, 3 (default: both)")
    protocol.add_argument("--inputs", metavar="COUNTS", help="inputs of each rank, e.g. 0,1: only these")
    protocol.add_argument("--defect", metavar="PATTERNS", help="plant these, such as join/*, and see what finds them")


def _power(power: argparse.ArgumentParser) -> None:
    power.add_argument("--mutants", default="200", metavar="N", help="how many to draw (default: %(default)s)")
    power.add_argument("--seed", default="", metavar="N", help="of the draw (default: one that nobody has used)")
    power.add_argument("--jobs", default="2", metavar="N", help="mutants at a time (default: %(default)s)")
    power.add_argument("--list", action="store_true", help="only print the mutants of the draw")
    power.add_argument("--unreached", action="store_true", help="only print what no case enters")
    power.add_argument("--mutant", default="", metavar="ID", help="try only this one again")
    power.add_argument("--written", default="", metavar="FILE", help="mutants of your own instead, in a file of TOML")
    power.add_argument("--cases", default="", metavar="N", help="cases that a mutant meets at most (default: all)")
    power.add_argument(
        "--explore", default="0", metavar="MINUTES", help="faults and random programs for each survivor (default: none)"
    )
    power.add_argument("--out", default="out/power", metavar="FOLDER", help="output folder (default: %(default)s)")
    power.add_argument("--history", default="", metavar="FOLDER", help="a history that gets a copy of the record")


def _hosts(hosts: argparse.ArgumentParser) -> None:
    hosts.add_argument("--hosts", default="2", metavar="N", help="how many hosts (default: %(default)s)")
    hosts.add_argument("--rate", default="1gbit", metavar="RATE", help="of each link: 200mbit (default: %(default)s)")
    hosts.add_argument("--delay", default="", metavar="TIME", help="of each link, one way: 200us")
    hosts.add_argument("--racks", default="1", metavar="N", help="switches with uplinks (default: %(default)s)")
    hosts.add_argument("--uplink", default="", metavar="RATE", help="of each rack (default: as a host's link)")
    hosts.add_argument("--ranks", default="1", metavar="N", help="ranks on each host (default: %(default)s)")
    hosts.add_argument("script", nargs=argparse.REMAINDER, metavar="-- SCRIPT …", help="as torchrun takes it")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit status."""
    given = parser().parse_args(arguments)
    return status_of("conformance", lambda: _command(given))


def _command(given: argparse.Namespace) -> int:
    """Load what the command needs, and do it."""
    match given.command:
        case "run":
            gc.disable()  # until the checks have been collected, which is no garbage: see engine.plugin
            from .commands.launched import run as command
        case "clauses":
            from .commands.clauses import clauses as command
        case "repro":
            from .commands.repro import repro as command
        case "page":
            from .commands.page import page as command
        case "compare":
            from .commands.compare import compare as command
        case "hosts":
            from .commands.hosts import hosts as command
        case "defects":
            from .commands.defects import defects as command
        case "board":
            from .commands.board import board as command
        case "protocol":
            from .commands.protocol import protocol as command
        case "explore":
            from .commands.explore import explore_command as command
        case "faults":
            from .commands.faults import faults as command
        case "soak":
            from .commands.soak import soak as command
        case "power":
            from .commands.power import power as command
        case "gpu":
            from .commands.gpu import gpu as command
        case _:
            from .commands.show import show as command
    return command(given)


if __name__ == "__main__":
    sys.exit(main())
