"""The buckets in the order of their plan: each starts when it is full, with gradients or, on a joined rank, zeros."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from .bucket import Bucket
from .plan import BucketPlan
from .traffic import Flight, Traffic


class BucketQueue:
    """Starts reductions in plan order and hands out their results. ``lay_out`` comes first."""

    plan: BucketPlan
    buckets: list[Bucket]

    def __init__(self, parameters: Sequence[torch.nn.Parameter], traffic: Traffic, *, as_view: bool) -> None:
        self._parameters = parameters
        self._traffic = traffic
        self._as_view = as_view
        self._bucket_of: dict[int, Bucket] = {}
        #: reductions of this backward that have started, by bucket
        self._flights: list[Flight] = []
        #: whether nobody else takes part in the reduction of this backward; decided where its first bucket starts
        self.alone = False
        #: the same as ``_flights`` of the reduction that a joined rank shadows, which is never alone
        self._shadow_flights: list[Flight] = []

    def lay_out(self, plan: BucketPlan) -> None:
        """Take new buckets; gradients that live in the old ones move over."""
        self.plan = plan
        if not self._as_view:  # nothing in the old buffers is needed: they go before the new ones come
            self.buckets, self._bucket_of = [], {}
        self.buckets = [Bucket(spec, self._parameters, as_view=self._as_view) for spec in plan.buckets]
        self._bucket_of = {index: self.buckets[place] for index, place in plan.bucket_of().items()}
        with torch.no_grad():
            for bucket in self.buckets:
                bucket.adopt_gradients()

    @property
    def all_started(self) -> bool:
        """Whether every bucket of this backward is under way."""
        return len(self._flights) == len(self.buckets)

    def reset(self) -> None:
        """A synchronised backward begins."""
        self._flights, self.alone = [], False
        for bucket in self.buckets:
            bucket.reset()

    @property
    def started(self) -> int:
        """How many buckets of this backward are under way."""
        return len(self._flights)

    def ready(self, index: int) -> bool:
        """One parameter less is missing; whether its bucket is full now."""
        bucket = self._bucket_of[index]
        bucket.missing -= 1
        return not bucket.missing

    def holds_what_was_awaited(self) -> bool:
        """At the end of a backward whose arrivals were noted: whether every list holds just what it should."""
        for bucket in self.buckets:
            if bucket.missing and bucket.all_arrived():
                bucket.missing = 0
            if bucket.missing or len(bucket.arrived) != len(bucket.awaited):
                return False
        return True

    def is_last(self, bucket: Bucket) -> bool:
        """Whether the plan ends with this bucket."""
        return bucket is self.buckets[-1]

    # -- live

    def start_full(self, left_out: Collection[int]) -> None:
        """Start every full bucket that has none before it which is not; parameters ``left_out`` contribute zeros."""
        while self.started < len(self.buckets) and not self.buckets[self.started].missing:
            bucket = self.buckets[self.started]
            if not self.started:
                self.alone = self._traffic.around.alone()
            if not self.alone:
                self._traffic.around.announce(bucket.spec.index)
            flat = bucket.collect(left_out, self._traffic.factor_before())
            self._flights.append(self._traffic.start(bucket, flat, last=self.is_last(bucket), alone=self.alone))

    def deliver(self, untouched: Collection[int]) -> None:
        """Wait for the results and hand the gradients out, except to parameters that nobody used."""
        for bucket, flight in zip(self.buckets, self._flights, strict=True):
            result, divisor = self._traffic.result(bucket, flight)
            bucket.deliver(result, untouched, divisor)
        self._flights = []

    # -- joined

    def shadow_next(self) -> bool:
        """Start the next bucket's reduction with zeros, as the live ranks start it; False after the last one."""
        bucket = self.buckets[len(self._shadow_flights)]
        self._shadow_flights.append(self._traffic.start(bucket, bucket.zeros(), last=self.is_last(bucket)))
        return not self.is_last(bucket)

    def shadow_results(self) -> None:
        """Wait for the results; this rank's own gradients stay (DDPJ-010)."""
        for bucket, flight in zip(self.buckets, self._shadow_flights, strict=True):
            self._traffic.result(bucket, flight)
        self._shadow_flights = []

    # -- giving up

    def forsake(self) -> bool:
        """Forget what is under way; whether there was anything, and its buffers must be left to it."""
        left = bool(self._flights or self._shadow_flights)
        self._flights, self._shadow_flights = [], []
        return left
