"""Reads records of perf, and refuses those whose contents its tables and charts could not go by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from conformance.bad_input import BadInput
from reports.records import RecordError, RecordFile, read

from ..plan.cells import Cell

_KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}
_TIMES = ("wall_ns", "cpu_ns", "device_ns")  # as [sample][rank]
_OTHER = "was it written by another version of perf?"


def read_perf(place: Path | str, *, partial: bool = True) -> RecordFile:
    """A record of perf, by default even one that was not brought to its end; ``RecordError`` if it cannot be used."""
    record = read(place, partial=partial)
    if record.header["of"] != "perf":
        raise RecordError(f"{place}: is a record of {record.header['of']}, not of perf; `make perf` writes some")
    return usable(record)


def asked_for(place: Path | str, *, partial: bool = True) -> RecordFile:
    """The same of a record that the user has named: ``BadInput``."""
    try:
        return read_perf(place, partial=partial)
    except RecordError as error:
        raise BadInput(str(error)) from error


def usable(record: RecordFile) -> RecordFile:
    """The record, after seeing that its header and rows are as perf writes them.

    Rows of a time when there were fewer axes have the later ones at their defaults.
    """
    header, where = record.header, str(record.path)
    missing = [name for name in ("processor", "cores") if name not in header["machine"]]
    if missing:
        raise RecordError(f"{where}: its header's machine has no {missing[0]!r}; {_OTHER}")
    if not isinstance(header.get("asked", {}), dict) or not isinstance(header.get("warnings", []), list):
        raise RecordError(f"{where}: its header does not say what was asked; {_OTHER}")
    for number, row in enumerate(record.rows, 2):
        if why := _unlike(row):
            raise RecordError(f"{where}: line {number}: {why}; {_OTHER}")
        row["axes"] = Cell(**row["axes"]).axes()
    return record


def _unlike(row: Mapping[str, Any]) -> str:
    """What of a row is not as perf writes it; empty if all is."""
    try:
        cell = Cell(**row["axes"])
    except TypeError as error:
        return f"its axes are no cell's ({str(error).removeprefix('Cell.__init__() ')})"
    for each in fields(Cell):
        value = getattr(cell, each.name)
        if not isinstance(value, _KINDS[str(each.type)]) or isinstance(value, bool) != (each.type == "bool"):
            return f"its {each.name} is {value!r}, which is no {each.type}"
    phases = row.get("phases", {})
    if not isinstance(phases, dict):
        return f"its phases are {phases!r}"
    for name, samples in [(name, row[name]) for name in _TIMES] + list(phases.items()):
        if samples and not (_is_table(samples, cell.world) and len(samples) == len(row["block"])):
            return f"its {name} is no list of so many samples, of {cell.world} ranks each, as there are blocks"
    if not _is_table(row["warmup_ns"], cell.world) or not all(type(block) is int for block in row["block"]):
        return "its warm-up or its blocks are no numbers"
    return ""


def _is_table(samples: Any, world: int) -> bool:
    return isinstance(samples, list) and all(
        isinstance(sample, list) and len(sample) == world and all(_is_number(one) for one in sample)
        for sample in samples
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
