"""``python -m perf run``: plans a sweep, measures it group by group, records, and prints the main table."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from conformance.bad_input import BadInput
from conformance.ending import terminated_like_interrupted
from conformance.engine import request as ask
from conformance.hosts import Network, unavailable
from conformance.ranks.launched import led, serve
from reports.records import RecordError, read
from reports.records.writer import PART

from ..analyse import bench, derived, noise
from ..analyse.table import in_order, main_table, wide_console
from ..measure import extras as beside
from ..measure import launched, records, reliance, surroundings, traffic, void
from ..measure.budget import Budget, duration
from ..measure.clusters import Clusters
from ..measure.progress import Watch, spoken
from ..measure.rows import FAILED, HUNG, NOT_RUN, OK, VOID, Row, blank
from ..measure.runner import BUDGET_GONE, Runner
from ..plan import sweep
from ..plan.axes import known_trouble
from ..plan.backends import place_of, place_of_job
from ..plan.only import narrowed
from ..plan.planning import LEAST_ROUNDS, MOST_ROUNDS, Plan, estimate, plan, seconds
from ..wording import counted
from .chart import closing
from .reported import reported

if TYPE_CHECKING:
    from ..measure.on_ranks import Order
    from ..plan.cells import Group

GOOD, BAD_CELL, INTERNAL, INTERRUPTED = 0, 1, 3, 130
_USUAL_NET = "1gbit"
CLOSING_S = 25.0  # of a budget, for charts and a timeline


@dataclass(frozen=True)
class Asked:
    """What a run is about, checked."""

    planned: Plan
    specs: dict[str, str]  # by the subject's own name
    versions: dict[str, str]
    world: int
    backend: str
    budget_s: float | None
    out: Path
    launched: bool
    judged: str  # what the subjects' guarantees are known from: empty, a record of the suite, or "no"


def run(given: Namespace) -> int:
    """Measure, or say what would be measured; returns the exit status."""
    here = launched.spot(os.environ)
    asked = _asked(given, here)
    if given.dry_run:
        if here is None or here.rank == 0:
            _show_plan(asked)
        return GOOD
    if here is None:
        with Clusters(hosts=asked.planned.hosts) as clusters:
            return _measure(asked, Runner(clusters), given)
    if here.rank:
        return GOOD if serve(here.place, "perf") else INTERNAL
    with led(here.place) as agent_group, Clusters(agent_group) as clusters:
        status = _measure(asked, Runner(clusters), given)
        if agent_group.lost:
            print(f"perf: {agent_group.lost}", file=sys.stderr)
            return INTERNAL
        return status


def _asked(given: Namespace, here: launched.Spot | None) -> Asked:
    """Everything that was asked for, looked at before anything starts; the same on all ranks of a job."""
    wanted = sweep.load(given.sweep)
    budget_s = duration(given.budget) if given.budget else None
    if budget_s is not None and given.charts:
        budget_s = max(budget_s / 2, budget_s - CLOSING_S)
    if budget_s is not None and not given.only:
        budget_s = max(budget_s / 2, budget_s - sum(beside.ABOUT_S.get(each, 0.0) for each in wanted.beside))
    if budget_s is not None and not given.judged:
        budget_s = max(budget_s / 2, budget_s - reliance.ABOUT_S)
    wanted, world = _over_hosts(given, wanted, here)
    if here is not None and world != here.world:
        raise BadInput(f"WORLD={world}, but the launcher has started {here.world} ranks; leave WORLD out")
    place = place_of(given.backend, world) if here is None else place_of_job(given.backend, here.local_world)
    subjects = ask.subjects(given.subject)
    planned = plan(wanted, list(subjects), world, place, exactly=here is not None)
    if given.only:
        planned = replace(narrowed(planned, given.only), sweep=replace(wanted, beside=(), prints=""))
    specs = {name: spec for name, (spec, _) in subjects.items()}
    versions = {name: subject.version for name, (_, subject) in subjects.items()}
    out = Path(given.out)
    return Asked(planned, specs, versions, world, given.backend, budget_s, out, here is not None, given.judged)


def _over_hosts(given: Namespace, wanted: sweep.Sweep, here: launched.Spot | None) -> tuple[sweep.Sweep, int]:
    """The sweep, on hosts if that is asked for, and the most ranks."""
    if not given.hosts:
        if given.net or given.delay:
            raise BadInput("NET and DELAY are the network between hosts: say how many by HOSTS, or --hosts")
        return wanted, ask.number(given.world or str(here.world if here else 2), "WORLD")
    if here is not None:
        raise BadInput("this process was started by a launcher, and hosts start one of their own: use one of the two")
    if given.world:
        raise BadInput("HOSTS already says how many ranks there are, one on each host: leave WORLD out")
    if given.backend not in ("auto", "gloo"):
        raise BadInput(f"hosts of one machine have the CPU and Gloo: leave the backend {given.backend!r} out")
    why = unavailable()
    if why:
        raise BadInput(f"not run: no hosts here: {why}")
    hosts = ask.number(given.hosts, "HOSTS")
    text = " ".join(f"{given.net or _USUAL_NET} {given.delay}".lower().split())
    Network.of(hosts, text)
    return wanted.over(text), hosts


def _again(asked: Asked, given: Namespace) -> list[str]:
    """The command that measures one series of this run again; "{series}" stands for its name."""
    words = ["python", "-m", "perf", "run", "--sweep", given.sweep]
    options = {"--hosts": given.hosts, "--net": given.net, "--delay": given.delay}
    words += [word for option, value in options.items() if value for word in (option, value)]
    words += [] if given.hosts else ["--world", str(asked.world)]
    return [*words, "--subject", ",".join(asked.specs.values()), "--backend", asked.backend, "--only", "{series}"]


def _show_plan(asked: Asked) -> None:
    planned, cores = asked.planned, surroundings.cores()
    console = Console(highlight=False, soft_wrap=True)
    for group in planned.groups:
        console.print(f"{group.name}   about {spoken(seconds(group, planned.sweep, cores))}", markup=False)
        for cell in group:
            trouble = known_trouble(cell.axes())
            console.print(f"  {cell.variant}" + (f"   (known: {trouble})" if trouble else ""), markup=False)
    for reason, count in planned.left_out.items():
        console.print(f"left out: {count} × {reason}", markup=False)
    whole = f"{counted(planned.cells, 'cell')} in {counted(len(planned.groups), 'group')}"
    whole += f", about {spoken(estimate(planned, cores))}"
    least = spoken(estimate(planned, cores, LEAST_ROUNDS))
    console.print(f"{whole} for {counted(planned.sweep.rounds, 'round')} on a quiet machine; {least} at the fewest")


def _measure(asked: Asked, runner: Runner, given: Namespace) -> int:
    stderr = Console(stderr=True, highlight=False, soft_wrap=True)
    judged = _judged_before(asked)
    ask.writable(asked.out)
    said = surroundings.complaints(asked.planned)
    for sentence in said:
        stderr.print(f"perf: {sentence}", markup=False)
    if judged is None:
        with terminated_like_interrupted():
            judged = _judged_now(asked, stderr)
    about = records.question(asked.planned, asked.specs, asked.versions, asked.world, asked.backend)
    command = [sys.executable, "-m", "perf", *sys.argv[1:]]
    first = {**records.header(about, said, command), "again": _again(asked, given)}
    record = records.begin(asked.out, first, asked.planned, given.fresh)
    for trouble in record.troubles:
        stderr.print(f"perf: passed over: {trouble}", markup=False)
    if record.taken:
        stderr.print(f"perf: took over {len(record.taken)} finished cells from an earlier run that did not end")
    path = record.writer.path
    try:
        with terminated_like_interrupted(), record.writer:
            rows = [*record.taken, *_groups(asked, judged, runner, record)]
            noted = {"beside": _beside(asked, stderr), "judged": judged.footer(asked.planned.all_cells())}
            noted |= {"networks": networks} if (networks := runner.measured_links()) else {}
            record.writer.close({"exit_status": _status(rows), **noted})
    except KeyboardInterrupt:
        stderr.print(f"perf: interrupted; what was finished is in {path}, and the same command goes on from there")
        return INTERRUPTED
    except OSError as error:
        kept = path if path.exists() else path.with_name(path.name + PART)
        stderr.print(f"perf: cannot write on: {error}; the finished cells are kept in {kept}", markup=False)
        return INTERNAL
    asked_for = [cell.series for cell in asked.planned.all_cells()]
    status = _conclude(record.writer.path, in_order(rows, asked_for))
    if asked.planned.sweep.prints and status != INTERNAL:
        reported(asked.planned.sweep.prints, record.writer.path)
    if given.charts and status != INTERNAL:
        return max(status, closing(record.writer.path, traced=_alone(asked)))
    return status


def _judged_before(asked: Asked) -> reliance.Judged | None:
    """What a record says of the guarantees that the cells rely on; None if that has to be found out."""
    if asked.judged == reliance.NO:
        return reliance.Judged()
    if not asked.judged:
        return None
    backends = dict.fromkeys(group.backend for group in asked.planned.groups)
    return reliance.judged_before(Path(asked.judged), *backends, cells=asked.planned.all_cells())


def _judged_now(asked: Asked, stderr: Console) -> reliance.Judged:
    clauses = reliance.relied_on_by(asked.planned.all_cells())
    stderr.print(f"perf: first the suite judges the {counted(len(clauses), 'clause')} that these cells rely on")
    return reliance.judged_now(asked.planned.all_cells(), asked.specs)


def _alone(asked: Asked) -> bool:
    """Whether the ranks are this machine's own, without a launcher or a network."""
    return not asked.launched and not asked.planned.hosts


def _beside(asked: Asked, stderr: Console) -> beside.Samples:
    """What the sweep asks for besides its cells, where these ranks are the machine's own."""
    wanted = asked.planned.sweep.beside
    left_s = None if asked.budget_s is None else sum(beside.ABOUT_S.get(each, 0.0) for each in wanted)
    if not wanted or not _alone(asked):
        return {}
    stderr.print(f"perf: beside the cells: {', '.join(wanted)}", markup=False)
    try:
        return beside.measured(wanted, asked.world, left_s)
    except Exception as error:  # the cells are measured, and their record must be closed
        stderr.print(f"perf: not measured beside the cells: {error}", markup=False)
        return {}


def _groups(asked: Asked, judged: reliance.Judged, runner: Runner, record: records.Record) -> Iterator[Row]:
    """Measure group after group; every row is written before it is handed on."""
    from ..measure.on_ranks import Order

    wanted, cores = asked.planned.sweep, surroundings.cores()
    missing = [(group, group.only({cell.series for cell in group} - record.finished)) for group in asked.planned.groups]
    todo = [rest for _, rest in missing if rest.cells]
    budget = Budget(asked.budget_s, wanted, cores)
    watch = Watch(sys.stderr, [seconds(group, wanted, cores) for group in todo], asked.budget_s)
    try:
        for number, group in enumerate(todo):
            watch.group(group)
            block = wanted.block_of(group.cells[0].workload)
            order = Order(group, asked.specs, wanted.rounds, LEAST_ROUNDS, None, block, wanted.epoch)
            for row in _rows(order, todo[number + 1 :], judged, runner, budget, "traffic" in wanted.beside):
                record.writer.write(row)
                watch.row(row)
                yield row
            watch.done()
    finally:
        watch.end()


def _rows(
    order: Order, later: Sequence[Group], judged: reliance.Judged, runner: Runner, budget: Budget, count_traffic: bool
) -> Iterator[Row]:
    """The rows of one group: what went wrong at once, the others together, with their noise."""
    group = order.group
    against = {cell.series: why for cell in group if (why := judged.against(cell))}
    yield from (blank(cell, group, VOID, against[cell.series]) for cell in group if cell.series in against)
    group = group.only({cell.series for cell in group} - against.keys())
    if not group.cells:
        return
    order = replace(order, group=group)
    if budget.gone():
        yield from (blank(cell, group, NOT_RUN, BUDGET_GONE) for cell in group)
        return
    links = runner.links(order)
    if links.trouble:
        yield from (blank(cell, group, NOT_RUN if links.missing else VOID, links.trouble) for cell in group)
        return
    share = budget.share([group, *later])  # of what is left behind the measuring of links, which takes its time
    if share is not None:
        order = replace(order, rounds=MOST_ROUNDS, seconds=share)
    sound: list[Row] = []
    for row in runner.measure(order, lambda: budget.limit(group)):
        if row["status"] == OK:
            sound.append({**row, "derived": {**row["derived"], **links.figures()}})
        else:
            yield row
    if count_traffic:
        sound = traffic.noted(sound, runner.traffic(order, traffic.countable(sound)))
    yield from derived.noted(noise.noted(sound))


def _status(rows: list[Row]) -> int:
    """1 if a cell is wrong, or fails in a way that nobody expects; or if nothing could be measured at all."""
    broken = [row for row in rows if row["status"] in (FAILED, HUNG) and not known_trouble(row["axes"])]
    wrong = [row for row in rows if row["status"] == VOID and not known_trouble(row["axes"])]
    return BAD_CELL if broken or wrong or not any(row["status"] == OK for row in rows) else GOOD


def _conclude(path: Path, rows: list[Row]) -> int:
    """Table, paths and what is wrong, on standard output; returns the exit status."""
    console = wide_console()
    console.print(main_table(rows))
    console.print()
    try:
        record = read(path)
    except RecordError as error:
        console.print(f"perf: the record cannot be read back: {error}", markup=False, soft_wrap=True)
        return INTERNAL
    written = [path, bench.beside(path) if any(row["status"] == OK for row in rows) else None]
    for file in written:
        if file is not None:
            console.print(f"written: {os.path.relpath(file)}", markup=False, soft_wrap=True)
    for sentence in void.sentences(record.rows):
        console.print(sentence, markup=False, soft_wrap=True)
    if rows and all((row["status"], row["reason"]) == (NOT_RUN, BUDGET_GONE) for row in rows):
        console.print(f"nothing measured: {BUDGET_GONE} before the first cell; give a longer --budget, or none")
    return _status(rows)
