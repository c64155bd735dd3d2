"""A simulated year with known truth: what each series would have measured on each night, and what really changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..judging.reference import Counts, Flags, Floats

_SLOW = 0.98  # correlation of a slow drift with the night before: it takes weeks
_STRETCH = 5  # nights that recorded noise is taken in a row


@dataclass(frozen=True)
class World:
    """What a simulated machine is like. Noise is that of a night's value, as a fraction (0.03 is 3 %)."""

    series: int = 1000
    nights: int = 365
    noise: float = 0.03
    lasting: float = 0.5  # share of the noise's variance that measuring again in the same night meets again
    outliers: float = 0.01  # share of a series' nights that lie 10 to 40 % off, three of four of them slow
    curable: float = 0.5  # share of the outliers that are gone when measured again
    noisy: float = 0.02  # share of nights on which everything scatters 2.5 times as much
    heavy: bool = False  # Student's t with 4 degrees of freedom instead of normal noise
    wander: float = 0.0  # correlation of a night's noise with that of the night before
    missed: float = 0.03  # share of nights without any measurement
    step: float = 0.0  # a slow-down of each series on a night of its own: 0.1 is 10 %
    drift: float = 0.0  # the slow-down comes over so many nights instead of at once; 0: at once
    earliest: int = 30  # no change comes before this night …
    latest: int = 30  # … nor in so many last nights
    other_machine: int = 0  # from this night on everything runs on another machine, 20 % faster; 0: never
    # What the parameters were not tuned on; 0 or empty: none of it.
    recorded: tuple[tuple[float, ...], ...] = ()  # standard noise as it was measured, series by series
    unequal: float = 0.0  # each series has its own noise, so unequal in its logarithm
    common: float = 0.0  # share of a night's variance that all series have in common
    slow: float = 0.0  # the level drifts to and fro, so many times the noise, over weeks
    burst: float = 1.0  # nights that an outlier lasts, in the mean

    @property
    def words(self) -> str:
        lasting = f"{self.lasting:.0%} of it shared by a rerun"
        return f"noise {self.noise:.0%} ({lasting}), outliers {self.outliers:.0%}, noisy nights {self.noisy:.0%}"


@dataclass(frozen=True)
class Year:
    """Logarithms of what was measured; (series, nights) arrays, NaN where nothing was."""

    world: World
    first: Floats
    again: Floats  # (times, series, nights): what measuring again would give
    begins: Counts  # (series,): the night on which the change begins; the number of nights if there is none
    extra: dict[str, Any] = field(default_factory=dict)

    def before(self) -> Flags:
        """(series, nights): the nights on which nothing has changed yet."""
        return np.asarray(np.arange(self.world.nights) < self.begins[:, None])


def year(world: World, seed: int, again: int) -> Year:
    """Draw a year. The same seed gives the same year."""
    random = np.random.default_rng(seed)
    shape = (world.series, world.nights)
    lasting = np.sqrt(world.lasting) * world.noise * _wandering(_noise(random, shape, world), world.wander)
    spread = np.where(random.random(world.nights) < world.noisy, 2.5, 1.0)
    sign = np.where(random.random(shape) < 0.75, 1, -1)
    off = (random.random(shape) < world.outliers) * random.uniform(0.1, 0.4, shape) * sign
    stays = random.random(shape) >= world.curable
    begins = random.integers(world.earliest, world.nights - world.latest, world.series)
    begins = begins if world.step else np.full(world.series, world.nights)
    change = np.log1p(world.step) * _risen(np.arange(world.nights) - begins[:, None], world.drift)
    missed = random.random(world.nights) < world.missed
    size: Floats = np.ones((world.series, 1))
    if world.unequal:
        size = np.exp(world.unequal * random.normal(size=size.shape))
    if world.common:
        together = world.noise * _wandering(random.normal(size=(1, world.nights)), world.wander)
        lasting = np.sqrt(1 - world.common) * lasting + np.sqrt(world.common * world.lasting) * together
    if world.slow:
        lasting = lasting + world.slow * world.noise * _wandering(random.normal(size=shape), _SLOW)
    if world.burst > 1:
        off, stays = _lasting(random, off, stays, world.burst)

    def measured(outliers: Floats) -> Floats:
        fresh = np.sqrt(1 - world.lasting) * world.noise * _noise(random, shape, world)
        values: Floats = size * (lasting + fresh) * spread + np.log1p(np.abs(outliers)) * np.sign(outliers) + change
        values[:, missed] = np.nan
        return values

    first = measured(off)
    more = np.stack([measured(off * stays) for _ in range(again)])
    if world.other_machine:
        first[:, world.other_machine :] += np.log(0.8)
        more[:, :, world.other_machine :] += np.log(0.8)
    return Year(world, first, more, begins)


def _noise(random: np.random.Generator, shape: tuple[int, int], world: World) -> Floats:
    """Standard noise: variance 1."""
    if world.recorded:
        return _resampled(random, shape, world.recorded)
    return random.standard_t(4, shape) / np.sqrt(2) if world.heavy else random.normal(size=shape)


def _resampled(random: np.random.Generator, shape: tuple[int, int], recorded: Sequence[Sequence[float]]) -> Floats:
    """Each series takes one that was recorded, in stretches of some nights: tails and order are those measured."""
    found: Floats = np.empty(shape)
    for one in range(shape[0]):
        source = np.asarray(recorded[int(random.integers(len(recorded)))])
        starts = random.integers(len(source), size=-(-shape[1] // _STRETCH))
        places = (starts[:, None] + np.arange(_STRETCH)).ravel()[: shape[1]] % len(source)
        found[one] = source[places]
    return found


def _lasting(random: np.random.Generator, off: Floats, stays: Flags, nights: float) -> tuple[Floats, Flags]:
    """Outliers that last for some nights, whatever is measured again."""
    off, stays = off.copy(), stays.copy()
    for one, night in np.argwhere(off):
        end = night + int(random.geometric(1 / nights))
        off[one, night:end], stays[one, night:end] = off[one, night], stays[one, night]
    return off, stays


def _wandering(noise: Floats, correlation: float) -> Floats:
    """The same, each night correlated with the one before."""
    for night in range(1, noise.shape[1] if correlation else 0):
        noise[:, night] = correlation * noise[:, night - 1] + np.sqrt(1 - correlation**2) * noise[:, night]
    return noise


def _risen(since: NDArray[np.int64], nights: float) -> Floats:
    """How much of a change is there so many nights since it began."""
    risen: Floats = np.clip((since + 1) / nights, 0, 1) if nights else (since >= 0).astype(np.float64)
    return risen
