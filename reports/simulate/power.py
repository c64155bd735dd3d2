"""``make judge-power``: what the judgement finds in simulated years with known truth, and how much it makes up."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..judging.dating import detectable
from ..judging.judge import clustered
from ..judging.parameters import DEFAULT, Parameters
from ..judging.watch import thresholds
from . import few_nights, recorded
from .replay import Replay, change_points, replay, threshold
from .year import World, Year, year

WITHIN = (1, 2, 3, 5, 10, 20, 40)  # nights with a measurement since the change began
_NIGHTS_OF_YEAR = 365.25
_FEW = 20  # series for the rivals that take seconds for each of them …
_FOR_FEW = ("nothing changes", "step of 10 %", "step of 5 %")  # … and the years that they are given

_HISTORY = 40  # series that are judged together, as those of one machine are; a kind of year has several such histories
_SERIES = 200  # series of the nightly job whose false alarms are told in words

TARGET_FALSE, TARGET_FOUND, TARGET_WITHIN = 1e-4, 0.90, 3
QUIET, UNLIKE, MEASURED = "nothing changes", "another generator: nothing changes", "recorded noise: nothing changes"
TAILS, CORRELATED, DRIFT = (f"{UNLIKE}, only {part}" for part in ("its tails", "its correlated nights", "its drift"))

Rule = Callable[[Year], Replay]


@dataclass(frozen=True)
class Scenario:
    """A kind of year, and what it is for."""

    name: str
    world: World


def scenarios(series: int) -> list[Scenario]:
    """The years that are judged; ``series`` in a history.

    The parameters were tuned on the first kinds. The last ones come from generators that nothing was tuned on.
    """
    usual = World(series=series)
    plain = replace(usual, outliers=0.0, noisy=0.0)
    unlike = World(series=series, noise=0.02, heavy=True, unequal=0.5, wander=0.4, common=0.3, slow=0.7, burst=1.5)
    noises = recorded.noises()
    found = [
        Scenario(QUIET, usual),
        Scenario("nothing changes, a rerun meets the same noise again", replace(usual, lasting=1.0)),
        Scenario("nothing changes, heavy tails", replace(usual, heavy=True)),
        Scenario("nothing changes, a night takes after the one before (0.3)", replace(usual, wander=0.3)),
        Scenario("nothing changes, but the machine is replaced", replace(usual, other_machine=180)),
        Scenario("step of 10 %, normal noise only", replace(plain, step=0.10)),
        Scenario("step of 10 %", replace(usual, step=0.10)),
        Scenario("step of 10 %, a rerun meets the same noise again", replace(usual, step=0.10, lasting=1.0)),
        Scenario("step of 5 %", replace(usual, step=0.05)),
        Scenario("step of 3 %", replace(usual, step=0.03)),
        Scenario("step of 3 % at 1 % noise", replace(usual, step=0.03, noise=0.01)),
        Scenario("drift of 10 % over 60 nights", replace(usual, step=0.10, drift=60.0)),
        Scenario(TAILS, replace(unlike, wander=0.0, common=0.0, slow=0.0)),
        Scenario(CORRELATED, World(series=series, noise=0.02, wander=0.4, common=0.3)),
        Scenario(DRIFT, World(series=series, noise=0.02, slow=0.7)),
        Scenario(UNLIKE, unlike),
        Scenario("another generator: step of 10 %", replace(unlike, step=0.10)),
    ]
    if noises:
        measured = replace(plain, recorded=noises, unequal=0.5)
        found.append(Scenario(MEASURED, measured))
        found.append(Scenario("recorded noise: step of 10 %", replace(measured, step=0.10)))
    return found


@dataclass(frozen=True)
class Figures:
    """What a rule made of a kind of year."""

    rule: str
    scenario: str
    verdicts: int  # while nothing had changed
    false: int  # regressions confirmed while nothing had changed
    false_gains: int
    rate: float  # false alarms for each verdict, with its 95 % interval: of histories, or of series if it is one
    low: float
    high: float
    per_year: float  # false alarms for each series and year
    found: dict[int, float]  # within so many nights -> share of the changes found; empty if there was none
    least_found: float  # and the lower end of the 95 % interval of that within ``TARGET_WITHIN``
    reruns: float  # share of verdicts for which the series was measured again
    dated: float | None  # share of the found changes whose first night is told within two nights


def figures(rule: str, scenario: str, *judged: Replay) -> Figures:
    """Of one or more histories."""
    verdicts, false, gains = (_counts(judged, name) for name in ("verdicts", "alarms", "gains"))
    low, high = clustered(false, verdicts)
    found = [_found(one) for one in judged]
    dated = [share for one in judged if (share := _dated(one)) is not None]
    whole, years = sum(verdicts), sum(verdicts) / _NIGHTS_OF_YEAR
    return Figures(
        rule, scenario, whole, sum(false), sum(gains), sum(false) / max(whole, 1), low, high,
        sum(false) / max(years, 1e-9), _mean(found), _least(found, judged[0].year.world.series),
        float(np.mean([one.reruns for one in judged])), float(np.mean(dated)) if dated else None,
    )  # fmt: skip


def _counts(judged: Sequence[Replay], name: str) -> list[int]:
    """While nothing had changed: by history, or by series where there is but one history."""
    by_series = [(getattr(one, name) & one.year.before()).sum(axis=1) for one in judged]
    return [int(count) for count in (by_series[0] if len(by_series) == 1 else map(np.sum, by_series))]


def _mean(found: Sequence[dict[int, float]]) -> dict[int, float]:
    return {within: float(np.mean([one[within] for one in found])) for within in found[0]}


def _least(found: Sequence[dict[int, float]], series: int) -> float:
    if not found[0]:
        return 0.0
    missed = [round((1 - one[TARGET_WITHIN]) * series) for one in found]
    return 1 - clustered(missed, [series] * len(found))[1]


def _found(judged: Replay) -> dict[int, float]:
    """A change that an alarm before it has claimed already counts as found only by an alarm after it began."""
    if not judged.year.world.step:
        return {}
    hits = dict.fromkeys(WITHIN, 0)
    for one, begin in enumerate(judged.year.begins):
        there = np.isfinite(judged.year.first[one, begin:])
        alarms = np.flatnonzero(judged.alarms[one, begin:][there])
        for within in WITHIN:
            hits[within] += bool(len(alarms) and alarms[0] < within)
    return {within: count / len(judged.year.begins) for within, count in hits.items()}


def _dated(judged: Replay) -> float | None:
    """How often the verdict's own date is right, for changes that come at once."""
    if not judged.year.world.step or judged.year.world.drift or not judged.spans.any():
        return None
    near = []
    for one, begin in enumerate(judged.year.begins):
        alarms = np.flatnonzero(judged.alarms[one, begin:]) + begin
        if len(alarms):
            there = np.flatnonzero(np.isfinite(judged.year.first[one, : alarms[0] + 1]))
            near.append(abs(int(there[-judged.spans[one, alarms[0]]]) - int(begin)) <= 2)
    return float(np.mean(near)) if near else None


def rules(parameters: Parameters) -> Iterator[tuple[str, Rule, int]]:
    """The judgement and its rivals, each with the most series that it is given."""
    yield "joinery", lambda drawn: replay(drawn, parameters), sys.maxsize
    yield "plain 10 % threshold", threshold, sys.maxsize
    if importlib.util.find_spec("ruptures") is not None:
        yield "ruptures, BIC", lambda drawn: change_points(drawn, lambda values: _kernel(values, 2.0)), _FEW
        yield "ruptures, strict", lambda drawn: change_points(drawn, lambda values: _kernel(values, 5.0)), _FEW


def _kernel(values: Any, weight: float) -> list[int]:
    """Exact search for changes of the mean; ``weight`` times variance times log n is the price of a change."""
    import ruptures  # type: ignore[import-not-found,unused-ignore]

    deviation = 1.4826 * np.median(np.abs(np.diff(values))) / np.sqrt(2)
    search = ruptures.KernelCPD(kernel="linear", min_size=2).fit(values[:, None])
    return [int(point) for point in search.predict(pen=weight * deviation**2 * np.log(len(values)))[:-1]]


def power(series: int, seed: int, out: Path | None, parameters: Parameters = DEFAULT) -> int:
    """Print the figures, and whether the target was met; returns the exit status."""
    for sentence in parameters.sentences():
        print(sentence)
    print(f"\nEvery year: {World().nights} nights, {World().words}, {World().missed:.0%} of nights missed.")
    print("Another generator: 2% noise, heavy tails, unequal, 30% of it common to all series, drifting over weeks,")
    print("nights correlated by 0.4, outliers that last. Recorded noise: that of rounds of the published record.")
    done: list[Figures] = []
    start = time.monotonic()
    each, histories = min(series, _HISTORY), max(1, round(series / _HISTORY))
    print(f"{histories * each} series: {histories} histor{'y' if histories == 1 else 'ies'} of {each}.\n")
    for scenario in scenarios(each):
        print(scenario.name)
        for name, rule, most in rules(parameters):
            if most < series and scenario.name not in _FOR_FEW:
                continue
            world, times = (scenario.world, histories) if most >= series else (replace(scenario.world, series=most), 1)
            judged = [rule(year(world, seed + number, parameters.again)) for number in range(times)]
            done.append(figures(name, scenario.name, *judged))
            print(f"  {name:22} {words(done[-1])}", flush=True)
    _detectable(parameters)
    few = _few_nights(max(10, series * 2 // 5), seed, parameters)
    _plain_words(done)
    met = _target(done, few)
    print(f"({time.monotonic() - start:.0f} s)")
    if out is not None:
        written = {"parameters": asdict(parameters), "series": series, "seed": seed}
        written |= {"figures": [asdict(each) for each in done], "few nights": {n: asdict(o) for n, o in few.items()}}
        out.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return 0 if met else 1


def words(row: Figures) -> str:
    """One line of the table."""
    line = f"false {row.false:5d} of {row.verdicts} verdicts: {row.rate:.1e} [{row.low:.1e}, {row.high:.1e}], "
    line += f"{row.per_year:.3f} a series and year"
    if row.found:
        line += "; found " + ", ".join(f"{share:.0%} in {within}" for within, share in row.found.items())
    line += f" (in {TARGET_WITHIN} at least {row.least_found:.0%})" if row.found else ""
    line += f"; dated within 2 nights {row.dated:.0%}" if row.dated is not None else ""
    return line + (f"; measured again {row.reruns:.0%}" if row.reruns else "")


def _plain_words(done: Sequence[Figures]) -> None:
    """False alarms as somebody meets them who runs the nightly job."""
    names = {
        QUIET: "the noise that it was tuned on", MEASURED: "noise as recorded", TAILS: "heavy tails, unequal series",
        CORRELATED: "correlated nights", DRIFT: "levels that drift by 1.4 % over weeks", UNLIKE: "all three together",
    }  # fmt: skip
    mine = {row.scenario: row for row in done if row.rule == "joinery"}
    print(f"\nIn plain words: false alarms to be expected in a year of {_SERIES} series for which nothing changes:")
    for scenario, words_ in names.items():
        if scenario in mine:
            row = mine[scenario]
            mean, low, high = (rate * _NIGHTS_OF_YEAR * _SERIES for rate in (row.rate, row.low, row.high))
            print(f"  {words_}: {mean:.1f} (95 %: {low:.1f} to {high:.1f}; from {row.false} in these years)")


def _detectable(parameters: Parameters) -> None:
    place = min(range(len(parameters.spans)), key=lambda at: abs(parameters.spans[at] - TARGET_WITHIN))
    limit = float(thresholds(parameters)[parameters.memory, place])
    sizes = (0.01, 0.02, 0.03, 0.05)
    limits = [f"{detectable(n, parameters.window, limit, parameters.spans[place]):.1%} at {n:.0%} noise" for n in sizes]
    print(f"\nsmallest slow-down found within {TARGET_WITHIN} nights nine times of ten: " + ", ".join(limits))


def _few_nights(machines: int, seed: int, parameters: Parameters) -> dict[str, few_nights.FewNightsFigures]:
    """The same for machines that have few nights yet."""
    world = few_nights.FewNightsModel()
    print(
        f"\nMachines with few nights: {world.ratios} ratios each, {parameters.least} nights, blocks of a run "
        f"{world.error:.1%} off, starts {world.starts:.1%}, nights {world.nightly:.1%}, series unequal; "
        f"{world.outliers:.0%} of a series' nights and {world.strays:.0%} of its runs are outliers.\n"
    )
    found = {}
    for name, one in few_nights.models(machines).items():
        found[name] = few_nights.replayed(one, seed, parameters)
        print(f"{name}\n  {few_nights.words(found[name])}", flush=True)
    return found


def _target(done: list[Figures], few: dict[str, few_nights.FewNightsFigures]) -> bool:
    """Say whether the target was met, by the figures of the real judgement."""
    mine = {row.scenario: row for row in done if row.rule == "joinery"}
    quiet, step = mine["nothing changes"], mine["step of 10 %"]
    found = step.found[TARGET_WITHIN]
    met = quiet.rate <= TARGET_FALSE and found >= TARGET_FOUND
    false, verdicts = sum(one.false for one in few.values()), sum(one.verdicts for one in few.values())
    met &= false <= TARGET_FALSE * verdicts
    print(
        f"target: at most {TARGET_FALSE:g} false alarms a verdict and {TARGET_FOUND:.0%} of 10 % steps within "
        f"{TARGET_WITHIN} nights; reached: {quiet.rate:.1e} and {found:.1%}; with few nights "
        f"{false} false of {verdicts}: {'met' if met else 'NOT met'} on the generator that it was tuned on"
    )
    elsewhere = [name for name in (MEASURED, TAILS, CORRELATED, DRIFT, UNLIKE) if name in mine]
    beyond = [name for name in elsewhere if mine[name].rate > TARGET_FALSE]
    print(f"more false alarms than that: {'; '.join(beyond) or 'none'} (of {len(elsewhere)} other kinds of year)")
    return met
