"""Which gradients of a backward are ready: counted one by one, or noted in the buckets' lists (see ``arrivals``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from .arrivals import Arrivals
from .bucket_queue import BucketQueue
from .use import Use


class Readiness:
    """Keeps count for the reducer. Arrivals are counted until the order is known and kept to, and then only noted."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        use: Use,
        queue: BucketQueue,
        arrivals: Arrivals,
    ) -> None:
        self._parameters = parameters
        self._use = use
        self._queue = queue
        self._arrivals = arrivals
        self.index_of: dict[torch.Tensor, int] = {parameter: index for index, parameter in enumerate(parameters)}
        #: whether every backward since the buckets follow the order of arrival has kept to it
        self._orderly = True
        #: order of readiness in the last complete live backward whose arrivals were counted
        self._former_order: list[int] = []

        # -- valid while a synchronised backward is under way
        #: arrivals still to come, by parameter; while learning a static graph: minus the arrivals so far
        self._need: list[int] = []
        self._order: list[int] = []
        #: found in the buckets' lists when the backward began: came early in it, or from another one
        self._perhaps_early: list[int] = []
        arrivals.count_each()

    # -- which of the two

    @property
    def counted(self) -> bool:
        """Whether each arrival is told by itself; otherwise the buckets' lists hold them."""
        return self._arrivals.counted

    def forget(self) -> None:
        """Back to the beginning: everything is counted."""
        self._former_order, self._orderly = [], True
        if self._arrivals.watching:
            self._arrivals.count_each()

    def settle(self) -> None:
        """The buckets follow the order of arrival now: note, unless something has already gone another way."""
        if self._orderly and self._arrivals.watching:
            self._note()

    def watch_anew(self) -> None:
        """Buckets are new, or parameters were moved or cast, which may have given them new nodes: watch those."""
        if not self._arrivals.watching:
            return
        if self.counted:
            self._arrivals.count_each()
        else:
            self._note()

    def buckets_are_new(self) -> None:
        """Their lists are new, too."""
        if not self.counted:
            self.watch_anew()

    def _note(self) -> None:
        for bucket in self._queue.buckets:
            bucket.await_all_but(self._use.never_here)
        self._arrivals.note_in(self._queue.buckets)

    def count_again(self, *, under_way: bool) -> list[int]:
        """Something went another way than before: from now on each arrival tells of itself, as in the beginning.

        Returns what has arrived in the backward under way, if one is: that is to be counted now.
        """
        self._orderly = False
        self._arrivals.count_each()
        if not under_way:
            return []
        self._need = self._use.expectations()
        for bucket in self._queue.buckets:
            if not bucket.missing:  # found full, and perhaps under way already
                bucket.missing = len(bucket.awaited)
        return self.noted()

    def noted(self) -> list[int]:
        """What the buckets' lists hold; nothing where arrivals are counted."""
        return [self.index_of[found] for bucket in self._queue.buckets for found in bucket.arrived]

    # -- one backward

    def forward_begins(self) -> None:
        """What was noted since the last backward belongs to none that is synchronised."""
        if not self.counted:
            for bucket in self._queue.buckets:
                bucket.arrived.clear()

    def begin(self, beyond_reach: Iterable[int] | None) -> None:
        """A synchronised backward begins; the search of its graph, if there was one, did not find ``beyond_reach``."""
        self._order = []
        self._perhaps_early = self.noted()
        self._queue.reset()
        self._use.begin(self._queue.plan.left_out, beyond_reach)
        if self.counted:
            self._need = self._use.expectations()
            self._expect_no_more(self._use.unused)
        else:
            for bucket in self._queue.buckets:
                bucket.missing = len(bucket.awaited)

    def _expect_no_more(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._need[index] = 0
            if index not in self._queue.plan.left_out:
                self._queue.ready(index)

    def count(self, index: int, received: bool) -> bool:
        """Count one arrival, with a gradient or without; whether it makes a bucket full."""
        use, need = self._use, self._need[index]
        if not received:
            if use.static and not use.learning and not need:
                return False  # as in the first iteration
            use.unused.add(index)
        need -= 1
        self._need[index] = need
        if need == 0:
            self._order.append(index)
            return self._queue.ready(index)
        if need < 0 and not use.learning:
            use.refuse_second_arrival(index)
        elif need == -1:
            self._order.append(index)
        return False

    def full(self, place: int) -> bool | None:
        """Whether bucket ``place``, whose last parameter has arrived, became full by that; None if we must count."""
        bucket = self._queue.buckets[place]
        if not bucket.missing:
            return False
        if not bucket.all_arrived():
            return None
        bucket.missing = 0
        return True

    def anything(self) -> bool:
        """Whether anything has arrived in this backward."""
        return bool(self._order) or any(bucket.arrived for bucket in self._queue.buckets)

    def backward_ended(self) -> bool:
        """Draw the conclusions from what did not arrive; False if what was noted is not what was awaited."""
        if self._use.learning:
            self._learn_static_graph()
        elif self._use.searched:  # what has not arrived feeds outputs outside the loss (DDP-101)
            missing = self.missing()
            self._use.unused.update(missing)
            self._expect_no_more(missing)
        return self.counted or self._queue.holds_what_was_awaited()

    def _learn_static_graph(self) -> None:
        self._use.learn(self._need, self._parameters)
        self._need = [0] * len(self._parameters)
        for bucket in self._queue.buckets:
            bucket.missing = 0

    def overlooked(self) -> Iterator[int]:
        """What was noted before the backward had begun, and must have come early in it, since it is missing."""
        for index in self._perhaps_early:
            if self.counted and self._need[index] > 0:
                yield index

    def missing(self) -> list[int]:
        """The parameters of which arrivals are still to come."""
        return [index for index, need in enumerate(self._need) if need > 0] if self.counted else []

    def delivered(self) -> None:
        """The backward is complete."""
        if self.counted:
            self._former_order = self._order

    def order(self) -> list[int]:
        """The order of readiness in the last complete live backward; bucket by bucket where nobody counted."""
        return self._former_order if self.counted else self.noted()

    @property
    def nodes(self) -> Mapping[torch.Tensor, torch.autograd.graph.Node]:
        """The nodes that accumulate gradients, of those parameters whose nodes are watched."""
        return self._arrivals.nodes

    def stop(self) -> None:
        """Watch gradients no more."""
        self._arrivals.stop()

    @property
    def watching(self) -> bool:
        """Whether gradients are watched at all."""
        return self._arrivals.watching
