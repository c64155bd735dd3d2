"""Machines with few nights and known truth, replayed through the real judgement: what it finds, what it makes up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..judging.few_nights import PairedRun, slower
from ..judging.judge import clustered
from ..judging.nights import Measured
from ..judging.parameters import Parameters
from ..judging.reference import Counts, Flags, Floats
from ..judging.watch import Watch

_MAD, _OF_MEDIAN = 1.4826, np.sqrt(np.pi / 2)


@dataclass(frozen=True)
class FewNightsModel:
    """What the machines are like. Noise is a fraction; each series has its own, so ``unequal`` in its logarithm."""

    machines: int = 400
    ratios: int = 16  # on each machine
    blocks: int = 20  # of one run of a cell …
    error: float = 0.025  # … and the error of their median
    starts: float = 0.012  # noise that every start of the ranks draws anew
    nightly: float = 0.015  # noise of a night, whatever code is measured and how often
    unequal: float = 0.5
    heavy: bool = False  # Student's t with 4 degrees of freedom instead of normal noise
    wander: float = 0.0  # correlation of a night's noise with that of the night before
    outliers: float = 0.01  # share of a series' nights that lie 10 to 40 % off, whatever code is measured …
    strays: float = 0.01  # … and of single runs of a cell that do
    noisy: float = 0.02  # share of nights on which everything scatters 2.5 times as much
    step: float = 0.0  # a slow-down of the code, in an eighth of the series, on the third night


@dataclass(frozen=True)
class FewNightsFigures:
    """What was said of such machines."""

    verdicts: int
    false: int
    rate: float
    low: float
    high: float
    again: float  # share of verdicts for which the series was measured again beside the earlier code
    found: tuple[float, ...]  # share of the slow-downs found on the third night, by the fourth, by the fifth
    detectable: float  # what the judgement itself says that it finds nine times of ten, half of the series


class _Machine:
    """One machine; every call measures something anew."""

    def __init__(self, world: FewNightsModel, random: np.random.Generator) -> None:
        self.world, self.random = world, random
        usual = np.array([[world.error], [world.starts], [world.nightly]])
        own = usual * np.exp(world.unequal * random.normal(size=(3, world.ratios)))
        self.error, self.starts, self.nightly = own
        self.night = np.zeros(world.ratios)
        self.scatter = 1.0
        self.drawn = self._noise(world.ratios)
        self.steps = np.where(np.arange(world.ratios) < world.ratios // 8, np.log1p(world.step), 0.0)

    def dawn(self) -> None:
        """Another night begins."""
        world = self.world
        self.drawn = world.wander * self.drawn + np.sqrt(1 - world.wander**2) * self._noise(world.ratios)
        self.scatter = 2.5 if self.random.random() < world.noisy else 1.0
        self.night = self.nightly * self.scatter * self.drawn + self._off(world.outliers)

    def run(self, *, slow: bool) -> Floats:
        """Logarithms of the blocks of one run, (series, blocks)."""
        world = self.world
        middle = self.night + self.scatter * self.starts * self._noise(world.ratios) + self._off(world.strays)
        spread = self.scatter * self.error * np.sqrt(world.blocks) / _OF_MEDIAN
        level = (middle + self.steps * slow)[:, None]
        return np.asarray(level + spread[:, None] * self._noise((world.ratios, world.blocks)))

    def _noise(self, shape: int | tuple[int, int]) -> Floats:
        random = self.random
        drawn = random.standard_t(4, shape) / np.sqrt(2) if self.world.heavy else random.normal(size=shape)
        return np.asarray(drawn)

    def _off(self, share: float) -> Floats:
        size, random = self.world.ratios, self.random
        sign = np.where(random.random(size) < 0.75, 1, -1)
        return np.asarray((random.random(size) < share) * np.log1p(random.uniform(0.1, 0.4, size)) * sign)


def replayed(world: FewNightsModel, seed: int, parameters: Parameters) -> FewNightsFigures:
    """Replay the first nights of all machines."""
    random = np.random.default_rng(seed)
    verdicts, false, again = [0] * world.machines, [0] * world.machines, 0
    found: Counts = np.zeros(3, dtype=np.int64)
    sizes: list[float] = []
    for number in range(world.machines):
        machine = _Machine(world, random)
        changed = machine.steps > 0
        known = np.zeros(world.ratios, dtype=np.bool_)
        for night, (judged, doubtful, regressed, least) in enumerate(_nights(machine, parameters)):
            verdicts[number] += int((judged & ~changed).sum())
            again += int((doubtful & ~changed).sum())
            false[number] += int((regressed & ~changed).sum())
            sizes += least[np.isfinite(least)].tolist() if night == 2 else []
            known |= regressed
            if 2 <= night < 5:
                found[night - 2] += int((known & changed).sum())
    changes = max(1, world.machines * int(world.ratios // 8))
    low, high = clustered(false, verdicts)  # a machine's ratios share its nights
    shares = tuple(float(count) / changes for count in found) if world.step else ()
    whole = max(1, sum(verdicts))
    return FewNightsFigures(sum(verdicts), sum(false), sum(false) / whole, low, high, again / whole, shares,
                float(np.median(sizes)))  # fmt: skip


def _nights(machine: _Machine, parameters: Parameters) -> Iterator[tuple[Flags, Flags, Flags, Floats]]:
    """Night by night: which were judged, doubtful, confirmed, and what could have been found."""
    series = machine.world.ratios
    watch = Watch(series, parameters, pools=np.ones(series, dtype=np.int64))
    for night in range(parameters.least):
        machine.dawn()
        slow = night >= parameters.early_nights
        runs = [machine.run(slow=slow)]
        values, errors = _summed(runs)
        judged = (watch.few_nights.nights >= parameters.early_nights) & ~watch.raised
        least = watch.few_nights.detectable(errors)
        doubtful = watch.doubtful(watch.look(values, errors))
        if not doubtful.any():
            values, errors = _summed([*runs, machine.run(slow=slow)])
            step = watch.take(values, errors)
        else:
            now = [machine.run(slow=slow) for _ in range(parameters.early_again)]
            before = [machine.run(slow=False) for _ in range(parameters.early_again)]
            more, finer = _summed([*runs, *now])
            values, errors = np.where(doubtful, more, values), np.where(doubtful, finer, errors)
            step = watch.take(values, errors, slower=_slower(doubtful, now, before, parameters))
        yield judged, doubtful, step.regressed, least


def _slower(doubtful: Flags, now: list[Floats], before: list[Floats], parameters: Parameters) -> Flags:
    found = np.zeros(len(doubtful), dtype=np.bool_)
    for one in np.flatnonzero(doubtful):
        beside = PairedRun(_measured([run[one] for run in now]), _measured([run[one] for run in before]), "")
        found[one] = slower(beside, parameters)
    return found


def _measured(runs: list[Floats]) -> Measured:
    blocks = tuple(np.exp(np.concatenate(runs)).tolist())
    return Measured(blocks, tuple(float(np.exp(np.median(run))) for run in runs), "", "ok", "")


def _summed(runs: list[Floats]) -> tuple[Floats, Floats]:
    """Values and errors, as the judgement makes them from blocks."""
    values = np.median([np.median(run, axis=1) for run in runs], axis=0)
    blocks = np.concatenate(runs, axis=1)
    apart = np.abs(blocks - np.median(blocks, axis=1, keepdims=True))
    return values, _OF_MEDIAN * _MAD * np.median(apart, axis=1) / np.sqrt(blocks.shape[1])


def models(machines: int) -> dict[str, FewNightsModel]:
    """The machines that are judged."""
    usual = FewNightsModel(machines=machines)
    return {
        "nothing changes": usual,
        "nothing changes, heavy tails": replace(usual, heavy=True),
        "nothing changes, series far from equal": replace(usual, unequal=1.0),
        "nothing changes, nights 4 % apart": replace(usual, nightly=0.04),
        "nothing changes, a night takes after the one before (0.3)": replace(usual, wander=0.3),
        "15 % slower from the third night on": replace(usual, step=0.15),
        "15 % slower from the third night on, blocks half as noisy": replace(usual, step=0.15, error=0.0125),
    }


def words(one: FewNightsFigures) -> str:
    line = f"false {one.false:3d} of {one.verdicts} verdicts: {one.rate:.1e} [{one.low:.1e}, {one.high:.1e}]; "
    line += f"measured again {one.again:.1%}; said to be found: {one.detectable:.0%}"
    if one.found:
        line += "; found " + ", ".join(f"{share:.0%} by night {3 + at}" for at, share in enumerate(one.found))
    return line
