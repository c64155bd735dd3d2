"""Judging while a series has few nights: what stands out is believed only beside the code of an earlier night.

Two or three nights say little about how far nights lie apart, and nothing about nights that are odd as a whole. So they
only raise a doubt. Then tonight's code and that of an earlier night are measured in turns: whatever the night does, it
does to both, and only the code is left to explain a difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median, variance

import numpy as np

from .nights import Measured
from .parameters import Parameters
from .reference import Counts, Flags, Floats


@dataclass(frozen=True)
class PairedRun:
    """One series on one night, measured in turns with tonight's code and with that of an earlier night."""

    now: Measured
    before: Measured
    commit: str  # of the code before


def slower(beside: PairedRun, parameters: Parameters) -> bool:
    """Whether tonight's code is slower: in every repetition, and by far more than repetitions and blocks scatter."""
    now, before = np.log(beside.now.attempts), np.log(beside.before.attempts)
    if min(len(now), len(before)) < parameters.early_again or now.min() <= before.max():
        return False
    apart = median(now) - median(before)
    among = variance(now) / len(now) + variance(before) / len(before)
    within = beside.now.error**2 + beside.before.error**2
    least = parameters.early_least**2 * (1 / len(now) + 1 / len(before))
    error = np.sqrt(max(among, within, least))
    return bool(apart >= np.log1p(parameters.early) and apart >= parameters.early_apart * error)


class FewNights:
    """The first nights of each series. Values are logarithms; errors what their blocks say of them.

    Series with the same number in ``pools`` tell each other's noise; those with 0 are never judged on few nights.
    """

    def __init__(self, pools: Counts, parameters: Parameters) -> None:
        self.parameters, self.pools = parameters, pools
        shape = (len(pools), parameters.least)
        self.values: Floats = np.full(shape, np.nan)  # newest first
        self.errors: Floats = np.full(shape, np.nan)
        self.nights: Counts = np.zeros(len(pools), dtype=np.int64)

    def add(self, who: Flags, values: Floats, errors: Floats) -> None:
        """One more night for the series flagged in ``who``."""
        for store, new in ((self.values, values), (self.errors, errors)):
            store[who, 1:] = store[who, :-1]
            store[who, 0] = new[who]
        self.nights[who] = np.minimum(self.nights[who] + 1, self.parameters.least)

    def restart(self, one: int) -> None:
        """Its level is another one from now on."""
        self.values[one], self.errors[one], self.nights[one] = np.nan, np.nan, 0

    def noise(self, errors: Floats) -> Floats:
        """By how much a night with these errors lies off the nights so far by chance, over sqrt(1 + 1 / nights).

        How much more than their blocks say nights scatter is each series' own figure, drawn towards that of its pool
        as if this counted ``early_pool`` nights. NaN for a series that has too few nights.
        """
        noise: Floats = np.full(len(self.nights), np.nan)
        for pool in range(1, int(self.pools.max(initial=0)) + 1):
            known = (self.pools == pool) & (self.nights >= self.parameters.early_nights)
            if known.any():
                noise[known] = self._pooled(known, errors[known])
        return noise

    def _pooled(self, known: Flags, errors: Floats) -> Floats:
        p = self.parameters
        nights, squares = self.nights[known], self.errors[known] ** 2
        usual = np.nansum(squares, axis=1) / np.maximum(np.isfinite(squares).sum(axis=1), 1)
        known_own = np.isfinite(squares).any(axis=1)
        own = np.where(known_own, np.nanvar(self.values[known], axis=1, ddof=1) - usual, 0.0)
        free = nights - 1
        # series whose blocks scatter much can say little of what comes on top
        weights = np.where(known_own, free / (usual + p.early_least**2) ** 2, 0.0)
        pooled = max(float((weights * own).sum() / max(weights.sum(), 1e-300)), p.early_least**2)
        weight = np.minimum(p.early_pool, free.sum())
        between = (weight * pooled + free * np.maximum(own, 0)) / (weight + free)
        whole = errors**2 + np.nansum(squares, axis=1) / nights**2 + between * (1 + 1 / nights)
        return np.asarray(np.sqrt(whole / (1 + 1 / nights)))

    def standing_out(self, values: Floats, errors: Floats) -> Floats:
        """How far above the nights so far a ratio lies, as a share of what makes it doubtful; 0 if unknown."""
        p, height = self.parameters, self._height(values)
        reach = self.noise(errors) * np.sqrt(1 + 1 / np.maximum(self.nights, 1))
        share = np.minimum(height / np.log1p(p.early), height / (p.early_off * reach))
        return np.where(np.isfinite(share), share, 0.0)

    def detectable(self, errors: Floats) -> Floats:
        """The smallest slow-down, as a fraction, that is found in one night like this nine times of ten; or NaN."""
        p, often = self.parameters, 1.2816
        reach = self.noise(errors) * np.sqrt(1 + 1 / np.maximum(self.nights, 1))
        # repetitions are of few series: each of the two codes gets about twice the blocks that a night has
        beside = np.maximum(errors, p.early_least * np.sqrt(2 / p.early_again))
        return np.asarray(np.expm1(np.maximum((p.early_off + often) * reach, (p.early_apart + often) * beside)))

    def _height(self, values: Floats) -> Floats:
        sums = np.nansum(self.values, axis=1)
        return np.asarray(values - sums / np.maximum(self.nights, 1))
