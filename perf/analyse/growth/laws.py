"""Fits a law of growth to a few points: none, a + b log x, a + b x, a + b x^k; says where a series departs from one.

Of the laws that the points' own errors allow, the one with the best corrected Akaike score is chosen, which charges
for every coefficient, and the more the fewer points there are. Residuals below those errors count as the
errors, so a law cannot win by following noise. Where no law is allowed, the one that misses least is named.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

NONE, LOG, LINEAR, POWER = "none", "log", "linear", "power"
LEVEL = 0.95
_ALONE = 0.02  # every point is from a group of its own, whose processes are by so much faster or slower as a whole
_INDISTINCT = 2.0  # scores nearer than this do not tell laws apart
_BLUNT = 0.2  # of the measured times: where half of the points are known no better, no law can be told
_FEWEST = 5  # points: with fewer only "does not grow" could be chosen, whatever they show
_ALLOWED = 4.0  # errors between points and law, in the quadratic mean: those of few rounds are often understated
_STRICT = 0.99  # of the prediction that a departing point lies above
_EXPONENTS = (0.2, 4.0)


@dataclass(frozen=True)
class Point:
    """A cost ``y`` at ``x``, and its standard error. ``level`` is the time that was measured, of which it is a part."""

    x: float
    y: float
    error: float
    level: float = 0.0  # 0: the cost is all that was measured

    @property
    def sigma(self) -> float:
        """With what groups differ by as a whole."""
        return max(math.hypot(self.error, _ALONE * abs(self.y)), 1e-12)


def _none(x: Any, a: float) -> Any:
    return a + 0 * x


def _log(x: Any, a: float, b: float) -> Any:
    import numpy as np

    return a + b * np.log(x)


def _linear(x: Any, a: float, b: float) -> Any:
    return a + b * x


def _power(x: Any, a: float, b: float, k: float) -> Any:
    return a + b * x**k


_LAWS: dict[str, Callable[..., Any]] = {NONE: _none, LOG: _log, LINEAR: _linear, POWER: _power}
_NAMES = ("a", "b", "k")


@dataclass(frozen=True)
class Fit:
    """A law with its coefficients (a, b, k), each with a 95 % interval.

    ``miss`` is how far the points lie from it, as a share of what their errors allow: at most 1 if it may be the law.
    Of ``score`` the lower is the better.
    """

    kind: str
    values: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]
    score: float
    miss: float

    def __call__(self, x: Any) -> Any:
        return _LAWS[self.kind](x, *self.values)

    @property
    def order(self) -> float:
        """By which laws are compared: how fast they grow in the end."""
        return {NONE: 0.0, LOG: 0.1, LINEAR: 1.0}.get(self.kind, self.values[-1])

    def __str__(self) -> str:
        said = [f"{value:.3g} [{low:.3g}, {high:.3g}]"
                for value, (low, high) in zip(self.values, self.intervals, strict=True)]  # fmt: skip
        patterns = {NONE: "{}", LOG: "{} + {} log x", LINEAR: "{} + {} x", POWER: "{} + {} x^{}"}
        return patterns[self.kind].format(*said).replace("+ -", "- ")


def pooled(points: Sequence[Point]) -> list[Point]:
    """The points, none with a smaller error, as a share of its level, than half of them have.

    A few rounds can agree by luck, and such a point would decide the law alone.
    """
    usual = _usual(points)
    return [replace(point, error=max(point.error, usual * _level(point))) for point in points]


def _level(point: Point) -> float:
    return max(point.level, abs(point.y))


def _usual(points: Sequence[Point]) -> float:
    """The median error, as a share of its level."""
    return statistics.median([point.error / _level(point) for point in points if _level(point)] or [0.0])


def fits(points: Sequence[Point]) -> list[Fit]:
    """Every law that so many points can decide, the best first; none where they could decide no growth."""
    if len(points) < _FEWEST:
        return []
    points = pooled(points)
    positive = all(point.x > 0 for point in points)
    found = [_fit(kind, points) for kind in _LAWS if kind != LOG or positive]
    return sorted((fit for fit in found if fit is not None), key=lambda fit: (max(fit.miss, 1.0), fit.score))


def best(points: Sequence[Point]) -> Fit | None:
    """The law that is chosen; None where there are too few points for any."""
    return next(iter(fits(points)), None)


def _fit(kind: str, points: Sequence[Point]) -> Fit | None:
    import numpy as np
    from scipy.optimize import curve_fit
    from scipy.stats import t

    count = len(_NAMES[: {NONE: 1, LOG: 2, LINEAR: 2, POWER: 3}[kind]])
    free = len(points) - count - 2  # for the scatter, and for the correction to mean something
    if free < 1:
        return None
    x, y, sigma = (np.array([getattr(point, name) for point in points]) for name in ("x", "y", "sigma"))
    law = _LAWS[kind]
    start, bounds = _start(kind, x, y, sigma)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a covariance that cannot be told: its interval is infinite
            values, spread = curve_fit(
                law, x, y, p0=start, sigma=sigma, absolute_sigma=True, bounds=bounds, method="trf",
                x_scale=[max(abs(one), 1e-9) for one in start],
            )  # fmt: skip
    except (RuntimeError, ValueError):
        return None
    chi = float((((y - law(x, *values)) / sigma) ** 2).sum())
    wide = t.ppf((1 + LEVEL) / 2, len(points) - count) * math.sqrt(max(1.0, chi / (len(points) - count)))
    half = [wide * math.sqrt(each) if each >= 0 else math.inf for each in np.diag(spread)]
    all_free = count + 1
    score = len(points) * math.log(max(1.0, chi / len(points))) + 2 * all_free + 2 * all_free * (all_free + 1) / free
    ends = tuple((float(value - by), float(value + by)) for value, by in zip(values, half, strict=True))
    miss = math.sqrt(chi / (len(points) - count)) / _ALLOWED
    return Fit(kind, tuple(map(float, values)), ends, score, miss)


def _start(kind: str, x: Any, y: Any, sigma: Any) -> tuple[list[float], Any]:
    """Where the search begins, and its bounds: the best straight fit, for a power over a grid of exponents."""
    import numpy as np

    if kind == NONE:
        return [float(np.average(y, weights=1 / sigma**2))], (-np.inf, np.inf)
    if kind != POWER:
        return _straight(np.log(x) if kind == LOG else x, y, sigma)[0], (-np.inf, np.inf)
    tried = [(_straight(x**k, y, sigma), float(k)) for k in np.linspace(*_EXPONENTS, 39)]
    (values, _), exponent = min(tried, key=lambda one: one[0][1])
    inside = min(max(exponent, _EXPONENTS[0] + 0.01), _EXPONENTS[1] - 0.01)
    return [*values, inside], ([-np.inf, -np.inf, _EXPONENTS[0]], [np.inf, np.inf, _EXPONENTS[1]])


def _straight(x: Any, y: Any, sigma: Any) -> tuple[list[float], float]:
    """a and b of the weighted straight line, and what is left."""
    import numpy as np

    design = np.stack([np.ones_like(x), x], axis=1) / sigma[:, None]
    values, *_ = np.linalg.lstsq(design, y / sigma, rcond=None)
    return [float(each) for each in values], float(((y / sigma - design @ values) ** 2).sum())


# -- fitted and expected


def said(points: Sequence[Point], expected: str) -> str:
    """Whether a series grows as it should."""
    found = fits(points)
    if not found:
        return "too few points"
    if _usual(points) > _BLUNT:
        return "cannot tell: too few rounds"
    chosen = found[0]
    wanted = next((fit for fit in found if fit.kind == expected), None)
    ends = float(chosen(points[0].x)), float(chosen(points[-1].x))
    if chosen.kind == expected or (wanted is not None and _indistinct(wanted, chosen)):
        return "as expected"
    if chosen.kind == NONE:
        return "does not grow"
    if ends[1] < ends[0]:
        return "falls"
    order = {NONE: 0.0, LOG: 0.1, LINEAR: 1.0}[expected]
    if chosen.order < order:
        return "grows slower than expected"
    at = departs(points, expected)
    return "grows faster than expected" + (f", from {at:g} on" if at is not None else "")


def _indistinct(one: Fit, chosen: Fit) -> bool:
    return one.miss <= 1.0 and one.score - chosen.score < _INDISTINCT


def departs(points: Sequence[Point], expected: str) -> float | None:
    """The first x at which a point lies above what the expected law, fitted to those before, predicts."""
    import numpy as np
    from scipy.stats import norm

    def columns(at: float) -> list[float]:
        return {NONE: [1.0], LOG: [1.0, math.log(at)] if at > 0 else [], LINEAR: [1.0, at]}[expected]

    points = pooled(points)
    for place in range(2 if expected == NONE else 3, len(points)):
        before, point = points[:place], points[place]
        design = np.array([columns(each.x) for each in before]) / np.array([[each.sigma] for each in before])
        spread = np.linalg.pinv(design.T @ design)
        values = spread @ design.T @ np.array([each.y / each.sigma for each in before])
        row = np.array(columns(point.x))
        slack = norm.ppf(_STRICT) * math.hypot(point.sigma, math.sqrt(row @ spread @ row))
        if point.y > row @ values + slack:
            return point.x
    return None
