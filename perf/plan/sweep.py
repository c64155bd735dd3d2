"""Reads sweeps: small TOML files that list values of axes; each ``[[cells]]`` stands for all their combinations."""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conformance.bad_input import BadInput

from ..workloads import KNOWN
from .axes import AXES, checked, nearest

HOME = Path(__file__).parents[1] / "sweeps"
# how much is measured, where no budget says otherwise: name -> (default, least, most)
BESIDE = ("traffic", "starts", "checks")  # see ``traffic`` and ``beside``
PRINTS = ("targets", "laws")
_COUNTS = {"rounds": (12, 1, 1000), "block": (5, 1, 1000), "epoch": (8, 2, 1000)}


@dataclass(frozen=True)
class Sweep:
    """A sweep as its file has it, checked."""

    name: str
    title: str
    cells: tuple[dict[str, tuple[Any, ...]], ...]  # values by axis, of each [[cells]]
    rounds: int  # turns of each variant
    block: int  # samples in a turn (unit step), of workloads that ``blocks`` does not name
    epoch: int  # iterations of the busiest rank (unit epoch)
    beside: tuple[str, ...] = ()  # what is measured besides cells
    prints: str = ""  # the table that is printed at the end, too
    blocks: tuple[tuple[str, int], ...] = ()  # by workload: short iterations want more samples in a turn

    @property
    def digest(self) -> str:
        """Changes when what is asked changes."""
        more = [each for each in (self.beside, self.blocks) if each]
        asked = [self.cells, self.rounds, self.block, self.epoch, *more]
        whole = json.dumps(asked, sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()[:12]

    def over(self, network: str) -> Sweep:
        """All of it on hosts with this network between them."""
        return replace(self, cells=tuple({**block, "network": (network,)} for block in self.cells))

    def block_of(self, workload: str) -> int:
        """Samples in a turn of this workload."""
        return dict(self.blocks).get(workload, self.block)

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Every combination of values, one dict of axes each, defaults filled in."""
        for block in self.cells:
            values = {name: block.get(name, (axis.default,)) for name, axis in AXES.items() if name != "subject"}
            for chosen in itertools.product(*values.values()):
                yield dict(zip(values, chosen, strict=True))


def names() -> list[str]:
    """The sweeps that ship with perf."""
    return sorted(path.stem for path in HOME.glob("*.toml"))


def load(name: str) -> Sweep:
    """The sweep of this name, or the one in this file."""
    is_path = name.endswith(".toml") or "/" in name
    path = Path(name) if is_path else HOME / f"{name}.toml"
    if is_path and not path.exists():
        raise BadInput(f"there is no file {name}; give the path of a sweep's TOML file, or a name from `perf list`")
    if not is_path and not path.is_file():
        raise BadInput(f"unknown sweep {name!r}; {nearest(name, names())}")
    try:
        return _checked(path.stem, tomllib.loads(path.read_text(encoding="utf-8")), str(path.name))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise BadInput(f"{path.name} cannot be read: {error}") from error


def _checked(name: str, raw: dict[str, Any], where: str) -> Sweep:
    for key in raw:
        if key not in (known := ("title", "cells", "beside", "prints", "blocks", *_COUNTS)):
            raise BadInput(f"{where}: unknown entry {key!r}; {nearest(key, known)}")
    cells = raw.get("cells")
    if not isinstance(cells, list) or not cells or not all(isinstance(block, dict) for block in cells):
        raise BadInput(f"{where}: a sweep needs at least one [[cells]] with axes")
    blocks = tuple({axis: _values(axis, value, where) for axis, value in block.items()} for block in cells)
    counts = {key: _count(key, raw.get(key, _COUNTS[key][0]), where) for key in _COUNTS}
    beside = _known("beside", raw.get("beside", []), BESIDE, where)
    prints = _known("prints", raw.get("prints", []), PRINTS, where)
    of_workloads = _blocks(raw.get("blocks", {}), where)
    return Sweep(
        name, str(raw.get("title", name)), blocks, **counts, beside=beside, prints="".join(prints[:1]),
        blocks=of_workloads,
    )  # fmt: skip


def _blocks(value: Any, where: str) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, dict):
        raise BadInput(f"{where}: blocks cannot be {value!r}; give a table of workloads and numbers")
    for workload in value:
        if workload not in KNOWN:
            raise BadInput(f"{where}: blocks names no workload with {workload!r}; {nearest(workload, KNOWN)}")
    return tuple((workload, _count("block", count, where)) for workload, count in value.items())


def _known(key: str, value: Any, known: tuple[str, ...], where: str) -> tuple[str, ...]:
    values = tuple(value) if isinstance(value, list) else (value,)
    for each in values:
        if each not in known:
            raise BadInput(f"{where}: {key} cannot be {each!r}; {nearest(str(each), known)}")
    return values


def _values(axis: str, value: Any, where: str) -> tuple[Any, ...]:
    found = [checked(axis, each, where) for each in (value if isinstance(value, list) else [value])]
    if not found:
        raise BadInput(f"{where}: axis {axis!r} has no value; leave it out for its default")
    return tuple(dict.fromkeys(found))


def _count(key: str, value: Any, where: str) -> int:
    _, least, most = _COUNTS[key]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadInput(f"{where}: {key} cannot be {value!r}; give a whole number from {least} to {most}")
    return value
