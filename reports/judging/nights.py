"""From the rows of a performance record to one night's numbers: medians of blocks, as times and as paired ratios."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, log, nan, pi, sqrt
from statistics import median
from typing import Any

from ..history.layout import slug
from ..records import RecordFile
from .model import Basis

Row = dict[str, Any]

UNTRUSTED = "untrusted"

_MAD = 1.4826  # makes the median absolute deviation of normal noise its standard deviation
_OF_MEDIAN = sqrt(pi / 2)  # the error of a median over that of a mean
_FEW = 4  # blocks: with fewer their scatter says nothing

_NOT_PAIRED = ("subject", "copy", "settings")  # axes in which a cell and the one that it is divided by may differ


@dataclass(frozen=True)
class Identity:
    """What must be equal for two nights' numbers to belong to one series."""

    record_series: str
    subject: str
    reference: str
    basis: Basis
    unit: str
    workload_hash: str
    hardware: str
    same: bool

    def key(self, machine: str) -> str:
        """Short and stable; its first words only help the eye."""
        about = repr((machine, self.record_series, self.subject, self.reference, self.basis.value, self.unit))
        about += repr((self.workload_hash, self.hardware))
        return f"{slug(self.subject)[:20]}-{self.basis.value}-{hashlib.sha256(about.encode()).hexdigest()[:8]}"

    @property
    def name(self) -> str:
        over = f" / {'itself' if self.same else self.reference}" if self.reference else ""
        return self.record_series + over + (", processor time" if self.basis is Basis.PROCESSOR else "")


@dataclass(frozen=True)
class Measured:
    """One series on one night."""

    blocks: tuple[float, ...]  # median of each block, in the order of measurement; empty: nothing could be measured
    attempts: tuple[float, ...]  # the night's value by each attempt: the first is the ordinary run
    why: str  # why there is no number; empty otherwise
    # of the cell: ok, or the record's own word for what went wrong (void, failed, hung, not run); UNTRUSTED if void
    # without having been measured, because its subject breaks a guarantee that it relies on
    status: str
    axes: str  # JSON

    @property
    def value(self) -> float:
        return median(self.attempts)

    @property
    def error(self) -> float:
        """What the scatter of the blocks says of the error of their median, as a fraction; NaN if they are too few."""
        if len(self.blocks) < _FEW:
            return nan
        middle = median(self.blocks)
        spread = _MAD * median(abs(log(block / middle)) for block in self.blocks)
        return _OF_MEDIAN * spread / sqrt(len(self.blocks))


def measured(records: Sequence[RecordFile], hardware: str, reference: str) -> dict[Identity, Measured]:
    """Every series of a night from the records of its first run and of its reruns."""
    found: dict[Identity, Measured] = {}
    for record in records:
        for identity, one in _of_record(record.rows, hardware, reference):
            found[identity] = _joined(found.get(identity), one)
    return found


def _joined(before: Measured | None, one: Measured) -> Measured:
    """Two attempts of one night; an attempt without numbers adds nothing, but wrong results stay wrong."""
    if before is None:
        return one
    blocks = before.blocks + one.blocks
    attempts = before.attempts + one.attempts
    why = "" if attempts else before.why
    status = next(word for word in ("void", "ok", before.status) if word in (before.status, one.status))
    return Measured(blocks, attempts, why, status, one.axes)


def _of_record(rows: Sequence[Row], hardware: str, reference: str) -> Iterator[tuple[Identity, Measured]]:
    blocks = [_block_medians(row) for row in rows]
    work = [_block_work(row) for row in rows]
    partners = _partners(rows, reference)
    for number, row in enumerate(rows):
        partner = partners.get(number)
        axes = json.dumps(row["axes"], sort_keys=True, default=str)
        unit = f"ms per {row['unit']}"
        if _copy(row) == 1:
            identity = Identity(
                row["series"], row["subject"], "", Basis.TIME, unit, row["workload_hash"], hardware, False
            )
            yield identity, _one(row, {block: time / 1e6 for block, time in blocks[number].items()}, axes)
        if partner is not None:
            for basis, values in ((Basis.RATIO, blocks), (Basis.PROCESSOR, work)):
                if basis is Basis.PROCESSOR and not values[number]:
                    continue
                mine, other = values[number], values[partner]
                ratios = {block: mine[block] / other[block] for block in mine if block in other}
                identity = Identity(
                    row["series"], row["subject"], rows[partner]["subject"], basis, "ratio", row["workload_hash"],
                    hardware, _copy(row) > 1,
                )  # fmt: skip
                yield identity, _one(row, ratios if len(ratios) > 1 else {}, axes)


def _one(row: Row, blocks: dict[int, float], axes: str) -> Measured:
    values = tuple(blocks[block] for block in sorted(blocks))
    if not values:
        status = "its partner was not measured" if row["status"] == "ok" else row["status"]
        why = f"{status}: {row['reason']}" if row["reason"] else status
        untrusted = row["status"] == "void" and not row["verified"]
        return Measured(values, (), why, UNTRUSTED if untrusted else row["status"], axes)
    return Measured(values, (median(values),), "", "ok", axes)


def _block_medians(row: Row) -> dict[int, float]:
    """Block -> median of its samples in ns. A sample takes as long as the slowest rank needs for it."""
    return _medians(row, row["device_ns"] or row["wall_ns"], max)


def _block_work(row: Row) -> dict[int, float]:
    """Block -> median of what the main threads of all ranks spend on their processors in a sample, in ns."""
    return _medians(row, row["cpu_ns"], sum)


def _medians(row: Row, samples: Sequence[Any], of_ranks: Callable[[Sequence[float]], float]) -> dict[int, float]:
    if row["status"] != "ok" or not samples or len(samples) != len(row["block"]):
        return {}
    by_block: dict[int, list[float]] = {}
    for sample, block in zip(samples, row["block"], strict=True):
        time = of_ranks(sample) if isinstance(sample, list) else sample
        if not (isfinite(time) and time > 0):
            return {}
        by_block.setdefault(block, []).append(time)
    return {block: float(median(times)) for block, times in by_block.items()}


def _partners(rows: Sequence[Row], reference: str) -> dict[int, int]:
    """Row -> the row that it is divided by: the reference subject's in the same group, or its own first copy."""
    first: dict[str, int] = {}
    for number, row in enumerate(rows):
        if _copy(row) == 1:
            settings = str(row["axes"].get("settings"))
            first.setdefault(_place(row, row["subject"], settings), number)
            first.setdefault(_place(row, row["subject"], ""), number)
    found = {}
    for number, row in enumerate(rows):
        again = _copy(row) > 1
        subject = row["subject"] if again else reference
        if row["subject"] == reference and not again:
            continue
        settings = str(row["axes"].get("settings"))
        exact = first.get(_place(row, subject, settings))
        partner = exact if exact is not None or again else first.get(_place(row, subject, ""))
        if partner is not None:
            found[number] = partner
    return found


def _place(row: Row, subject: str, settings: str) -> str:
    axes = {name: value for name, value in row["axes"].items() if name not in _NOT_PAIRED}
    return json.dumps([row["group"], axes, subject, settings], sort_keys=True, default=str)


def _copy(row: Row) -> int:
    """1, or 2 for the same once more."""
    copy = row["axes"].get("copy", 1)
    return copy if isinstance(copy, int) else 1
