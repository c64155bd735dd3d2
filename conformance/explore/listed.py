"""The listed deviations of torch that a smallest failing program shows, found by what the program chooses."""

from __future__ import annotations

from functools import cache

import torch

from ..board import columns
from ..deviations import built_in
from .program import Program

_BY_ALL = "by all | in inference mode"

#: By clause: choices that a program must have for its failure to be the listed one; any of several sets.
LISTED: dict[str, list[dict[str, str]]] = {
    "COMM-021": [{"hook": "wrapped", "unused": "found", "use": "by rank | by both"}],
    "DDP-034": [{"cast": "*"}],
    "DDP-049": [
        {"gradient dtype": "*"},  # refused, which is allowed
        {"sharded": "bucket views", "tensors": "transposed"},
        {"sharded": "bucket views", "convolution": "channels_last"},
        {"data": "laid out anew"},
    ],
    "DDP-057": [{"second model": "behind", "table": "sparse | sparse bag"}],
    "DDP-067": [
        {"checkpoint": "the whole model", "buffers": "*"}, {"checkpoint": "the whole model", "norm": "batch"},
        {"checkpoint": "the whole model", "further layer": "spectral norm"},
        {"checkpoint": "the whole model", "frozen": "*"}, {"checkpoint": "the whole model", "use": "*"},
        {"checkpoint": "the whole model", "schedule": "*"},
    ],
    "DDP-086": [{"forwards": "two", "norm": "batch"}, {"forwards": "two", "buffers": "*"}],
    "DDP-089": [
        {"evaluation": _BY_ALL, "buffers": "*"}, {"evaluation": _BY_ALL, "norm": "batch"},
        {"evaluation": _BY_ALL, "further layer": "spectral norm"},
    ],
    "DDP-099": [{"forwards": "two", "unused": "*"}],
    "DDP-100": [
        {"gradients": "views", "use": "*"}, {"gradients": "views", "outputs": "one outside the loss"},
        {"table": "sparse | sparse bag", "unused": "*"},
    ],
    "DDP-105": [{"graph": "static", "outputs": "one outside the loss"}],
    "DDP-110": [
        {"graph": "static", "loss": "and slopes"}, {"graph": "static", "outputs": "dataclass"},
        {"graph": "static", "backward": "behind a look"},
    ],
    "DDP-117": [{"data": "gradients assigned", "gradients": "views"}],
    "DDP-122": [{"delayed": "*", "types": "double | half | bfloat16"}],
    "DDP-124": [{"delayed": "*"}],
    "DDP-158": [{"delayed": "*", "copied": "*"}],
    "DDP-159": [{"graph": "static", "copied": "*"}],
    "DDPJ-009": [{"table": "sparse | sparse bag", "schedule": "*"}],
    "DDPJ-014": [{"hook": "*", "divisor": "*", "schedule": "*"}],
    "DDPJ-015": [{"second model": "*", "divisor": "*", "schedule": "*"}],
    "DDPJ-027": [
        {"blocks": "second without context", "buffers": "*"}, {"blocks": "second without context", "norm": "batch"},
        {"context": "*", "buffers": "*", "world": "*"},
    ],
    "DDPJ-030": [{"schedule": "*", "unused": "*"}],
    "DDPJ-032": [{"graph": "static", "schedule": "*"}],
    "DDPJ-038": [{"evaluation": f"{_BY_ALL} | alone in the wrapper", "context": "ddp.join | Join"}],
    "DDPJ-039": [{"delayed": "*", "schedule": "*"}],
    "JOIN-040": [{"second model": "*", "schedule": "*"}],
    "JOIN-054": [{"forwards": "*", "schedule": "*"}, {"accumulation": "no_sync | every second", "schedule": "*"}],
    "ZERO-012": [{"sharded": "bucket views", "data": "assigned | one assigned | laid out anew"}],
    "ZERO-013": [{"sharded": "bucket views", "frozen": "between blocks"}],
    "ZERO-020": [{"listed": "*", "schedule": "*"}],
    "ZERO-022": [{"sharded": "*", "schedule": "*"}],
}  # fmt: skip


def listed(program: Program, subject: str) -> list[str]:
    """The clauses whose listed deviation explains the failure of a program: of torch, or where its classes do the work.

    What the installed release has repaired explains nothing.
    """
    if not through_torch(subject):
        return []
    broken = _broken_in(torch.__version__)
    return [clause for clause, patterns in LISTED.items()
            if clause in broken and any(_fits(program, pattern) for pattern in patterns)]  # fmt: skip


@cache
def through_torch(subject: str) -> bool:
    """Whether it is torch, or torch's classes do its work."""
    return subject == "torch" or any(each.like == "torch" for each in columns.load() if each.subject == subject)


@cache
def _broken_in(release: str) -> frozenset[str]:
    return frozenset(each.clause for each in built_in("torch") if each.holds_for(release))


def _fits(program: Program, pattern: dict[str, str]) -> bool:
    return all(program.has(axis) if values == "*" else program[axis] in values.split(" | ")
               for axis, values in pattern.items())  # fmt: skip
