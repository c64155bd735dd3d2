"""The numbers that decide whether a change is one: a single frozen value, told on the page and with each record."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameters:
    """How nights are judged. The defaults were found with ``make judge-power``; change one, and measure again.

    "Noise" is always the series' own: how far its nights usually lie apart, robustly estimated, as a fraction.
    """

    window: int = 40  # nights whose mean is the level that tonight is compared with
    memory: int = 120  # nights that the noise is estimated from, across earlier changes of level
    least: int = 10  # nights without which nothing is judged (but see ``early``)
    spans: tuple[int, ...] = (2, 3, 5, 8, 13, 21)  # a change is looked for in the last so many nights
    # how often chance alone may pass for a change, for each of the spans (one side, Student's t)
    risks: tuple[float, ...] = (3e-5, 1.3e-4, 3e-5, 3e-5, 3e-5, 3e-5)
    freedom: float = 2.0  # degrees of freedom for each night of the memory; above 1 because single nights are limited
    limit: float = 2.8  # a single night counts at most as so many times the noise: one outlier can never alarm
    trim: float = 2.0  # nights farther off count as so far when level and noise are estimated
    quietest: float = 0.004  # no series is taken to be less noisy than this
    floor: float = 0.02  # smaller effects never alarm …
    floor_noise: float = 0.7  # … nor do those below so many times the noise
    rank_limit: float = 0.01  # p of the Mann-Whitney test, of the nights since the change against the window before;
    # where so few nights cannot give that p, they must be apart without exception
    suspect: float = 0.7  # share of the alarm threshold from which a series is called new
    doubt: float = 0.45  # share of the alarm threshold from which it is measured again in the same night
    odd: float = 2.2  # a night that lies off by so many times the noise is measured again, too
    again: int = 3  # times; the night then counts with the median of all its measurements
    back: int = 3  # nights whose median must be nearer to the old level for a regression to be resolved
    shown: int = 14  # nights for which resolved and improved are shown
    fleet: int = 8  # series of a machine that must agree that a night is noisy as a whole
    noisy: float = 1.3  # … and by how much more than usual they must scatter, to both sides
    noisiest: float = 4.0  # a night weighs no less than one that scatters by so much
    # Before ``least`` nights only a ratio can alarm, and only beside the code of an earlier night (see few_nights.py).
    early: float = 0.05  # smaller effects never do
    early_nights: int = 2  # without which nothing stands out
    early_off: float = 2.3  # so many times the noise above the nights so far is a doubt …
    early_apart: float = 3.5  # … and so many times their error must the repetitions of the two codes lie apart
    early_again: int = 4  # repetitions of each of the two
    early_pool: int = 8  # nights that all ratios together count, where a series' own noise is estimated
    early_least: float = 0.01  # no series' nights, and no repetitions, are taken to scatter less
    reference: str = "torch"  # the subject whose time the others are divided by, where both ran interleaved

    def __post_init__(self) -> None:
        if len(self.spans) != len(self.risks) or list(self.spans) != sorted(set(self.spans)) or self.spans[0] < 2:
            raise ValueError("spans must rise from at least 2, with one risk for each; a single night never decides")
        if not 2 <= self.early_nights <= self.least <= self.window <= self.memory:
            raise ValueError("nights must satisfy 2 <= early_nights <= least <= window <= memory")

    @property
    def longest(self) -> int:
        return self.spans[-1]

    def sentences(self) -> tuple[str, ...]:
        """The parameters in words, for where verdicts are shown."""
        spans = ", ".join(map(str, self.spans))
        risks = ", ".join(f"{risk:g}" for risk in self.risks)
        return (
            f"The last {spans} nights are compared with the {self.window} before (at least {self.least}), "
            f"noise estimated from {self.memory}.",
            f"Alarm if chance alone does as much with a probability below {risks} for these spans (Student's t, "
            f"nights beyond {self.limit:g} times the noise count as {self.limit:g}),",
            f"and by Mann-Whitney with p at most {self.rank_limit:g}, and the effect is at least {self.floor:.0%} "
            f"and {self.floor_noise:g} times the noise.",
            f"From {self.doubt:.0%} of the threshold on, or {self.odd:g} times the noise off, a series is measured "
            f"{self.again} times more; the median counts.",
            f"From {self.suspect:.0%} of the threshold on a series is called new; it is resolved when the median "
            f"of {self.back} nights is nearer to the old level.",
            f"With {self.early_nights} to {self.least - 1} nights, a ratio to {self.reference} that stands "
            f"{self.early:.0%} and {self.early_off:g} times its noise above them is measured {self.early_again} times "
            "more, in turns with the code of the first of these nights",
            f"(noise: its own, and that of all such ratios as if it were {self.early_pool} nights). Alarm if it is "
            f"slower than that code without exception, by {self.early:.0%} and {self.early_apart:g} times the error of "
            "the repetitions; without that code it waits for more nights.",
        )


DEFAULT = Parameters()
