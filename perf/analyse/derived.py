"""Figures made from what was measured: bytes and bandwidth, exposed communication, waits and their bound, host cost.

All need the *floor* of a group, the same training without communication (hook ``local``, or ``no_sync`` for what a
library costs that does not communicate); a group without one has those figures left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..measure.rows import OK, Row
from ..plan.axes import ALONE
from ..plan.cells import Cell
from ..workloads import SPARSE
from .intervals import Interval, Rounds, of_difference
from .ratio import by_round, median_ns, time_of

if TYPE_CHECKING:
    import pandas as pd


def floor_of(row: Row, rows: Sequence[Row], hook: str = "local") -> Row | None:
    """The sound cell of the row's own group that trains without communicating; None if the sweep has none."""
    for other in rows:
        axes = other["axes"]
        mine = hook == "local" or other["subject"] == row["subject"]
        if axes["hook"] == hook and mine and other["status"] == OK and axes["copy"] == 1:
            return other
    return None


# -- bytes


def bus_bytes(row: Row) -> float | None:
    """What a correct step must move through each rank's link, in bytes; None where inputs decide it.

    All-reduce moves 2 (n - 1) / n of the gradients, a reduce-scatter half of that, and what owners publish (n - 1) / n
    of the parameters. Buffers come from one rank, whole. Counted as nccl-tests counts its bus bandwidth.
    """
    axes, facts = row["axes"], row["derived"]
    if axes["workload"] in SPARSE or "parameter_bytes" not in facts or axes["unit"] != "step":
        return None
    if axes["hook"] in ALONE:
        return 0.0
    share = (axes["world"] - 1) / axes["world"]
    reduced = share if axes["hook"].startswith("reduce_scatter") else 2 * share
    published = share if axes["zero"] != "off" else 0.0
    buffers = float(facts["buffer_bytes"]) if axes["world"] > 1 else 0.0
    moved: float = (reduced + published) * float(facts["parameter_bytes"]) + buffers
    return moved


def bus_bytes_per_s(row: Row) -> float | None:
    """Those bytes over the whole step's time: what the link must carry at least on average."""
    moved, step_ns = bus_bytes(row), median_ns(row)
    return None if moved is None or not step_ns > 0 else moved / step_ns * 1e9


# -- what compute and the network allow


def allowed_ns(row: Row) -> tuple[float, float] | None:
    """The floor of a paced step over a network, and the same without overlap: compute and bytes, the longer, and both.

    Compute as its profile says, bytes at the rate that was measured. None where one of them is not known.
    """
    facts, moved = row["derived"], bus_bytes(row)
    if moved is None or "compute_ns" not in facts or "link_bytes_per_s" not in facts:
        return None
    compute_ns, sending_ns = float(facts["compute_ns"]), moved / facts["link_bytes_per_s"] * 1e9
    return max(compute_ns, sending_ns), compute_ns + sending_ns


# -- time that is not arithmetic


def exposed(row: Row, rows: Sequence[Row]) -> Interval | None:
    """The time by which synchronisation lengthens a step, paired round by round, in nanoseconds."""
    floor = floor_of(row, rows, "no_sync") or floor_of(row, rows)
    if floor is None or row["axes"]["hook"] in ALONE or row["unit"] != "step":
        return None
    return of_difference(by_round(row), by_round(floor))


def host_ns_per_parameter(row: Row, rows: Sequence[Row]) -> float | None:
    """Main-thread processor time of forward and backward beyond the bare model's, over the number of parameters."""
    floor = floor_of(row, rows)
    if floor is None or floor is row or row["unit"] != "step" or not row["phases"]:
        return None
    mine, bare = _host_ns(row), _host_ns(floor)
    return (mine - bare) / float(row["derived"]["parameters"])


def _host_ns(row: Row) -> float:
    both = zip(row["phases"]["forward_cpu"], row["phases"]["backward_cpu"], strict=True)
    sums = [[ahead + back for ahead, back in zip(*sample, strict=True)] for sample in both]
    return statistics.median(by_round(row, sums).values())


# -- waits under skew


def bound(row: Row, floor: Row) -> Rounds:
    """The analytic bound of a sample, round by round: the sum over iterations of the slowest active rank's own time."""
    trained = _trained(row, floor)
    return {number: _slowest_sum(costs, trained) for number, *costs in _own_costs(floor).itertuples()}


def waits_ns(row: Row, floor: Row) -> list[float]:
    """How long each rank takes beyond its own arithmetic: it waits, communicates, or serves the library."""
    own = _own_costs(floor).median().mul(list(_trained(row, floor)))
    waits: list[float] = (_by_rank(row).median() - own).tolist()
    return waits


def _trained(row: Row, floor: Row) -> tuple[int, ...]:
    """How many iterations each rank trains in one sample."""
    cell = Cell(**row["axes"])
    return cell.trained(max(floor["derived"]["iterations"])) if cell.unit == "epoch" else (1,) * cell.world


def _own_costs(floor: Row) -> pd.DataFrame:
    """An iteration's time of every rank for itself, in each round; 0 for a rank without inputs."""
    counts = floor["derived"]["iterations"] if floor["unit"] == "epoch" else [1] * floor["axes"]["world"]
    times = _by_rank(floor)
    rounds = times.index.map(dict(enumerate(floor["block"])))  # a bare list of numbers would be taken for columns
    return times.groupby(rounds, sort=False).median().div([count or math.inf for count in counts])


def _by_rank(row: Row) -> pd.DataFrame:
    """The times that count: a line for each sample, a column for each rank."""
    import pandas as pd

    return pd.DataFrame(row[time_of(row)], columns=range(row["axes"]["world"]))  # also where there is no sample


def _slowest_sum(costs: Sequence[float], trained: Sequence[int]) -> float:
    """Over all iterations, the largest cost among the ranks that still have inputs."""
    pairs = list(zip(costs, trained, strict=True))
    return sum(max(cost for cost, count in pairs if count > at) for at in range(max(trained)))


# -- into the record


def noted(rows: Sequence[Row]) -> list[Row]:
    """The rows of a group with all of these among their derived figures, as far as they exist."""
    return [{**row, "derived": {**row["derived"], **_figures(row, rows)}} for row in rows]


def _figures(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    floor = floor_of(row, rows)
    found: dict[str, Any] = {"bus_bytes": bus_bytes(row), "bus_bytes_per_s": bus_bytes_per_s(row)}
    found["host_ns_per_parameter"] = host_ns_per_parameter(row, rows)
    found["floor_ns"], found["serial_ns"] = allowed_ns(row) or (None, None)
    outside = exposed(row, rows)
    if outside is not None:
        found["exposed_ns"] = outside.point
        if outside.known:
            found["exposed_interval_ns"] = [outside.low, outside.high]
        if outside.sample.correlation == outside.sample.correlation:  # not NaN
            found["exposed_lag_1"] = outside.sample.correlation
    if floor is not None and floor is not row and row["axes"]["hook"] != "no_sync":
        found["bound_ns"] = statistics.median(bound(row, floor).values())
        found["wait_ns"] = waits_ns(row, floor)
    return {name: value for name, value in found.items() if value is not None}
