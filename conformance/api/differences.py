"""Where two results differ, in one line: the one ratio that all differing numbers have, or else the worst number."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

ALIKE = 1e-5  # ratios so close to each other are one
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60

Leaf = tuple[str, Any, Any]  # where it is, what was got, what was expected


def difference(got: Any, expected: Any) -> str:
    """What differs between two values, which may hold others; empty if nothing does.

    ``layers.0.weight[3]: got 4, expected 6, ratio 0.667 (in all 20 that differ)``: such a ratio tells of a divisor.
    """
    leaves = list(_leaves(got, expected, ""))
    others = [leaf for leaf in leaves if not (_is_number(leaf[1]) and _is_number(leaf[2]))]
    if others:
        where, one, other = others[0]
        if isinstance(one, str) and other is None:  # it says by itself what differs
            return f"{_at(where)}{one}"
        return f"{_at(where)}got {_short.repr(one)}, expected {_short.repr(other)}"
    if not leaves:
        return ""
    ratio = _one_ratio(leaves)
    where, one, other = leaves[0] if ratio is not None else max(leaves, key=_gap)
    number = f"{_at(where)}got {one:.9g}, expected {other:.9g}"
    if ratio is None:
        return f"{number}, gap {_gap((where, one, other)):.3g}{_of(leaves, 'the worst of ')}"
    return f"{number}, ratio {ratio:.3g}{_of(leaves, 'in all ')}"


def assert_same(got: Any, expected: Any, where: str) -> None:
    """Fail if two results differ, saying where and by what."""
    if got != expected:
        raise AssertionError(f"{where}: {difference(got, expected) or 'the results differ'}")


def _of(leaves: list[Leaf], words: str) -> str:
    return f" ({words}{len(leaves)} that differ)" if len(leaves) > 1 else ""


def _at(where: str) -> str:
    return f"{where}: " if where else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex)) and not isinstance(value, bool)


def _gap(leaf: Leaf) -> float:
    gap = abs(leaf[1] - leaf[2])
    return math.inf if math.isnan(gap) else gap


def _one_ratio(leaves: list[Leaf]) -> float | None:
    """What got is to expected in every leaf; None if that is not the same everywhere."""
    if any(not got or not expected or isinstance(got, complex) for _, got, expected in leaves):
        return None
    ratios = [got / expected for _, got, expected in leaves]
    least, most = min(ratios), max(ratios)
    same = math.isfinite(least) and math.isfinite(most) and most - least <= ALIKE * abs(most)
    return ratios[0] if same else None


def _leaves(got: Any, expected: Any, where: str) -> Iterator[Leaf]:
    """All that differs, down to single numbers, where both sides have one form."""
    if isinstance(got, torch.Tensor) and isinstance(expected, torch.Tensor):
        yield from _of_tensors(got, expected, where)
    elif isinstance(got, Mapping) and isinstance(expected, Mapping):
        if got.keys() != expected.keys():
            yield where, sorted(map(str, got)), sorted(map(str, expected))
            return
        for key, value in expected.items():
            yield from _leaves(got[key], value, f"{where}{'.' if where else ''}{key}")
    elif isinstance(got, (list, tuple)) and isinstance(expected, (list, tuple)):
        if len(got) != len(expected):
            yield where, got, expected
            return
        for place, (one, other) in enumerate(zip(got, expected, strict=True)):
            yield from _leaves(one, other, f"{where}[{place}]")
    elif dataclasses.is_dataclass(expected) and type(got) is type(expected):
        for each in dataclasses.fields(expected):
            name = f"{where}{'.' if where else ''}{each.name}"
            yield from _leaves(getattr(got, each.name), getattr(expected, each.name), name)
    elif got != expected:
        yield where, got, expected


def _of_tensors(got: torch.Tensor, expected: torch.Tensor, where: str) -> Iterator[Leaf]:
    if (got.shape, got.dtype) != (expected.shape, expected.dtype):
        yield where, f"{got.dtype} {tuple(got.shape)}", f"{expected.dtype} {tuple(expected.shape)}"
    else:
        yield from _leaves(got.tolist(), expected.tolist(), where)
