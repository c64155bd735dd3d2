"""When a change began, and how large it is with what certainty."""

from __future__ import annotations

import numpy as np

from .parameters import Parameters
from .reference import Floats

_BEFORE, _AFTER = 30, 10  # nights on either side of a verdict that say when its change began


def began(values: Floats, since: int, found: int, end: int, noise: float, parameters: Parameters) -> int:
    """The index of the first night on the new level: where splitting the nights in two explains the most.

    ``values`` are logarithms without gaps. The verdict of night ``found`` put the change at ``since``; nights after
    the verdict may tell better, as long as the change lasts (``end``). Far nights are pulled in, so that an outlier
    beside the change does not move it.
    """
    start = max(0, since - _BEFORE)
    stop = min(end, found + _AFTER + 1)
    if stop - start < 4:
        return since
    around = values[start:stop]
    split = since - start
    low, high = np.median(around[:split]), np.median(around[split:])
    reach = parameters.limit * noise
    around = np.clip(around, min(low, high) - reach, max(low, high) + reach)
    sizes = np.arange(1, len(around))
    left = np.cumsum(around)[:-1] / sizes
    right = np.cumsum(around[::-1])[:-1][::-1] / sizes[::-1]
    gain = sizes * sizes[::-1] * (right - left) ** 2
    first = max(0, found - parameters.longest - start)
    return int(start + first + np.argmax(gain[first : found - start]) + 1) if found - start > first else since


def effect(new: Floats, level: float, level_nights: int, noise: float, parameters: Parameters) -> tuple[float, float]:
    """Difference of the logarithms (new minus old level) and half the width of its 95 % interval."""
    reach = parameters.limit * noise
    middle = float(np.median(new))
    mean = float(np.clip(new, middle - reach, middle + reach).mean())
    half = 1.96 * noise * float(np.sqrt(1 / len(new) + 1 / max(level_nights, 1)))
    return mean - level, half


def detectable(noise: float, level_nights: int, threshold: float, span: int) -> float:
    """The smallest slow-down, as a fraction, that is found within ``span`` nights nine times of ten."""
    often = 1.2816
    return float(np.expm1((threshold + often) * noise * np.sqrt(1 / span + 1 / max(level_nights, 1))))
