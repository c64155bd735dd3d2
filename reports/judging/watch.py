"""The judgement itself: many series of one machine, followed night by night; arrays in, arrays out, nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from .few_nights import FewNights
from .parameters import Parameters
from .reference import Counts, Flags, Floats, Memory, Reference, fleet_scatter


@dataclass(frozen=True)
class Look:
    """What a night says, before anything is concluded from it; (series,) arrays."""

    reference: Reference
    evidence: Floats  # share of the alarm threshold that the best change in sight reaches; negative: faster
    span: Counts  # nights since that change
    off: Floats  # how far tonight lies from the level, in units of the noise
    scatter: float  # how much noisier than usual the whole night is
    early: Floats  # of a series with few nights: share of what makes it doubtful; else 0
    noise: Floats  # with which tonight is judged


@dataclass(frozen=True)
class Step:
    """What was concluded from a night; (series,) arrays."""

    look: Look
    present: Flags  # there was a number
    learning: Flags
    regressed: Flags  # a regression was confirmed tonight; ``look.span`` nights ago it began
    improved: Flags
    returned: Flags  # a confirmed regression is resolved tonight
    raised: Flags  # a confirmed regression stands, after tonight
    rank_p: Floats  # NaN where it was not asked


class Watch:
    """Follows series night by night. Numbers are logarithms of times or ratios; NaN: nothing was measured.

    An ordinary night waits in ``pending`` until it is as old as the longest span, and then joins the memory that later
    nights are compared with, so that a slow change does not become its own reference. A confirmed regression freezes
    the memory until it is resolved or accepted; an improvement becomes the new level at once.
    """

    def __init__(self, series: int, parameters: Parameters, *, pools: Counts | None = None) -> None:
        self.parameters = parameters
        self.memory = Memory(series, parameters)
        longest = parameters.longest
        self.pending: Floats = np.full((series, longest), np.nan)  # newest first
        self.scatters: Floats = np.ones((series, longest))  # of the nights in ``pending``
        self.waiting: Counts = np.zeros(series, dtype=np.int64)  # filled places of ``pending``
        self.raised: Flags = np.zeros(series, dtype=np.bool_)
        self.height: Floats = np.zeros(series)  # of the confirmed regression above the level; valid while raised
        self.few_nights = FewNights(np.zeros(series, dtype=np.int64) if pools is None else pools, parameters)

    def look(self, values: Floats, errors: Floats | None = None, reference: Reference | None = None) -> Look:
        """What these numbers would say; ``errors`` is what their blocks say of them. Changes nothing."""
        reference = reference or self.memory.reference()
        p = self.parameters
        judged = self.judged
        off = (values - reference.level) / reference.noise
        scatter = fleet_scatter(off, judged & ~self.raised, p)
        nights, scatters, filled = self._with(values, scatter)
        raw = (nights - reference.level[:, None]) / reference.noise[:, None]
        limited = np.clip(raw / scatters, -p.limit, p.limit)
        spans = np.array(p.spans)
        sums, raw_means = np.cumsum(limited, axis=1)[:, spans - 1], np.cumsum(raw, axis=1)[:, spans - 1] / spans
        strength = sums / np.sqrt(spans * (1 + spans / np.maximum(reference.nights, 1)[:, None]))
        share = strength / thresholds(p)[self.memory.nights]
        small = np.abs(raw_means) < np.maximum(p.floor / reference.noise[:, None], p.floor_noise)
        share = np.where(small, np.clip(share, -0.99, 0.99), share)
        share = np.where((spans <= filled[:, None]) & judged[:, None] & np.isfinite(share), share, 0.0)
        best = np.argmax(np.abs(share), axis=1)
        evidence = share[np.arange(len(best)), best]
        evidence = np.where(np.isfinite(values), evidence, 0.0)
        errors = _whole(errors, len(values))
        early = np.where(judged | self.raised, 0.0, self.few_nights.standing_out(values, errors))
        noise = np.where(judged, reference.noise, self.few_nights.noise(errors))
        span = np.where(early >= 1, 1, spans[best])
        return Look(reference, evidence, span, off / scatter, scatter, early, noise)

    def doubtful(self, look: Look) -> Flags:
        """Which series are to be measured again before anything is concluded."""
        p = self.parameters
        odd = (np.abs(look.off) >= p.odd) | (look.evidence >= p.doubt)
        return np.asarray(((odd & self.judged) | (look.early >= 1)) & ~self.raised)

    def take(
        self,
        values: Floats,
        errors: Floats | None = None,
        *,
        slower: Flags | None = None,
        reference: Reference | None = None,
    ) -> Step:
        """Conclude from a night. ``slower``: which were measured beside the code of an earlier night, and are slower;
        ``reference``: that of an earlier look at the same night.
        """
        look = self.look(values, errors, reference)
        present, judged = np.isfinite(values), self.judged
        rank_p = self._rank_p(values, look)
        sure = present & judged & ~self.raised & (np.abs(look.evidence) >= 1) & (rank_p <= self._rank_limit(look))
        doubtful = look.early >= 1
        early = doubtful & slower if slower is not None else np.zeros(len(values), dtype=np.bool_)
        regressed, improved = (sure & (look.evidence > 0)) | early, sure & (look.evidence < 0)
        nights, scatters, filled = self._with(values, look.scatter)
        self.few_nights.add(present & ~judged & ~early & ~self.raised, values, _whole(errors, len(values)))
        self._keep_ordinary(present & ~sure & ~early & ~self.raised, judged, look, nights, scatters, filled)
        for one in np.flatnonzero(regressed | improved):
            self._found(int(one), int(look.span[one]), look, nights, scatters, filled, accept=bool(improved[one]))
        standing = self.raised & ~regressed & present
        self._shift(standing, nights, scatters, filled)
        returned = standing & self._is_back(look.reference)
        for one in np.flatnonzero(returned):
            self._drop_all_but(int(one), self.parameters.back)
        self.raised &= ~returned
        said = np.where(early, 1.0, np.where(doubtful, self.parameters.suspect, look.evidence))
        look = replace(look, evidence=said)
        learning = present & ~judged & ~doubtful & ~self.raised
        return Step(look, present, learning, regressed, improved, returned, self.raised.copy(), rank_p)

    def accept(self, one: int) -> None:
        """Somebody has acknowledged the confirmed regression of this series: its level is the one to compare with."""
        if self.raised[one]:
            self._accept(one, float(self.memory.reference().level[one]))
            self.raised[one] = False

    # -- what is in sight

    @property
    def judged(self) -> Flags:
        """Which have nights enough to be judged by them alone."""
        return np.asarray(self.memory.nights >= self.parameters.least)

    def _with(self, values: Floats, scatter: float) -> tuple[Floats, Floats, Counts]:
        """``pending``, its scatters and its filled places, as they would be with tonight at the front."""
        nights = np.concatenate([values[:, None], self.pending[:, :-1]], axis=1)
        scatters = np.concatenate([np.full((len(values), 1), scatter), self.scatters[:, :-1]], axis=1)
        return nights, scatters, np.minimum(self.waiting + 1, self.parameters.longest)

    def _rank_p(self, values: Floats, look: Look) -> Floats:
        """Mann-Whitney of the nights since the change against the window before, where it can matter."""
        found = np.full(len(values), np.nan)
        for one in np.flatnonzero(np.abs(look.evidence) >= self.parameters.suspect):
            since = np.concatenate([values[one : one + 1], self.pending[one, : look.span[one] - 1]])
            before = self.memory.values[one, : look.reference.nights[one]]
            found[one] = rank_p(since, before, slower=bool(look.evidence[one] > 0))
        return found

    def _rank_limit(self, look: Look) -> Floats:
        from scipy.special import comb

        smallest = 1 / comb(look.reference.nights + look.span, look.span)
        return np.asarray(np.maximum(self.parameters.rank_limit, smallest * (1 + 1e-9)))

    # -- what is kept

    def _keep_ordinary(
        self, who: Flags, judged: Flags, look: Look, nights: Floats, scatters: Floats, filled: Counts
    ) -> None:
        """Nothing was found: tonight waits, and what has waited long enough is remembered."""
        p = self.parameters
        self.memory.add(who & ~judged, nights[:, 0])
        who = who & judged
        # a level of few nights is better known soon than late
        lag = np.clip(self.memory.level_nights - p.least, p.spans[1], p.longest)
        leaves = who & (self.waiting >= lag)
        row = np.arange(len(who))
        ahead = np.concatenate([nights[:, :1], self.pending], axis=1)[row, self.waiting]
        noise = np.concatenate([scatters[:, :1], self.scatters], axis=1)[row, self.waiting]
        calm = look.reference.level + (ahead - look.reference.level) / noise  # a noisy night says less
        self.memory.add(leaves, calm)
        self._shift(who, nights, scatters, np.where(leaves, self.waiting, filled))

    def _shift(self, who: Flags, nights: Floats, scatters: Floats, filled: Counts) -> None:
        self.pending[who], self.scatters[who], self.waiting[who] = nights[who], scatters[who], filled[who]
        self.pending[np.arange(self.parameters.longest) >= self.waiting[:, None]] = np.nan

    def _found(
        self, one: int, span: int, look: Look, nights: Floats, scatters: Floats, filled: Counts, *, accept: bool
    ) -> None:
        """A change was found: what lay before it is remembered, what came since waits, or is the new level."""
        flags = np.zeros(len(filled), dtype=np.bool_)
        flags[one] = True
        for value in nights[one, span : filled[one]][::-1]:
            self.memory.add(flags, np.full(len(filled), value))
        self._shift(flags, nights, scatters, filled)
        self._drop_all_but(one, span)
        level = float(look.reference.level[one])
        if accept:
            self._accept(one, level)
        else:
            self.raised[one] = True
            self.height[one] = float(np.median(nights[one, :span])) - level

    def _accept(self, one: int, old_level: float) -> None:
        """The nights in ``pending`` are a new level."""
        self.memory.change_level(one, old_level)
        flags = np.zeros(len(self.waiting), dtype=np.bool_)
        flags[one] = True
        for value in self.pending[one, : self.waiting[one]][::-1]:
            self.memory.add(flags, np.full(len(flags), value))
        self.few_nights.restart(one)
        self._drop_all_but(one, 0)

    def _drop_all_but(self, one: int, newest: int) -> None:
        self.waiting[one] = min(newest, self.waiting[one])
        self.pending[one, self.waiting[one] :] = np.nan

    def _is_back(self, reference: Reference) -> Flags:
        """Whether the median of the last nights is nearer to the old level than to the regression."""
        back = self.parameters.back
        newest = np.nan_to_num(self.pending[:, :back], nan=np.inf)
        return np.asarray((self.waiting >= back) & (np.median(newest, axis=1) < reference.level + self.height / 2))


def _whole(errors: Floats | None, series: int) -> Floats:
    return np.full(series, np.nan) if errors is None else errors


@cache
def thresholds(parameters: Parameters) -> Floats:
    """[nights in the memory, span]: the least strength that alarms."""
    from scipy.special import stdtrit

    nights = np.arange(parameters.memory + 1)[:, None]
    thresholds: Floats = -stdtrit(np.maximum(nights * parameters.freedom, 1), np.array(parameters.risks)[None, :])
    return thresholds


def rank_p(since: Floats, before: Floats, *, slower: bool) -> float:
    """One-sided p of the Mann-Whitney test that the nights since a change are slower (or faster) than those before."""
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(since, before, alternative="greater" if slower else "less").pvalue)
