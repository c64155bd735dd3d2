"""Which plans the buckets follow; when another one is due is the affair of ``SharedFacts``."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .plan import BucketCaps, BucketPlan, ParameterSpec, expected_plan, first_plan, plan_buckets
from .shared import SharedFacts
from .use import Use


class Planner:
    """Plans the same on every rank."""

    def __init__(self, specs: Sequence[ParameterSpec], caps: BucketCaps, use: Use, facts: SharedFacts) -> None:
        self._specs = specs
        self._caps = caps
        self._use = use
        self._facts = facts

    def first(self) -> BucketPlan:
        """The plan to begin with, or to begin again with."""
        return first_plan(self._specs, self._caps, will_be_rebuilt=not self._facts.searched)

    def expected(self) -> BucketPlan:
        """The plan that the buckets are likely to settle on."""
        if self._facts.searched:
            return first_plan(self._specs, self._caps, will_be_rebuilt=False)
        return expected_plan(self._specs, self._caps)

    def following(self, order: Sequence[int]) -> BucketPlan:
        """The plan that follows the order of arrival that all ranks have agreed on."""
        return plan_buckets(self._specs, order, self._caps)

    @property
    def may_be_noted(self) -> bool:
        """Whether each parameter of the plan is known to accumulate exactly once, or never, in each backward."""
        return self._facts.rebuilt and not self._facts.skips_unused and self._use.each_arrives_once

    def after_reduction(self, plan: BucketPlan, untouched: Collection[int]) -> BucketPlan | None:
        """The plan without parameters that nobody used, if that is asked for and another one."""
        if not self._facts.leaves_out or not set(untouched) - plan.left_out:
            return None
        kept = [index for bucket in plan.buckets for index in bucket.parameters if index not in untouched]
        return plan_buckets(self._specs, kept, self._caps)
