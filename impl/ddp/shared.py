"""What every rank knows alike of one model's reductions: the only ground for which collectives there are, and when.

A rank that has run out of inputs lives through no backward, but it shadows every reduction. So what decides about
collectives changes at the end of a reduction only, lived or shadowed, and where all ranks begin anew. What a rank finds
out in backwards of its own (``Usage``, ``Readiness``) decides what it contributes, never what is sent.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Agreement:
    """What the ranks have told each other at the end of a reduction."""

    #: the parameters that no rank uses
    unused: frozenset[int]
    #: static graph: whether every rank has learned, in a backward of its own, how it uses the parameters
    learned_by_all: bool = False


class SharedFacts:
    """Equal on every rank. Only ``Reducer`` calls what changes them; everybody may ask what follows."""

    __slots__ = ("_learned_by_all", "_never_used", "_rebuilt", "_reductions", "_searched", "_skip_unused", "_static")

    def __init__(self, *, find_unused: bool, static: bool, skip_unused: bool) -> None:
        self._static = static
        self._searched = find_unused and not static  # a static graph finds out by itself
        self._skip_unused = skip_unused
        self.start_over()

    # -- the facts

    @property
    def static(self) -> bool:
        """Every iteration uses the same parameters in the same way, so the user promises."""
        return self._static

    @property
    def searched(self) -> bool:
        """The graph of every forward is searched for parameters that it leaves out."""
        return self._searched

    @property
    def reductions(self) -> int:
        """How many there were since the last beginning; those that a lone rank kept to itself do not count."""
        return self._reductions

    @property
    def rebuilt(self) -> bool:
        """The buckets follow the order of arrival."""
        return self._rebuilt

    @property
    def never_used(self) -> frozenset[int]:
        """Static graph: the parameters that no rank uses, as far as the ranks have agreed on that."""
        return self._never_used

    # -- what follows from them

    @property
    def holds_back(self) -> bool:
        """No bucket starts before its backward ends (DDP-110): some rank does not know yet what a backward brings.

        Were it that rank alone that waits, another model in the same backward would be reduced first on it and last
        on the others.
        """
        return self._static and not self._learned_by_all

    @property
    def agreement_due(self) -> bool:
        """This reduction ends with an agreement on who uses what."""
        return self._searched or self.holds_back

    @property
    def rebuild_due(self) -> bool:
        """The next synchronised forward must rebuild the buckets (DDP-054)."""
        if self._rebuilt or self.agreement_due:
            return False
        return self._reductions >= (2 if self._static else 1)

    @property
    def leaves_out(self) -> bool:
        """What nobody uses is left out of later reductions (DDP-116)."""
        return self._skip_unused and not self.holds_back

    @property
    def skips_unused(self) -> bool:
        """The plan may change after any reduction."""
        return self._skip_unused

    # -- how they change

    def start_over(self, *, turn_static: bool = False) -> None:
        """All ranks begin anew; optionally the graph is taken for static from now on."""
        if turn_static:
            self._static, self._searched = True, False
        self._reductions, self._rebuilt = 0, False
        self._learned_by_all, self._never_used = False, frozenset[int]()

    def plan_rebuilt(self) -> None:
        """The buckets have been laid out in the order that all ranks agreed on."""
        self._rebuilt = True

    def reduction_ended(self, agreement: Agreement | None) -> None:
        """A reduction is over that every rank has lived or shadowed."""
        self._reductions += 1
        if agreement is not None and self._static:
            self._learned_by_all, self._never_used = agreement.learned_by_all, agreement.unused
