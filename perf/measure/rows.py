"""From what the ranks brought home to rows of a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..plan.cells import Cell, Group
from ..workloads import fingerprint
from .samples import Samples

Row = dict[str, Any]

OK, VOID, FAILED, HUNG, NOT_RUN = "ok", "void", "failed", "hung", "not run"
FINAL = (OK, VOID, FAILED, HUNG)  # a resumed sweep does not measure these again


def blank(cell: Cell, group: Group, status: str, reason: str) -> Row:
    """A row without numbers: the cell came to nothing, and why."""
    return {
        "series": cell.series, "group": group.name, "subject": cell.subject, "axes": cell.axes(),
        "workload_hash": fingerprint(cell.workload, cell.size), "unit": cell.unit, "status": status,
        "reason": reason, "wall_ns": [], "cpu_ns": [], "device_ns": [], "block": [], "warmup_ns": [], "phases": {},
        "derived": {}, "verified": {},
    }  # fmt: skip


def assembled(cell: Cell, group: Group, ranks: Sequence[Samples]) -> Row:
    """The row of a cell from every rank's samples. A cell that is not right has no times."""
    wrong = next((one for one in ranks if one.status != OK), None)
    row = blank(cell, group, wrong.status if wrong else OK, wrong.reason if wrong else "")
    row["verified"] = _verified(ranks)
    if wrong:
        return row
    row["wall_ns"] = by_sample([one.wall for one in ranks])
    row["cpu_ns"] = by_sample([one.cpu for one in ranks])
    row["device_ns"] = by_sample([one.device for one in ranks])
    row["block"] = ranks[0].block
    row["warmup_ns"] = by_sample([one.warmup for one in ranks])
    row["phases"] = {name: by_sample([one.phases[name] for one in ranks]) for name in ranks[0].phases}
    row["derived"] = _facts(ranks)
    return row


def sibling(row: Mapping[str, Any], rows: Iterable[Row], **axes: Any) -> Row | None:
    """The row of the same cell but for these axes; None if there is none."""
    wanted = {**row["axes"], **axes}
    return next((other for other in rows if other["axes"] == wanted), None)


def by_sample(ranks: Sequence[Sequence[int]]) -> list[list[int]]:
    """[sample][rank] from every rank's list."""
    return [list(sample) for sample in zip(*ranks, strict=True)]


def _verified(ranks: Sequence[Samples]) -> dict[str, Any]:
    from .verify import TOLERANCE

    if not any(one.turns for one in ranks):
        return {}
    return {
        "against": "the weights and buffers that one process has after the same batches, at the end of every turn",
        "turns": sum(one.turns for one in ranks),
        "gap": max(one.worst for one in ranks) if all(one.worst < float("inf") for one in ranks) else "not finite",
        "gap_unit": f"what rounding may do: {TOLERANCE:g} of a tensor's movement and a few ulp; up to 1 is right",
    }


def _facts(ranks: Sequence[Samples]) -> dict[str, Any]:
    """One number where all ranks agree on it; figures of memory, work and traffic by rank."""
    by_rank = ("optimizer_bytes", "iterations", "peak_bytes", "link_sent_bytes")
    facts: dict[str, Any] = {}
    for name in ranks[0].facts:
        values = [one.facts[name] for one in ranks]
        facts[name] = values if name in by_rank else max(values)
    return facts
