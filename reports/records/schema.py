"""What a record file must hold: the kinds of files, the fields that each kind's lines have, and their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCHEMA_VERSION = 1

Fields = Mapping[str, type | tuple[type, ...]]

HEADER: Fields = {
    "schema": int,
    "of": str,  # the kind of file: conformance, perf …
    "time": str,  # ISO 8601, UTC
    "machine": dict,
    "versions": dict,
    "commit": str,  # empty where there is no repository
    "environment": dict,
    "command": list,
    # optional, of perf: "again", the words that measure one series again, in which "{series}" stands for its name
}
FOOTER: Fields = {"rows": int, "interrupted": bool, "finished": str}

_ROWS: dict[str, Fields] = {
    "conformance": {
        "clause": str,
        "check": str,
        "scenario": str,
        "subject": str,
        "backend": str,
        "world": int,
        "outcome": str,
        "seconds": (int, float),
        "witness": str,
        "level": str,
        "deviation": str,
        "notes": list,
    },
    # one cell of a sweep for one variant; the raw samples are [iteration][rank], in nanoseconds
    # rows of unit "step" may also have "phases": forward_wall, forward_cpu, backward_…, step_… as [iteration][rank]
    "perf": {
        "series": str,  # the cell's axes and the variant, readable: what may be compared over nights
        "group": str,  # the cells that were measured interleaved, in the same processes; only these compare directly
        "subject": str,
        "axes": dict,  # workload, world, backend, device, skew, skew_fraction, cap_mib, hook, … : plain values
        "workload_hash": str,  # a changed workload starts a new series
        "unit": str,  # what one sample is: "step" (an iteration) or "epoch" (a whole uneven run)
        "status": str,  # ok · void (wrong numbers) · failed · hung · not run
        "reason": str,  # why it is not ok; empty if it is
        "wall_ns": list,
        "cpu_ns": list,  # time of the main thread on the processor
        "device_ns": list,  # by events of the device; empty without one
        "block": list,  # number of the shuffled block that each sample belongs to
        "warmup_ns": list,  # the samples that warm-up took, wall time
        "derived": dict,  # figures made from the samples: bytes, bandwidth, exposed time, memory …
        "verified": dict,  # what was compared with one process, and how far apart it was
    },
    # one random mutant of the implementation; the footer has "rates" (by package) and "in_sample"
    "power": {
        "mutant": str,  # file:function:operator:number
        "part": str,  # package
        "operator": str,
        "diff": str,
        "end": str,  # killed · survived · not reached · stillborn · trouble
        "class": str,  # of a survivor: equivalent · performance only · accelerator only · gap · not triaged
        "reason": str,
    },
    # what was said of one series or clause on the night that the file belongs to
    "verdict": {
        "kind": str,  # "series" or "clause"
        "key": str,
        "name": str,
        "state": str,
        "value": (int, float, type(None)),
        "level": (int, float, type(None)),  # what the value was compared with
        "evidence": (int, float),  # share of the alarm threshold
        "since": str,  # the night on which the change in sight began; empty if there is none
        "effect": (int, float, type(None)),  # fraction
        "alarms": bool,
    },
}


_SAMPLES = ("wall_ns", "cpu_ns", "device_ns", "warmup_ns")  # of perf


class RecordError(ValueError):
    """A record file or a line of it that is not what it should be; the text says where, why and what to do."""


def register(kind: str, fields: Fields) -> None:
    """Say which fields the rows of a kind of file must have. Saying the same again is allowed."""
    if _ROWS.setdefault(kind, fields) != fields:
        raise RecordError(f"rows of {kind} are already declared with other fields")


def check_header(header: Mapping[str, Any], where: str) -> None:
    _check(header, HEADER, f"{where}: header")
    if header["schema"] != SCHEMA_VERSION:
        raise RecordError(
            f"{where}: schema {header['schema']}, but this reader knows schema {SCHEMA_VERSION}; "
            "use the version of the program that wrote it"
        )


def check_row(kind: str, row: Mapping[str, Any], where: str) -> None:
    """Rows of an unregistered kind are not looked into."""
    _check(row, _ROWS.get(kind, {}), where)
    for name in _SAMPLES if kind == "perf" else ():
        if not all(isinstance(one, list) and one and all(map(_is_number, one)) for one in row[name]):
            raise RecordError(f"{where}: {name} holds something else than samples, each a list of every rank's number")
    if kind == "perf" and not all(type(one) is int for one in row["block"]):
        raise RecordError(f"{where}: block holds something else than whole numbers")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_footer(footer: Mapping[str, Any], where: str) -> None:
    _check(footer, FOOTER, f"{where}: footer")


def _check(values: Mapping[str, Any], fields: Fields, where: str) -> None:
    for name, kind in fields.items():
        if name not in values:
            raise RecordError(f"{where} has no {name!r}")
        wrong_bool = isinstance(values[name], bool) and kind is not bool  # True is an int to Python, not to a reader
        if wrong_bool or not isinstance(values[name], kind):
            raise RecordError(f"{where}: {name} is {values[name]!r}, which is no {_words(kind)}")


def _words(kind: type | tuple[type, ...]) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join(each.__name__ for each in kinds)
