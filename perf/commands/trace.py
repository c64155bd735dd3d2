"""``python -m perf trace``: traces one iteration of a few variants on every rank, for Perfetto and as a chart."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.bad_input import BadInput
from conformance.engine import request as ask
from conformance.ranks import ForkServerFailed, NotRunnable, RunFailed
from conformance.ranks.agent_group import AgentLost
from reports.records import RecordFile

from ..charts import draw_timeline
from ..charts.reporting import report
from ..measure import records, void
from ..measure.clusters import Clusters
from ..measure.reading import asked_for
from ..measure.rows import OK
from ..measure.trace import Iteration, as_trace, iterations_of, overlap, traced, typical
from ..plan.axes import checked, known_trouble, nearest
from ..plan.backends import place_of
from ..plan.cells import Cell, Group
from ..plan.planning import plan
from ..plan.sweep import Sweep

FAILED, MOST = 1, 4
_LIMIT_S, _SILENCE_S = 300.0, 30.0
_LIMIT_AT_THE_END_S = 60.0  # of a sweep, which may have a budget
_ORDER = ("none", "sequential", "interleaved")  # the hooks whose difference a timeline shows best


class Untraced(Exception):
    """The ranks did not come back with a trace that may be shown; the text says why."""


def trace(given: Namespace) -> int:
    """Trace what was asked for; 0, or 1 if it came to nothing."""
    out = ask.writable(Path(given.out))
    cells, specs = asked(given)
    command = [sys.executable, "-m", "perf", *sys.argv[1:]]
    header = records.header({"traced": [cell.series for cell in cells]}, [], command)
    try:
        whole = made(cells, specs, header)
    except Untraced as reason:
        print(f"perf: no trace: {reason}")
        return FAILED
    finish(whole, out, out / "charts")
    return 0


def at_the_end(record: RecordFile, out: Path) -> None:
    """Trace what says most in a record that has just been written."""
    cells, specs = telling(record.rows, record.header)
    if not cells:
        print("no chart timeline: the record has no sound step on several ranks")
        return
    try:
        finish(made(cells, specs, record.header, _LIMIT_AT_THE_END_S), out, out / "charts")
    except Untraced as reason:
        print(f"no chart timeline: {reason}")


def finish(whole: dict[str, Any], out: Path, charts: Path) -> None:
    """Write the trace and its chart, and say where they are."""
    path = out / "timeline.trace.json"
    path.write_text(json.dumps(whole), encoding="utf-8")
    for iteration in iterations_of(whole):
        shares = ", ".join("none" if share != share else f"{100 * share:.0f} %" for share in overlap(iteration))
        print(f"overlap of {iteration.cell.variant}, by rank: {shares}")
    print(f"trace: {os.path.relpath(path)} (opens in ui.perfetto.dev)")
    report([draw_timeline(whole, charts)])


def made(
    cells: Sequence[Cell], specs: Mapping[str, str], header: dict[str, Any], limit_s: float = _LIMIT_S
) -> dict[str, Any]:
    """Trace these cells, which are of one world and backend, on fresh ranks."""
    return as_trace(_traced(cells, dict(specs), limit_s), header)


def _traced(cells: Sequence[Cell], specs: dict[str, str], limit_s: float) -> list[Iteration]:
    group = Group(cells[0].shared, tuple(cells))
    hosts = {group.network: group.world} if group.network else {}
    subject = next(iter(specs.values()), "torch")
    with Clusters(hosts=hosts) as clusters:
        try:
            run = clusters.of(group).run(
                traced, (cells, specs), world=group.world, subject=subject, deadline_s=limit_s, stall_s=_SILENCE_S
            )
            found = run.values()
        except (NotRunnable, ForkServerFailed, RunFailed, AgentLost) as error:
            raise Untraced(str(error).split("\n")[0]) from error
    for cell in cells:
        why = void.by_result(max(rank[cell.series].gap for rank in found), "the worst parameter", 0, 0)
        if why:
            raise Untraced(f"{cell.series} is void: {why}")
    return [typical(cell, [rank[cell.series] for rank in found]) for cell in cells]


# -- which cells


def telling(rows: Sequence[Mapping[str, Any]], header: Mapping[str, Any]) -> tuple[list[Cell], dict[str, str]]:
    """The cells of a record whose timelines tell most, of one group: the overlap hooks if it has them."""
    specs = dict(header.get("asked", {}).get("subjects", {}))
    sound = [
        Cell(**row["axes"])
        for row in rows
        if row["status"] == OK and row["unit"] == "step" and row["axes"]["copy"] == 1 and row["subject"] != "none"
        and not known_trouble(row["axes"]) and row["axes"]["world"] > 1 and row["axes"]["skew"] != "straggler"
    ]  # fmt: skip
    groups: dict[str, list[Cell]] = {}
    for cell in sound:
        groups.setdefault(cell.shared, []).append(cell)
    best = max(groups.values(), key=lambda cells: len({cell.hook for cell in cells}), default=[])
    several = len({cell.hook for cell in best}) > 1
    wanted = [cell for cell in best if cell.zero == "on" and cell.hook in _ORDER] if several else best
    capped = max((cell.cap_mib for cell in wanted), default=0.0)
    chosen = [cell for cell in wanted if cell.cap_mib == capped and not cell.shard_buckets] or wanted
    if several:  # the hooks of one subject tell more than two subjects with one hook
        chosen = [cell for cell in chosen if cell.subject == chosen[0].subject]
        chosen.sort(key=lambda cell: _ORDER.index(cell.hook))
    return chosen[:MOST], {name: spec for name, spec in specs.items() if name in {cell.subject for cell in chosen}}


def asked(given: Namespace) -> tuple[list[Cell], dict[str, str]]:
    """The cells of a command, and where their subjects are."""
    if given.only and not given.record:
        raise BadInput("--only names series of a record: give the RECORD, too")
    chosen = [name for name, usual in given.usual.items() if getattr(given, name) != usual]
    if given.record and chosen:
        raise BadInput(f"--{chosen[0]} beside a RECORD, whose own cells are traced: give --only SERIES, or no RECORD")
    return _recorded(given) if given.record else _optioned(given)


def _recorded(given: Namespace) -> tuple[list[Cell], dict[str, str]]:
    record = asked_for(given.record)
    if given.only:
        return _named(record, given.only)
    cells, specs = telling(record.rows, record.header)
    if not cells:
        raise BadInput(f"{given.record} has no sound step on several ranks to trace; name a --workload instead")
    return cells, specs


def _named(record: RecordFile, names: Sequence[str]) -> tuple[list[Cell], dict[str, str]]:
    """The cells of these series, which have to be of one group."""
    sound = {row["series"]: Cell(**row["axes"]) for row in record.rows if row["status"] == OK and row["unit"] == "step"}
    for name in names:
        if name not in sound:
            raise BadInput(f"{record.path.name} has no sound step of the series {name!r}; {nearest(name, sound)}")
    cells = [sound[name] for name in names]
    if len(cells) > MOST or len({cell.shared for cell in cells}) > 1:
        raise BadInput(f"a timeline shows up to {MOST} series of one group; give as many --only of one group")
    return cells, dict(record.header.get("asked", {}).get("subjects", {}))


def _optioned(given: Namespace) -> tuple[list[Cell], dict[str, str]]:
    """The cells of the command line: every hook for every subject."""
    world = ask.number(given.world, "WORLD")
    place = place_of(given.backend, world)
    specs = {name: spec for name, (spec, _) in ask.subjects(given.subject).items()}
    axes = {"workload": given.workload, "optimizer": given.optimizer, "cap_mib": _number(given.cap)}
    hooks = tuple(checked("hook", hook, "--hook") for hook in given.hook.split(","))
    values = {name: (checked(name, value, f"--{name.removesuffix('_mib')}"),) for name, value in axes.items()}
    zero = ("on",) if any(hook not in ("none", "local") for hook in hooks) else (checked("zero", given.zero, "--zero"),)
    wanted = Sweep("trace", "trace", ({**values, "hook": hooks, "zero": zero},), 1, 2, 2)
    planned = plan(wanted, list(specs), world, place)
    cells = [cell for group in planned.groups for cell in group if cell.copy == 1 and not known_trouble(cell.axes())]
    if not cells:
        raise BadInput("torch's interleaved hook hangs on Gloo and is not traced; choose another --hook or --subject")
    return cells[:MOST], specs


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"--cap {text!r} is no number of MiB") from None
