"""How buckets travel, live and joined alike: started in plan order, by a collective or the user's hook."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..comm import collectives, streams
from ..comm.averaging import divides_first
from ..comm.pending import Pending
from ..comm.ranks import Team
from ..comm.sparse import SparseRooms, SparseRound
from . import kernels
from .buckets import Bucket, GradBucket
from .iteration import Iteration
from .plan import BucketPlan
from .shared import Agreement, SharedFacts

CommHook = Callable[[Any, GradBucket], "torch.futures.Future[torch.Tensor]"]


@dataclass(frozen=True)
class SparsePart:
    """One sparse gradient among those that travel together."""

    round: SparseRound
    place: int


#: A started reduction: a collective of ours, a hook's future, or one of the sparse gradients of the iteration.
Flight = Pending | kernels.AnyFuture | SparsePart

#: torch's own hooks divide by their group's size; where a join asks for another divisor, we put that right.
_TORCH_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"


class Transport:
    """Starts reductions over a team and reads their results."""

    def __init__(self, iteration: Iteration) -> None:
        self.iteration = iteration
        #: (state, hook) that replaces our reduction, once registered
        self.hook: tuple[Any, CommHook] | None = None
        #: how many ranks used each parameter, as last agreed; empty before the first agreement
        self.use_counts = torch.empty(0, dtype=torch.int32, device="cpu")
        self._sparse_rooms: dict[torch.device, SparseRooms] = {}
        #: the sparse gradients that have come so far; they travel with the last bucket
        self._sparse: dict[torch.device, SparseRound] = {}

    def move_to(self, team: Team) -> None:
        """Reduce over another team, with which nothing has been agreed yet."""
        self.iteration.team = team
        self._sparse_rooms = {}

    def factor_before(self) -> float:
        """By how much to multiply a contribution while it is copied anyway, so that the sum need not be divided.

        Only powers of two: those give the same bits before as after the sum.
        """
        divisor = self.iteration.known_divisor()
        if self.hook is not None or divisor is None or divisor & (divisor - 1):
            return 1.0
        return 1.0 / divisor

    def start(self, bucket: Bucket, flat: torch.Tensor, *, last: bool, alone: bool = False) -> Flight:
        """Start reducing ``flat``, this rank's contribution to ``bucket``: (numel,), or a sparse gradient.

        ``alone``: nobody else takes part, so the sum is what this rank contributes.
        """
        if self.hook is not None:
            return self._start_hook(self.hook, bucket, flat, last)
        if bucket.spec.index == 0:
            self._sparse = {}  # perhaps of an iteration that was given up
        flight = self._add_sparse(bucket, flat) if bucket.spec.sparse else self._start_dense(bucket, flat, alone)
        if last:
            for together in self._sparse.values():
                together.send(self.iteration.team, "sparse gradients", self.iteration.watch())
            self._sparse = {}
        return flight

    def _add_sparse(self, bucket: Bucket, gradient: torch.Tensor) -> SparsePart:
        rooms = self._sparse_rooms.setdefault(gradient.device, SparseRooms())
        together = self._sparse.setdefault(gradient.device, SparseRound(rooms))
        if divides_first(gradient.dtype):
            gradient = gradient / self.iteration.divisor()
        return SparsePart(together, together.add(gradient))

    def _start_dense(self, bucket: Bucket, flat: torch.Tensor, alone: bool) -> Pending:
        if bucket.factor == 1.0 and divides_first(flat.dtype):
            kernels.divide(flat, self.iteration.divisor())
        label = f"bucket {bucket.spec.index}"
        return Pending(label, flat, None) if alone else collectives.all_reduce(self.iteration.team, flat, label)

    def _start_hook(self, hook: tuple[Any, CommHook], bucket: Bucket, flat: torch.Tensor, last: bool) -> Flight:
        if bucket.spec.sparse:
            flat = flat.coalesce()
        views = bucket.views if flat is bucket.flat else [flat] if bucket.spec.sparse else bucket.views_of(flat)
        divisor = self.iteration.divisor()
        shown = GradBucket(bucket.spec.index, last, flat, views, bucket.parameters, self.iteration.team.group, divisor)
        state, function = hook
        self.iteration.team.tally.count()  # for all that the hook starts, and again where it has returned and ended
        future = function(state, shown)
        self.iteration.team.tally.count()
        if isinstance(future, kernels.AnyFuture):
            return future
        raise RuntimeError(
            "Communication hook: callback must return a torch.futures.Future object, but got "
            f"{type(future).__name__} for bucket {bucket.spec.index}. A hook that does not communicate must return a "
            "completed future of a tensor."
        )

    def result(self, bucket: Bucket, flight: Flight) -> tuple[torch.Tensor, int]:
        """Wait for a started reduction; its gradients, flat (numel,) or sparse, and the divisor still to be applied."""
        if isinstance(flight, kernels.AnyFuture):
            result = flight.wait()
            self.iteration.team.tally.count()
            return self._hook_result(bucket, result), 1
        watch = self.iteration.watch()
        if isinstance(flight, SparsePart):
            rows = flight.round.result(flight.place, watch)
            return rows, 1 if divides_first(rows.dtype) else self.iteration.divisor()
        flat = flight.wait(watch)
        divided = bucket.factor != 1.0 or divides_first(flat.dtype)
        return flat, 1 if divided else self.iteration.divisor()

    def _hook_result(self, bucket: Bucket, result: Any) -> torch.Tensor:
        expected = bucket.spec.numel
        if not isinstance(result, torch.Tensor) or (not bucket.spec.sparse and result.numel() != expected):
            shape = f" of shape {tuple(result.shape)}" if isinstance(result, torch.Tensor) else ""
            raise RuntimeError(
                f"The communication hook's future for bucket {bucket.spec.index} holds a {type(result).__name__}"
                f"{shape}; expected one tensor of {expected} elements, shaped like the bucket. A collective's own "
                "future holds a list: chain `.then(lambda future: future.value()[0])`."
            )
        divisor = self.iteration.divisor()
        averaged: torch.Tensor = result
        if divisor != self.iteration.team.size and self._hook_divides_by_size():
            averaged = averaged * (self.iteration.team.size / divisor)
        return averaged

    def _hook_divides_by_size(self) -> bool:
        hook: Any = None if self.hook is None else self.hook[1]
        while isinstance(hook, functools.partial):
            hook = hook.func
        return str(getattr(hook, "__module__", "")).startswith(_TORCH_HOOKS)

    def agree_on_use(self, used: Sequence[bool], device: torch.device, *, learned: bool | None = None) -> Agreement:
        """Tell all ranks which parameters this one uses; what no rank uses.

        ``learned``: of a static graph, whether this rank has learned how it uses the parameters; else None.
        """
        said = [*used] if learned is None else [*used, learned]
        # on the device, even where the group could send it from the CPU: as a rule the host need not wait for it
        marks = streams.tensor_on(device, said, torch.int32)
        told = collectives.all_reduce(self.iteration.team, marks, "used parameters")
        self.use_counts = marks[: len(used)]
        if learned is None and all(used):
            told.wait(self.iteration.watch())
            return Agreement(frozenset())  # nothing to learn, so nothing is read back from the device
        counts = told.read(self.iteration.watch())
        unused = frozenset(index for index in range(len(used)) if not counts[index])
        return Agreement(unused, learned_by_all=learned is not None and counts[-1] == self.iteration.team.size)


class BucketQueue:
    """Starts reductions in plan order and hands out their results. ``lay_out`` comes first."""

    plan: BucketPlan
    buckets: list[Bucket]

    def __init__(
        self, parameters: Sequence[torch.nn.Parameter], transport: Transport, facts: SharedFacts, *, as_view: bool
    ) -> None:
        self._parameters = parameters
        self._transport = transport
        self._facts = facts
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
    def only_sums(self) -> bool:
        """Whether reducing is but adding up dense gradients: no hook of the user's, no agreement on who used what.

        Then all ranks may shadow a reduction that was announced early and does not come, and a rank that is alone may
        leave the others out of it.
        """
        facts = self._facts
        agrees = facts.searched or facts.static or facts.skips_unused
        return not (agrees or self._transport.hook is not None or any(bucket.spec.sparse for bucket in self.buckets))

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
                # this reduction is this rank's own affair if only it has inputs
                self.alone = self._transport.iteration.reduces_alone and self._facts.rebuilt and self.only_sums
            if not self.alone:
                self._transport.iteration.announce_bucket(bucket.spec.index)
            flat = bucket.collect(left_out, self._transport.factor_before())
            self._flights.append(self._transport.start(bucket, flat, last=self.is_last(bucket), alone=self.alone))

    def deliver(self, untouched: Collection[int]) -> None:
        """Wait for the results and hand the gradients out, except to parameters that nobody used."""
        for bucket, flight in zip(self.buckets, self._flights, strict=True):
            result, divisor = self._transport.result(bucket, flight)
            bucket.deliver(result, untouched, divisor)
        self._flights = []

    # -- joined

    def shadow_next(self) -> bool:
        """Start the next bucket's reduction with zeros, as the live ranks start it; False after the last one."""
        bucket = self.buckets[len(self._shadow_flights)]
        self._shadow_flights.append(self._transport.start(bucket, bucket.zeros(), last=self.is_last(bucket)))
        return not self.is_last(bucket)

    def shadow_results(self) -> None:
        """Wait for the results; this rank's own gradients stay (DDPJ-010)."""
        for bucket, flight in zip(self.buckets, self._shadow_flights, strict=True):
            self._transport.result(bucket, flight)
        self._shadow_flights = []

    # -- giving up

    def forsake(self) -> bool:
        """Forget what is under way; whether there was anything, and its buffers must be left to it."""
        left = bool(self._flights or self._shadow_flights)
        self._flights, self._shadow_flights = [], []
        return left
