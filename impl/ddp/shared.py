"""What every rank knows alike of one model's reductions: the only ground for which collectives there are, and when.

A rank that has run out of inputs lives through no backward, but it shadows every reduction. So what decides about
collectives changes at the end of a reduction only, lived or shadowed, and where all ranks begin anew. What a rank finds
out in backwards of its own (``Usage``, ``Readiness``) decides what it contributes, never what is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Agreement:
    """What the ranks have told each other at the end of a reduction."""

    #: the parameters that no rank uses
    unused: frozenset[int]
    #: static graph: whether every rank has learned, in a backward of its own, how it uses the parameters
    learned_by_all: bool = False


class SharedFacts:
    """Equal on every rank. Only ``Reducer`` and ``Reduction`` change them; everybody may ask, also for what follows."""

    __slots__ = (
        "_learned_by_all", "agreement_due", "holds_back", "leaves_out", "never_used", "rebuild_due", "rebuilt",
        "reductions", "searched", "skips_unused", "static", "use_varies",
    )

    # -- the facts

    #: every iteration uses the same parameters in the same way, so the user promises
    static: bool
    #: the graph of every forward is searched for parameters that it leaves out
    searched: bool
    #: what nobody uses is to be left out, so the plan may change after any reduction
    skips_unused: bool
    #: how many reductions there were since the last beginning; those that a lone rank kept to itself do not count
    reductions: int
    #: the buckets follow the order of arrival
    rebuilt: bool
    #: static graph: the parameters that no rank uses, as far as the ranks have agreed on that
    never_used: frozenset[int]
    _learned_by_all: bool

    # -- what follows from them

    #: backwards may leave parameters out; else each of them uses all
    use_varies: bool
    #: no bucket starts before its backward ends (DDP-110): some rank does not know yet what a backward brings. Were it
    #: that rank alone that waits, another model in the same backward would be reduced first on it, last on the others
    holds_back: bool
    #: this reduction ends with an agreement on who uses what
    agreement_due: bool
    #: the next synchronised forward must rebuild the buckets (DDP-054)
    rebuild_due: bool
    #: what nobody uses is left out of later reductions (DDP-116)
    leaves_out: bool

    def __init__(self, *, find_unused: bool, skip_unused: bool) -> None:
        self._change(static=False, searched=find_unused, skips_unused=skip_unused, **_BEGINNING)

    # -- how they change

    def start_over(self, *, turn_static: bool = False) -> None:
        """All ranks begin anew; optionally the graph is static from now on, and nothing is searched any more."""
        self._change(**({"static": True, "searched": False} if turn_static else {}), **_BEGINNING)

    def plan_rebuilt(self) -> None:
        """The buckets have been laid out in the order that all ranks agreed on."""
        self._change(rebuilt=True)

    def reduction_ended(self, agreement: Agreement | None) -> None:
        """A reduction is over that every rank has lived or shadowed."""
        if agreement is not None and self.static:
            self._change(_learned_by_all=agreement.learned_by_all, never_used=agreement.unused)
        self._change(reductions=self.reductions + 1)

    def _change(self, **facts: Any) -> None:
        """Change facts, and with them what follows. Both are read far more often, in every backward."""
        know = super().__setattr__
        for name, value in facts.items():
            know(name, value)
        static, searched = self.static, self.searched
        holds_back = static and not self._learned_by_all
        agreement_due = searched or holds_back
        know("use_varies", static or searched)
        know("holds_back", holds_back)
        know("agreement_due", agreement_due)
        know("leaves_out", self.skips_unused and not holds_back)
        know("rebuild_due", not self.rebuilt and not agreement_due and self.reductions >= (2 if static else 1))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name!r}: what all ranks know alike changes at the end of a reduction only")


_BEGINNING: dict[str, Any] = {
    "reductions": 0, "rebuilt": False, "_learned_by_all": False, "never_used": frozenset[int](),
}
