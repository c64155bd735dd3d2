"""The lines of the table: what was promised, and from which cells each figure of it comes.

Every ratio is ours over theirs. Added times are those of the same iterations with and without a thing, in one group.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from ...measure.extras import STARTS
from ...measure.rows import Row
from .. import derived
from ..intervals import Interval
from ..ratio import by_round, median_ns
from . import figures
from .evidence import Cells, Evidence, Missing, Part, lasted_s
from .verdicts import Target

Found = tuple[Interval, str, float | None]
Parts = Callable[[Evidence], Iterator[Part]]


@dataclass(frozen=True)
class Line:
    """One promise; its parts are the figures that all must keep it."""

    what: str
    target: str
    parts: Parts


def _views(cells: str, view: bool) -> str:
    return f"{cells}, {'views' if view else 'copies'}"


# -- a step of DDP


def _tiny(evidence: Evidence) -> Iterator[Part]:
    cells = evidence.cells(workload="tiny", world=2)
    for view in (False, True):
        yield evidence.part(_views("default", view), Target(0.90), partial(_step, cells, view, "default"))
        yield evidence.part(_views("best", view), Target(1.00), partial(_step, cells, view, "best"))


def _models(evidence: Evidence) -> Iterator[Part]:
    for workload in ("mlp", "convnet", "transformer"):
        cells = evidence.cells(workload=workload, world=2)
        for view in (False, True):
            yield evidence.part(_views(workload, view), Target(1.00), partial(_step, cells, view, "best"))


def _step(cells: Cells, view: bool, settings: str) -> Found:
    """Our step against theirs with the same views by default, or against the faster of theirs at its best settings."""
    if settings == "best":
        best = figures.least(cells.sound(subject=cells.theirs, settings="best", hook="none", strategy="plain"))
        other = {"subject": cells.theirs, "bucket_view": best["axes"]["bucket_view"], "settings": "best"}
    else:
        other = {"subject": cells.theirs, "bucket_view": view}
    (mine, theirs), noise = cells.together({"subject": cells.ours, "bucket_view": view}, other)
    with_views = " with views" if theirs["axes"]["bucket_view"] else ""
    return figures.ratio(mine, theirs), f"{_ms(median_ns(theirs))}{with_views}", noise


def _host(evidence: Evidence) -> Iterator[Part]:
    cells = evidence.cells(workload="tiny", world=2)
    for view in (False, True):
        yield evidence.part(_views("tiny", view), Target(3.0, unit="µs"), partial(_host_us, cells, view))


def _host_us(cells: Cells, view: bool) -> Found:
    both = ({"subject": name, "bucket_view": view} for name in (cells.ours, cells.theirs))
    (mine, theirs, bare), _ = cells.together(*both, {"subject": "none", "hook": "local"})
    count = float(mine["derived"]["parameters"])
    floor = figures.phase_of(bare, "backward_cpu")
    found, other = (
        figures.difference(figures.phase_of(row, "backward_cpu"), floor, 1e3 * count) for row in (mine, theirs)
    )
    return found, f"{other.point:.2f} µs", None


# -- Join


def _join(evidence: Evidence) -> Iterator[Part]:
    for world in (2, 3, 4):
        for workload, has in (("light", "without"), ("normed", "with")):
            cells = evidence.cells(workload=workload, world=world)
            name, target = f"world {world}, {has} BatchNorm", Target(0.60 if world == 2 else 0.90)
            yield evidence.part(name, target, partial(_added, cells, "join"))


def _throwing(evidence: Evidence) -> Iterator[Part]:
    for workload, has in (("light", "without"), ("normed", "with")):
        cells = evidence.cells(workload=workload, world=2)
        yield evidence.part(f"{has} BatchNorm", Target(0.60), partial(_added, cells, "throwing"))


def _added(cells: Cells, strategy: str) -> Found:
    (mine, plain, theirs, their_plain), noise = cells.together(
        {"subject": cells.ours, "strategy": strategy}, {"subject": cells.ours},
        {"subject": cells.theirs, "strategy": strategy}, {"subject": cells.theirs},
    )  # fmt: skip
    ours, other = figures.added(mine, plain), figures.added(theirs, their_plain)
    beside = f"{_ms(statistics.median(other.values()))}, ours {_ms(statistics.median(ours.values()))}"
    return figures.ratio_of_added(ours, other), beside, noise


def _after(evidence: Evidence) -> Iterator[Part]:
    for workload, has in (("light", "without"), ("normed", "with")):
        cells = evidence.cells(workload=workload, world=2)
        yield evidence.part(f"time, {has} BatchNorm", Target(1.00, within=0.05), partial(_after_time, cells))
        yield evidence.part(f"collectives, {has} BatchNorm", Target(1.00, within=0.0), partial(_after_count, cells))


def _after_time(cells: Cells) -> Found:
    (after, before, theirs, their_before), noise = cells.together(*_around(cells))
    return figures.ratio(after, before), f"{figures.ratio(theirs, their_before).point:.2f}", noise


def _after_count(cells: Cells) -> Found:
    rows, _ = cells.together(*_around(cells))
    after, before, theirs, their_before = (_counted(row, "collectives") for row in rows)
    return figures.exact(after / before), f"{theirs:g} instead of {their_before:g}, ours {after:g} and {before:g}", None


def _around(cells: Cells) -> Iterator[dict[str, str]]:
    for subject in (cells.ours, cells.theirs):
        yield {"subject": subject, "strategy": "after_join"}
        yield {"subject": subject}


def _shadow(evidence: Evidence) -> Iterator[Part]:
    for workload, has in (("light", "without"), ("normed", "with")):
        for fraction in (1.0, 0.5):
            cells = evidence.cells(workload=workload, world=2, unit="epoch", skew="halves", skew_fraction=fraction)
            counts = "0 and 100" if fraction == 1 else "50 and 100"
            if fraction == 1:
                yield evidence.part(f"CPU per shadowed iteration, {has} BatchNorm", Target(1.00), partial(_cpu, cells))
            yield evidence.part(f"whole run of {counts}, {has} BatchNorm", Target(1.00), partial(_run, cells))


def _cpu(cells: Cells) -> Found:
    """Rank 0 trains nothing and shadows all that the other trains."""
    (mine, theirs), noise = _joined(cells)
    shadowed = max(theirs["derived"]["iterations"])
    first, second = (figures.of_rank(row, "cpu_ns", 0) for row in (mine, theirs))
    return figures.quotient(first, second), f"{statistics.median(second.values()) / shadowed / 1e3:.0f} µs", noise


def _run(cells: Cells) -> Found:
    (mine, theirs), noise = _joined(cells)
    if max(mine["derived"]["iterations"]) < 100:
        raise Missing("the runs are shorter than 100 iterations")
    return figures.ratio(mine, theirs), _ms(median_ns(theirs)), noise


def _joined(cells: Cells) -> tuple[list[Row], float | None]:
    return cells.together(*({"subject": name, "strategy": "join"} for name in (cells.ours, cells.theirs)))


# -- ZeRO and the overlapped step


def _zero(evidence: Evidence) -> Iterator[Part]:
    for world, limit in ((2, 0.20), (4, 0.05)):
        cells = evidence.cells(workload="tiny", world=world, optimizer="adam")
        yield evidence.part(f"world {world}", Target(limit), partial(_zero_step, cells, "on"))
        yield evidence.part(f"world {world}, against views", Target(0.95), partial(_zero_step, cells, "views"))


def _zero_step(cells: Cells, theirs: str) -> Found:
    (mine, other), noise = cells.together({"subject": cells.ours, "zero": "on"},
                                          {"subject": cells.theirs, "zero": theirs})  # fmt: skip
    beside = statistics.median(figures.phase_of(other, "step_wall").values())
    return figures.phase_ratio(mine, other, "step"), _ms(beside), noise


_HOOKS = {"sequential": "reduce_scatter", "interleaved": "reduce_scatter_interleaved"}


def _bytes(evidence: Evidence) -> Iterator[Part]:
    cells = evidence.cells(workload="transformer", world=2, optimizer="adam")
    for hook, scatter in _HOOKS.items():
        target = Target(1.00, within=0.005)
        yield evidence.part(f"{hook}, of what the documents imply", target, partial(_as_documented, cells, hook))
        yield evidence.part(f"{hook}, reduce-scatter", Target(0.70), partial(_scattered, cells, hook, scatter))


def _as_documented(cells: Cells, hook: str) -> Found:
    (row,), _ = cells.together(_overlapped(cells, hook))
    implied = derived.bus_bytes(row)
    if not implied:
        raise Missing("what such a step must move is not known")
    moved = _counted(row, "moved_bytes")
    return figures.exact(moved / implied), f"{implied / 2**20:.2f} MiB a rank", None


def _scattered(cells: Cells, hook: str, scatter: str) -> Found:
    (less, whole), _ = cells.together(_overlapped(cells, scatter), _overlapped(cells, hook))
    before = _counted(whole, "moved_bytes")
    return figures.exact(_counted(less, "moved_bytes") / before), f"{before / 2**20:.2f} MiB a rank", None


def _overlapped(cells: Cells, hook: str) -> dict[str, object]:
    return {"subject": cells.ours, "hook": hook, "zero": "on", "cap_mib": 1.0}


def _counted(row: Row, name: str) -> float:
    if name not in row["derived"]:
        raise Missing("was not counted")
    return float(row["derived"][name])


def _best_hook(evidence: Evidence) -> Iterator[Part]:
    cells = evidence.cells(workload="transformer", world=2, optimizer="adam")

    def found() -> Found:
        sound = cells.sound(subject=cells.ours, zero="on", settings="default", shard_buckets=False)
        one_by_one = [row for row in sound if row["axes"]["hook"] == "none"]
        overlapped = [row for row in sound if row["axes"]["hook"] in _HOOKS]
        if not one_by_one or not overlapped:
            raise Missing("neither hook" if one_by_one else "DDP, then the step: not measured")
        mine, other = figures.least(overlapped), figures.least(one_by_one)
        return figures.ratio(mine, other), f"{_ms(median_ns(other))}, {mine['axes']['hook']}", None

    yield evidence.part("both at their best cap", Target(1.00), found)


# -- the suite, and starting

_BESIDE = "the sweep impl-vs-torch measures it beside its cells"


def _checks(evidence: Evidence) -> Iterator[Part]:
    for world, limit in ((2, 0.15), (4, 0.30)):
        samples = evidence.made.beside.get("checks", {}).get(str(world))
        found = figures.of_samples(samples, 1e9) if samples else None
        yield Part(f"smallest check, {world} ranks", Target(limit, unit="s"), found, _BESIDE)
    quick = [record for record in evidence.suite if record.header["asked"].get("tier") == "quick"]
    lasted = figures.exact(lasted_s(quick[-1])) if quick else None
    yield Part("quick tier", Target(180.0, unit="s"), lasted, "give a record of `make conformance` with --suite")


def _starts(evidence: Evidence) -> Iterator[Part]:
    taken = evidence.made.beside.get("starts", {})
    base, *others = STARTS
    for name in others:
        found, beside = None, ""
        if name in taken and base in taken:
            first, second = (dict(enumerate(map(float, taken[each]))) for each in (name, base))
            found, beside = figures.difference(first, second, 1e9), f"{statistics.median(second.values()) / 1e9:.2f} s"
        yield Part(name, Target(0.30, unit="s"), found, _BESIDE, beside)


# -- a GPU


def _gpu(evidence: Evidence) -> Iterator[Part]:
    for workload in ("transformer", "convnet"):
        cells = evidence.cells(workload=workload, world=1, device="cuda")
        yield evidence.part(f"{workload}, step", Target(1.00), partial(_step, cells, False, "best"))
        yield evidence.part(f"{workload}, host time", Target(1.00), partial(_host_ratio, cells))
        for name in ("launches", "synchronisations"):  # ``traffic.host_calls``
            yield evidence.part(f"{workload}, {name}", Target(1.00), partial(_events, cells, name))


def _host_ratio(cells: Cells) -> Found:
    (mine, theirs), noise = cells.together({"subject": cells.ours}, {"subject": cells.theirs})
    first, second = (by_round(row, row["cpu_ns"]) for row in (mine, theirs))
    return figures.quotient(first, second), _ms(statistics.median(second.values())), noise


def _events(cells: Cells, name: str) -> Found:
    (mine, theirs), _ = cells.together({"subject": cells.ours}, {"subject": cells.theirs})
    first, second = _counted(mine, name), _counted(theirs, name)
    return figures.exact(first / second if second else 1.0 + first), f"{second:g}, ours {first:g}", None


def _ms(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.2f} ms"


LINES = (
    Line("DDP step, 400 tiny parameters, world 2", "≤ 0.90 of the default, ≤ 1.00 of the best", _tiny),
    Line("DDP step, larger models, world 2", "≤ 1.00 of the best", _models),
    Line("main-thread CPU per tiny parameter in backward", "≤ 3 µs", _host),
    Line("Join's added time per iteration", "≤ 0.60 at world 2, ≤ 0.90 at worlds 3 and 4", _join),
    Line("iterations outside any Join after one has ended", "1.00 of what they were before", _after),
    Line("ZeRO step, 400 parameters, Adam", "≤ 0.20 at world 2, ≤ 0.05 at world 4; ≤ 0.95 of views", _zero),
    Line("bytes moved per overlapped step", "as documented; with reduce-scatter ≤ 0.70 of it", _bytes),
    Line("best overlap hook against DDP, then a ZeRO step, ours", "≤ 1.00 (transformer, world 2)", _best_hook),
    Line("throwing mode's added time per iteration", "≤ 0.60", _throwing),
    Line("joined ranks while shadowing", "CPU ≤ 1.00; runs of 100 iterations end no later", _shadow),
    Line("the suite, cost of a check", "≤ 0.15 s at 2 ranks, ≤ 0.30 s at 4; quick tier ≤ 3 min", _checks),
    Line("starting commands, beyond `import torch`", "≤ 0.30 s", _starts),
    Line("on a GPU, world 1", "step, host time, launches, synchronisations ≤ 1.00", _gpu),
)
