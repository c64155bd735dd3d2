"""The command line: ``python -m reports nightly | judge | dashboard | export | ack | simulate | power | gpu``."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .history import HistoryError, machine_name, named, opened

STATUSES = """exit status:
  0   healthy
  1   a confirmed regression or a broken clause that nobody has acknowledged
  2   could not judge: bad input, another run in progress, or a part of the night missing
  130 interrupted; what was finished is in the history"""

GPU = """exit status:
  0   everything that can be run here is proved
  1   something does not hold
  2   there is no GPU, nothing could be run, or the input is bad
  3   some part is unfinished: run the same command again to continue
  130 interrupted; run the same command again to continue"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser("python -m reports", description="Keep, judge and show nightly records.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    raw = argparse.RawDescriptionHelpFormatter
    _nightly(commands.add_parser("nightly", help="measure and judge one night", epilog=STATUSES, formatter_class=raw))
    judge = commands.add_parser("judge", help="judge a history again", epilog=STATUSES, formatter_class=raw)
    judge.add_argument("history", metavar="HISTORY")
    _pages(commands)
    ack = commands.add_parser("ack", help="acknowledge a regression or a broken clause")
    ack.add_argument("key", metavar="SERIES", help="as the verdict prints it; a clause as CLAUSE/SUBJECT/BACKEND/WORLD")
    ack.add_argument("--note", required=True, metavar="TEXT", help="what is known about it")
    ack.add_argument("--history", default="history", metavar="FOLDER", help="(default: %(default)s)")
    ack.add_argument("--machine", default="", metavar="NAME", help="if several machines have this key")
    ack.add_argument("--who", default="", metavar="NAME", help="(default: the user's name)")
    simulate = commands.add_parser("simulate", help="write a simulated year as a history, to try pages with")
    simulate.add_argument("folder", metavar="HISTORY", help="a folder that does not exist yet")
    simulate.add_argument("--nights", default=365, type=int, metavar="N", help="(default: %(default)s)")
    simulate.add_argument("--cells", default=65, type=int, metavar="N", help="three series each (default: %(default)s)")
    simulate.add_argument("--seed", default=1, type=int)
    _gpu(commands.add_parser("gpu", help="what is proved on this machine's GPUs", epilog=GPU, formatter_class=raw))
    power = commands.add_parser("power", help="judge a simulated year with known truth, and count what was found")
    power.add_argument("--series", default=1000, type=int, metavar="N", help="for each figure (default: %(default)s)")
    power.add_argument("--seed", default=1, type=int)
    power.add_argument("--out", default="", metavar="FILE", help="write the figures as JSON, too")
    return top


def _nightly(nightly: argparse.ArgumentParser) -> None:
    from .nightly.plan import CONFORMANCE, PERF

    nightly.add_argument("--history", default="history", metavar="FOLDER", help="(default: %(default)s)")
    nightly.add_argument("--out", default="out/nightly", metavar="FOLDER", help="page and logs (default: %(default)s)")
    nightly.add_argument(
        "--budget", default="30m", metavar="TIME",
        help="about how long to measure, repetitions included: 90s, 30m, 1.5h; half as much again where earlier code "
        "has to be measured, too; judging the clauses comes on top (default: %(default)s)",
    )  # fmt: skip
    nightly.add_argument(
        "--clauses-within", default="1h", metavar="TIME",
        help="stop judging the clauses after this time; the night is then incomplete (default: %(default)s)",
    )  # fmt: skip
    nightly.add_argument(
        "--subject", default="impl,torch", metavar="NAMES", help="who is judged (default: %(default)s)"
    )
    nightly.add_argument(
        "--world", default=2, type=int, metavar="N", help="ranks to measure with (default: %(default)s)"
    )
    nightly.add_argument("--machine", default="", metavar="NAME", help="(default: from its processor and GPUs)")
    nightly.add_argument(
        "--conformance", default=CONFORMANCE, metavar="COMMAND", help="'' for none (default: %(default)s)"
    )
    nightly.add_argument("--perf", default=PERF, metavar="COMMAND", help="'' for none (default: %(default)s)")


def _gpu(gpu: argparse.ArgumentParser) -> None:
    gpu.add_argument("--minutes", default=25.0, type=float, metavar="N", help="for all parts (default: %(default)g)")
    gpu.add_argument("--out", default="out/gpu", metavar="FOLDER", help="output folder (default: %(default)s)")
    gpu.add_argument("--only", default="", metavar="PARTS", help="only these parts, separated by commas (default: all)")
    gpu.add_argument("--rehearse", action="store_true", help="every command on the CPU with Gloo: proves nothing")
    gpu.add_argument("--select", default="*", metavar="PATTERNS", help="in a rehearsal: the clauses to run")
    gpu.add_argument("--list", action="store_true", help="only print the parts and their commands, as JSON lines")


def _pages(commands: Any) -> None:
    from .exports import FORMS, VIEWS

    page = commands.add_parser("dashboard", help="build the page of a history")
    page.add_argument("history", metavar="HISTORY")
    page.add_argument("--out", default="out/dashboard", metavar="FOLDER", help="(default: %(default)s)")
    page.add_argument(
        "--raw", default="copy", choices=("copy", "link"),
        help="copy the records to the page, or link to the history in its place (default: %(default)s)",
    )  # fmt: skip
    export = commands.add_parser("export", help="write one view of a history for another tool")
    export.add_argument("history", metavar="HISTORY")
    export.add_argument("form", choices=FORMS, metavar="FORM", help=" | ".join(FORMS))
    export.add_argument(
        "--view", default="series", choices=tuple(VIEWS), metavar="VIEW",
        help=f"for csv and json: {' | '.join(VIEWS)} (default: %(default)s)",
    )  # fmt: skip
    export.add_argument("--machine", default="", metavar="NAME", help="only this one's (default: all; otava: just one)")
    export.add_argument("--out", default="", metavar="FILE", help="(default: standard output)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit status."""
    given = parser().parse_args(arguments)
    try:
        match given.command:
            case "nightly":
                return _run_nightly(given)
            case "judge":
                return _judge(_existing(given.history))
            case "dashboard":
                return _dashboard(given)
            case "export":
                return _export(given)
            case "ack":
                return _ack(given)
            case "gpu":
                return _run_gpu(given)
            case "simulate":
                return _simulate(given)
            case _:
                from .simulate.power import power

                _above_zero("series", given.series)
                _not_negative("seed", given.seed)
                out = Path(given.out) if given.out else None
                if out is not None and opened(out.parent) and out.is_dir():
                    raise HistoryError(f"{out} is a folder; name a file with --out")
                return power(given.series, given.seed, out)
    except HistoryError as error:
        print(f"reports: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("reports: interrupted", file=sys.stderr)
        return 130
    except Exception:  # 1, which Python would end with, is a verdict
        traceback.print_exc()
        print("reports: the command itself failed, which says nothing of what it was asked", file=sys.stderr)
        return 2


def _run_nightly(given: argparse.Namespace) -> int:
    from .nightly.plan import Asked, checked, ensure_subjects, seconds
    from .nightly.run import nightly
    from .records.identity import machine

    name = given.machine or os.environ.get("JOINERY_MACHINE", "") or machine_name(machine())
    conformance, perf = checked(given.conformance, "conformance"), checked(given.perf, "performance")
    if not conformance and not perf:
        raise HistoryError("there is nothing to do: both --conformance and --perf are empty")
    _above_zero("world", given.world)
    budget_s, clauses_s, out = seconds(given.budget), seconds(given.clauses_within), Path(given.out)
    name = named(name)
    _ensure_outside(out, Path(given.history))
    ensure_subjects(given.subject, [conformance, perf])
    history = opened(Path(given.history))
    return nightly(
        Asked(
            history, opened(out), name, budget_s, clauses_s, given.subject, given.world, conformance, perf
        )
    )  # fmt: skip


def _run_gpu(given: argparse.Namespace) -> int:
    from .accelerator.run import Asked, gpu

    if not 0 < given.minutes < float("inf"):
        raise HistoryError(f"{given.minutes:g} minutes are no time; give for example --minutes 25")
    if given.select != "*" and not given.rehearse:
        raise HistoryError("--select shortens a rehearsal; what is proved is proved of all clauses")
    only = tuple(part.strip() for part in given.only.split(",") if part.strip())
    if given.list:
        from .accelerator.listed import print_all

        return print_all(only)
    return gpu(Asked(Path(given.out), given.minutes, given.rehearse, only, given.select))


def _above_zero(name: str, number: int) -> None:
    if number < 1:
        raise HistoryError(f"{name} {number} is not a whole number above 0; give for example --{name} 2")


def _not_negative(name: str, number: int) -> None:
    if number < 0:
        raise HistoryError(f"{name} {number} is below 0; give for example --{name} 7")


def _existing(folder: str) -> Path:
    if not Path(folder).is_dir():
        raise HistoryError(f"there is no history at {folder}: name the folder that `nightly` was given")
    return Path(folder)


def _ensure_outside(out: Path, history: Path) -> None:
    if out.resolve().is_relative_to(history.resolve()):
        raise HistoryError(f"{out} lies in the history, whose folders are machines and nights; choose another --out")


def _judge(history: Path) -> int:
    from .judging import judge
    from .nightly.verdict import explained, summary

    judged = judge(history)
    for machine in judged.machines:
        print(summary(judged, machine))
        print(explained(judged, machine))
    if not judged.machines:
        print(f"reports: {history} holds no night that can be read", file=sys.stderr)
    return judged.health.exit_status


def _dashboard(given: argparse.Namespace) -> int:
    from .dashboard import build
    from .judging import judge

    history, out = _existing(given.history), Path(given.out)
    _ensure_outside(out, history)
    print(build(judge(history), history, opened(out), raw=given.raw))
    return 0


def _export(given: argparse.Namespace) -> int:
    from .exports import export, machine_of
    from .judging import judge

    judged = judge(_existing(given.history))
    if not judged.machines and given.view != "left-out":
        raise HistoryError(
            f"{given.history} holds no night that can be read; `export {given.history} csv --view left-out` says why"
        )
    if given.machine:
        judged = machine_of(judged, given.machine)
    text = export(judged, given.form, view=given.view)
    if not given.out:
        sys.stdout.write(text)
        return 0
    try:
        Path(given.out).write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise HistoryError(f"cannot write {given.out}: {error.strerror or error}; choose another --out") from error
    return 0


def _ack(given: argparse.Namespace) -> int:
    from .judging import judge
    from .states import acknowledge

    history = _existing(given.history)
    place = acknowledge(judge(history), history, given.key, given.note, machine=given.machine, who=given.who)
    print(f"noted in {place}; it counts from the next page or run on")
    return 0


def _simulate(given: argparse.Namespace) -> int:
    from .simulate.history import write_history

    _above_zero("nights", given.nights)
    _above_zero("cells", given.cells)
    _not_negative("seed", given.seed)
    folder = Path(given.folder)
    if folder.exists():
        raise HistoryError(f"{folder} exists already: a simulated year is not mixed with anything; name a new folder")
    for one in write_history(folder, nights=given.nights, cells=given.cells, seed=given.seed):
        print(f"cell{one.cell:03}: from night {one.night} on {one.what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
