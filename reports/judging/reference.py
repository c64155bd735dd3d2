"""What tonight is compared with: the level and the noise of many series at once, estimated robustly."""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, exp, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .parameters import Parameters

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]

_MAD = 1.4826  # makes the median absolute deviation of normal noise its standard deviation


@dataclass(frozen=True)
class Reference:
    """Level and noise of each series; (series,) arrays. Levels are logarithms, so noise and effects are fractions."""

    level: Floats
    noise: Floats
    nights: Counts  # behind the level


class Memory:
    """The accepted nights of each series, newest first, and which of them lie on its present level.

    ``values[s, :level_nights[s]]`` are logarithms on the present level; what follows, up to ``nights[s]``, are
    residuals of nights on earlier levels: they still tell the noise.
    """

    def __init__(self, series: int, parameters: Parameters) -> None:
        self.parameters = parameters
        self.values: Floats = np.full((series, parameters.memory), np.nan)
        self.nights: Counts = np.zeros(series, dtype=np.int64)
        self.level_nights: Counts = np.zeros(series, dtype=np.int64)

    def add(self, who: Flags, values: Floats) -> None:
        """Accept one more night for the series flagged in ``who``; (series,) arrays."""
        if who.any():
            self.values[who, 1:] = self.values[who, :-1]
            self.values[who, 0] = values[who]
            most = self.parameters.memory
            self.nights[who] = np.minimum(self.nights[who] + 1, most)
            self.level_nights[who] = np.minimum(self.level_nights[who] + 1, most)

    def change_level(self, one: int, old_level: float) -> None:
        """The nights so far belong to an earlier level: of them only their scatter is kept."""
        self.values[one, : self.level_nights[one]] -= old_level
        self.level_nights[one] = 0

    def reference(self) -> Reference:
        """Level: mean of the window, far nights pulled in. Noise: spread of the whole memory, the same way."""
        trim = self.parameters.trim
        place = np.arange(self.parameters.memory)
        recent = np.minimum(self.level_nights, self.parameters.window)
        window = np.where(place < recent[:, None], self.values, np.nan)
        middle = medians(window, recent)
        on_level = place < self.level_nights[:, None]
        width = trim * _MAD * medians(np.abs(self._residuals(on_level, middle)), self.nights)[:, None]
        pulled = np.clip(window - middle[:, None], -width, width)
        level = middle + np.nan_to_num(pulled).sum(axis=1) / np.maximum(recent, 1)
        scatter = np.nan_to_num(np.clip(self._residuals(on_level, level), -width, width))
        variance = (scatter**2).sum(axis=1) / np.maximum(self.nights - 1, 1) / _kept_variance(trim)
        return Reference(level, np.maximum(np.sqrt(variance), self.parameters.quietest), recent)

    def _residuals(self, on_level: Flags, level: Floats) -> Floats:
        residuals: Floats = np.where(on_level, self.values - level[:, None], self.values)
        return residuals


def medians(rows: Floats, counts: Counts) -> Floats:
    """Median of each row's ``counts`` numbers, the others being NaN; NaN for an empty row."""
    ordered = np.sort(rows, axis=1)  # NaN goes last
    row, last = np.arange(len(rows)), np.maximum(counts, 1)
    middle: Floats = (ordered[row, (last - 1) // 2] + ordered[row, last // 2]) / 2
    return middle


def _kept_variance(trim: float) -> float:
    """Variance of standard normal noise whose values beyond ``trim`` are pulled in to it."""
    beyond = (1 - erf(trim / sqrt(2))) / 2
    density = exp(-(trim**2) / 2) / sqrt(2 * pi)
    return 1 - 2 * beyond - 2 * trim * density + 2 * trim**2 * beyond


def fleet_scatter(deviations: Floats, judged: Flags, parameters: Parameters) -> float:
    """How much more than usual all series of a machine scatter on a night; 1.0 if not more, or if too few tell.

    Both sides must: a regression that moves many series in one direction is no noisy night.
    """
    measured: Any = deviations[judged & np.isfinite(deviations)]
    if len(measured) < parameters.fleet:
        return 1.0
    low, high = np.quantile(measured, (0.16, 0.84))
    spread = float(min(high, -low))
    return min(spread, parameters.noisiest) if spread > parameters.noisy else 1.0
