"""Which plan the buckets follow, and when another one is due."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .plan import BucketCaps, BucketPlan, ParameterSpec, expected_plan, first_plan, plan_buckets
from .use import Use


class Planner:
    """Decides the same on every rank, because each reduction is either lived or shadowed by each rank."""

    def __init__(self, specs: Sequence[ParameterSpec], caps: BucketCaps, use: Use, *, skip_unused: bool) -> None:
        """``skip_unused``: leave what nobody uses out of later reductions (DDP-116)."""
        self._specs = specs
        self._caps = caps
        self._use = use
        self._skip_unused = skip_unused
        #: reductions since the last reset
        self.reductions = 0
        #: whether the plan already follows the order of arrival
        self.rebuilt = False

    def first(self) -> BucketPlan:
        """The plan to begin with, or to begin again with."""
        self.reductions, self.rebuilt = 0, False
        return first_plan(self._specs, self._caps, will_be_rebuilt=not self._use.searched)

    def expected(self) -> BucketPlan:
        """The plan that the buckets are likely to settle on."""
        if self._use.searched:
            return first_plan(self._specs, self._caps, will_be_rebuilt=False)
        return expected_plan(self._specs, self._caps)

    def due(self) -> bool:
        """Whether the next synchronised forward must rebuild the buckets (DDP-054)."""
        if self.rebuilt or self._use.searched:
            return False
        return self.reductions >= (2 if self._use.static else 1)

    def following(self, order: Sequence[int]) -> BucketPlan:
        """The plan that follows the order of arrival that all ranks have agreed on."""
        self.rebuilt = True
        return plan_buckets(self._specs, order, self._caps)

    @property
    def may_be_noted(self) -> bool:
        """Whether each parameter of the plan is known to accumulate exactly once, or never, in each backward."""
        return self.rebuilt and not self._skip_unused and self._use.each_arrives_once

    def after_reduction(self, plan: BucketPlan, untouched: Collection[int]) -> BucketPlan | None:
        """Count one; the plan without parameters that nobody used, if that is asked for and another one."""
        self.reductions += 1
        if not self._skip_unused or not set(untouched) - plan.left_out:
            return None
        kept = [index for bucket in plan.buckets for index in bucket.parameters if index not in untouched]
        return plan_buckets(self._specs, kept, self._caps)
