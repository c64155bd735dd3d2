"""A reduction, live or shadowed: buckets start in plan order, travel, and end with an agreement and the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, is_not
from typing import Any

import torch

from ..comm import collectives, streams
from ..comm.averaging import divides_first
from ..comm.futures import calling_a_hook, wait_for_future
from ..comm.pending import Pending, Watch
from ..comm.ranks import Team
from ..comm.sparse import SparseCapacity, SparseRound
from . import kernels
from .buckets import Bucket, GradBucket, part_gradients
from .hooks.reduction import call_hook
from .iteration import Iteration
from .log import Times
from .plan import BucketCaps, BucketPlan, ParameterSpec, plan_buckets
from .shared import Agreement, SharedFacts
from .usage import Usage

CommHook = Callable[[Any, GradBucket], "torch.futures.Future[torch.Tensor]"]


@dataclass(frozen=True)
class SparsePart:
    """One sparse gradient among those that travel together."""

    round: SparseRound
    place: int


#: A started reduction: a collective of ours, a hook's future, or one of the sparse gradients of the iteration.
Flight = Pending | kernels.AnyFuture | SparsePart


class Transport:
    """Starts reductions over a team and reads their results."""

    def __init__(self, iteration: Iteration, what: str = "bucket") -> None:
        self.iteration = iteration
        self._what = what  # it reduces, for people
        #: (state, hook) that replaces our reduction, once registered
        self.hook: tuple[Any, CommHook] | None = None
        #: how many ranks used each parameter, as last agreed; empty before the first agreement
        self.use_counts = torch.empty(0, dtype=torch.int32, device="cpu")
        self._sparse_capacity: dict[torch.device, SparseCapacity] = {}
        #: the sparse gradients that have come so far; they travel with the last bucket
        self._sparse: dict[torch.device, SparseRound] = {}

    def move_to(self, team: Team) -> None:
        """Reduce over another team, with which nothing has been agreed yet."""
        self.iteration.team = team
        self._sparse_capacity = {}

    def catch_up(self) -> None:
        """Read the rows of a backward that has raised after they were sent: the other ranks do."""
        for capacity in self._sparse_capacity.values():
            if capacity.unread is not None:
                capacity.unread.result(0, self.iteration.watch())

    def factor_before(self) -> float:
        """By how much to multiply a contribution while it is copied anyway, so that the sum need not be divided.

        Only powers of two: those give the same bits before as after the sum.
        """
        divisor = self.iteration.known_divisor()
        if self.hook is not None or divisor is None or divisor & (divisor - 1):
            return 1.0
        return 1.0 / divisor

    def start(self, bucket: Bucket, flat: torch.Tensor, *, last: bool, alone: bool) -> Flight:
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
        capacity = self._sparse_capacity.setdefault(gradient.device, SparseCapacity())
        together = self._sparse.setdefault(gradient.device, SparseRound(capacity))
        if divides_first(gradient.dtype):
            gradient = gradient / self.iteration.divisor()
        return SparsePart(together, together.add(gradient))

    def _start_dense(self, bucket: Bucket, flat: torch.Tensor, alone: bool) -> Pending:
        if bucket.factor == 1.0 and divides_first(flat.dtype):
            kernels.divide(flat, self.iteration.divisor())
        label = f"{self._what} {bucket.spec.index}"
        team = self.iteration.team
        return Pending(label, flat, None, team) if alone else collectives.all_reduce(team, flat, label)

    def _start_hook(self, hook: tuple[Any, CommHook], bucket: Bucket, flat: torch.Tensor, last: bool) -> Flight:
        divisor, group = self.iteration.divisor(), self.iteration.team.group
        spec, parts = bucket.spec, bucket.shown(flat)
        uncounted, watch = self.iteration.uncounted_ranks(), self.iteration.watch()
        shown = GradBucket(spec.index, last, *parts, bucket.parameters, spec.names, group, divisor, uncounted, watch)
        state, function = hook
        with calling_a_hook(self.iteration.team):
            future = call_hook(function, state, shown)
        if isinstance(future, kernels.AnyFuture):
            return future
        raise RuntimeError(
            "Communication hook: callback must return a torch.futures.Future object, but got "
            f"{type(future).__name__} for bucket {bucket.spec.index}. A hook that does not communicate must return a "
            "completed future of a tensor."
        )

    def result(self, bucket: Bucket, flight: Flight, watch: Watch | None) -> tuple[torch.Tensor, int]:
        """Wait for a started reduction; its gradients, flat (numel,) or sparse, and the divisor still to be applied."""
        if isinstance(flight, kernels.AnyFuture):
            label = f"the communication hook's future of bucket {bucket.spec.index}"
            result = wait_for_future(flight, watch, self.iteration.team, label)
            self.iteration.team.tally.count()
            return bucket.answered(result, "communication hook"), 1
        if isinstance(flight, SparsePart):
            rows = flight.round.result(flight.place, watch)
            return rows, 1 if divides_first(rows.dtype) else self.iteration.divisor()
        flat = flight.wait(watch)
        divided = bucket.factor != 1.0 or divides_first(flat.dtype)
        return flat, 1 if divided else self.iteration.divisor()

    def agree_on_use(self, used: Sequence[bool], device: torch.device, *, learned: bool | None = None) -> Agreement:
        """Tell all ranks which parameters this one uses; what no rank uses.

        ``learned``: of a static graph, whether this rank has learned how it uses the parameters; else None.
        """
        said = [*used] if learned is None else [*used, learned]
        # on the device, even where the group could send it from the CPU: as a rule the host need not wait for it
        marks = streams.tensor_on(device, said, torch.int32)
        pending = collectives.all_reduce(self.iteration.team, marks, "used parameters")
        self.use_counts = marks[: len(used)]
        if learned is None and all(used):
            pending.wait(self.iteration.watch())
            return Agreement(frozenset())  # nothing to learn, so nothing is read back from the device
        counts = pending.read(self.iteration.watch())
        unused = frozenset(index for index in range(len(used)) if not counts[index])
        return Agreement(unused, learned_by_all=learned is not None and counts[-1] == self.iteration.team.size)


_gradient_of, _is_there = attrgetter("grad"), partial(is_not, None)


class BucketQueue:
    """The buckets of the plan and what has become of them in this backward. ``lay_out`` comes first."""

    plan: BucketPlan
    #: in the order in which they start
    buckets: list[Bucket]

    def __init__(
        self, parameters: Sequence[torch.nn.Parameter], transport: Transport, facts: SharedFacts, *, as_view: bool
    ) -> None:
        self.iteration = transport.iteration
        self._parameters = parameters
        self._transport = transport
        self._facts = facts
        self._as_view = as_view
        self._bucket_of: dict[int, Bucket] = {}
        self._adds_up_dense = False  # said where the buckets are laid out
        #: by parameter, the gradient from before this backward, to which autograd adds; between its begin and its end
        self._before: list[torch.Tensor | None] = []
        self._flats: set[int] = set()  # addresses of the buckets' memory, where gradients may lie in it; likewise
        #: reductions of this backward that have started, by bucket
        self.flights: list[Flight] = []
        #: whether nobody else takes part in the reduction of this backward; decided before its first bucket starts
        self.alone = False
        #: by how much its contributions are multiplied while they are copied; likewise
        self._factor = 1.0
        #: the same as ``flights`` of the reduction that a joined rank shadows, which is never alone
        self._shadow_flights: list[Flight] = []

    def lay_out(self, plan: BucketPlan) -> None:
        """Take new buckets; gradients that live in the old ones move over."""
        self.plan = plan
        if not self._as_view:  # nothing in the old buffers is needed: they go before the new ones come
            self.buckets, self._bucket_of = [], {}
        with torch.inference_mode(False):  # where a model is only evaluated for now, too: they are trained with
            self.buckets = [Bucket(spec, self._parameters, as_view=self._as_view) for spec in plan.buckets]
        self._flats = {b.flat.data_ptr() for b in self.buckets if b.flat is not None} if self._as_view else set()
        self._bucket_of = {index: bucket for bucket in self.buckets for index in bucket.spec.parameters}
        skips = self._facts.skips_unused
        self._adds_up_dense = not (self._facts.use_varies or skips or any(spec.sparse for spec in plan.buckets))
        with torch.no_grad():
            for bucket in self.buckets:
                bucket.adopt_gradients()

    def keep_apart(self) -> bool:
        """Gradients are copies of what is in the buckets from the next layout on; whether they were not so far."""
        were_views, self._as_view = self._as_view, False
        return were_views

    def reset(self) -> None:
        """A synchronised backward begins."""
        self.flights, self.alone = [], False
        self._before = [] if self._as_view else list(map(_gradient_of, self._parameters))
        for bucket in self.buckets:
            bucket.reset(self._flats)

    @property
    def only_sums(self) -> bool:
        """Whether reducing is but adding up dense gradients: no hook of the user's, no agreement on who used what.

        Then all ranks may shadow a reduction that was announced early and does not come, and a rank that is alone may
        leave the others out of it.
        """
        return self._adds_up_dense and self._transport.hook is None

    @property
    def started(self) -> int:
        """How many buckets of this backward are under way."""
        return len(self.flights)

    @property
    def next_bucket(self) -> Bucket:
        """The first of this backward that is not under way."""
        return self.buckets[len(self.flights)]

    def ready(self, index: int) -> bool:
        """One parameter less is missing; whether its bucket is full now."""
        bucket = self._bucket_of[index]
        bucket.missing -= 1
        return not bucket.missing

    # -- live

    def begin(self) -> None:
        """The first bucket is about to start: decide what holds for all of them."""
        session = self.iteration.session
        # this reduction is this rank's own affair if only it has inputs, and this is the only model in its join block
        self.alone = session is not None and self.only_sums and not session.several_leaders and session.alone
        self._factor = self._transport.factor_before()

    def start_next(self, unused: Collection[int]) -> None:
        """Start the next bucket's reduction; what this backward has left ``unused`` contributes what it held."""
        bucket = self.next_bucket
        try:
            flat = bucket.collect(unused, self._factor)
        except RuntimeError:
            bucket.refuse_sparse()
            raise
        self.flights.append(self._transport.start(bucket, flat, last=bucket is self.buckets[-1], alone=self.alone))

    def deliver(self, untouched: Collection[int]) -> None:
        """Wait for the results and hand the gradients out, except to parameters that nobody used."""
        watch = self.iteration.watch()
        if not self._as_view:
            gradients = list(filter(_is_there, map(_gradient_of, self._parameters)))
            try:
                # of two that overlap and begin in different places, one begins inside its memory
                shared = len(set(map(torch.Tensor.data_ptr, gradients))) < len(gradients)
                shared = shared or any(map(torch.Tensor.storage_offset, gradients))
            except RuntimeError:  # some have no memory: they are sparse, or of a class that keeps others inside
                shared = True
            if shared:
                part_gradients(self._parameters, self._before)
            self._before = []
        for bucket, flight in zip(self.buckets, self.flights, strict=True):
            result, divisor = self._transport.result(bucket, flight, watch)
            bucket.deliver(result, untouched, divisor)
        self.flights = []

    # -- joined

    def shadow_next(self) -> bool:
        """Start the next bucket's reduction with zeros, as the live ranks start it; False after the last one."""
        bucket = self.buckets[len(self._shadow_flights)]
        last = bucket is self.buckets[-1]
        self._shadow_flights.append(self._transport.start(bucket, bucket.zeros(), last=last, alone=False))
        return not last

    def shadow_results(self) -> None:
        """Wait for the results; this rank's own gradients stay (DDPJ-010)."""
        watch = self.iteration.watch()
        for bucket, flight in zip(self.buckets, self._shadow_flights, strict=True):
            self._transport.result(bucket, flight, watch)
        self._shadow_flights = []

    # -- giving up

    def part_with_flights(self) -> None:
        """Nobody waits for what is under way: from now on no gradient lies where it may still arrive."""
        for bucket in self.buckets[: len(self.flights)]:
            bucket.part_with_flat()

    def abandon(self) -> bool:
        """Forget what is under way; whether there was anything, and its buffers must be left to it."""
        left = bool(self.flights or self._shadow_flights)
        if left:  # nobody knows whether it ends: the other ranks may never begin it
            self.iteration.team.abandon()
        self.flights, self._shadow_flights = [], []
        return left

    def __del__(self) -> None:
        self.abandon()  # a model may go with its failed backward


class Reduction:
    """The stages of one model's reductions, as live and as joined ranks go through them. It knows whose gradients go
    into a bucket, and learns at the end what all ranks learn."""

    def __init__(
        self,
        transport: Transport,
        facts: SharedFacts,
        usage: Usage,
        queue: BucketQueue,
        specs: Sequence[ParameterSpec],
        caps: BucketCaps,
        times: Times,
    ) -> None:
        self._transport = transport
        self._iteration = transport.iteration
        self._facts = facts
        self._usage = usage
        self._queue = queue
        self._specs = specs
        self._caps = caps
        self._times = times

    # -- live

    def bucket_due(self) -> bool:
        """Whether the next bucket is full."""
        started, buckets = len(self._queue.flights), self._queue.buckets
        return started < len(buckets) and not buckets[started].missing

    def start_bucket(self) -> None:
        """Start the next bucket's reduction with the gradients of this rank."""
        self._queue.start_next(self._usage.unused)

    def finish_due(self) -> bool:
        """Whether all buckets have started."""
        return len(self._queue.flights) == len(self._queue.buckets)

    def finish(self) -> None:
        """Hand out the results, and learn from the reduction what all ranks learn from it."""
        agreement = self._results(live=True)
        self._times.comm_end = time.time_ns()
        if self._facts.use_varies:
            self._usage.delivered()
        if not self._queue.alone:
            self._note_reduction(agreement)
        if self._facts.searched:
            self._usage.judge_search(self._facts.reductions)

    # -- joined

    def shadow_all(self) -> None:
        """Go through a whole reduction, all its buckets and its end."""
        while self.shadow_bucket():
            pass
        self.shadow_finish()

    def shadow_bucket(self) -> bool:
        """Start the next bucket's reduction with zeros, as the live ranks start it; False after the last one."""
        with torch.no_grad():
            return self._queue.shadow_next()

    def shadow_finish(self) -> None:
        """Go through the end of a reduction as the live ranks do."""
        with torch.no_grad():
            self._note_reduction(self._results(live=False))

    # -- the end, on live and on joined ranks

    def _results(self, *, live: bool) -> Agreement | None:
        """Agree on use if that is due, and wait for the results, which only a live rank hands out."""
        agreement = self._agree_on_use(live=live) if self._facts.agreement_due else None
        if live:
            self._queue.deliver(self._untouched(agreement))
        else:
            self._queue.shadow_results()
        if self._iteration.futures:
            self._iteration.await_futures()
        return agreement

    def _agree_on_use(self, *, live: bool) -> Agreement:
        """Tell all ranks what this one uses, and hear what nobody does."""
        usage = self._usage
        used = usage.reported(range(self._queue.plan.parameter_count), live=live)
        learned = not usage.learning if self._facts.static else None
        return self._transport.agree_on_use(used, self._specs[0].device, learned=learned)

    def _untouched(self, agreement: Agreement | None) -> frozenset[int]:
        """The parameters that no rank used in this reduction, as far as that matters."""
        return self._facts.never_used if agreement is None else agreement.unused

    def _note_reduction(self, agreement: Agreement | None) -> None:
        """A reduction is over that every rank has lived or shadowed."""
        self._facts.reduction_ended(agreement)
        if self._facts.leaves_out:  # some of it has not arrived here either, so no bucket's list is watched
            self._leave_out(self._untouched(agreement))

    def _leave_out(self, unused: Collection[int]) -> None:
        """Lay out buckets without these parameters, if some of them are in those that there are."""
        order = self._queue.plan.order
        kept = [index for index in order if index not in unused]
        if len(kept) < len(order):
            self._queue.lay_out(plan_buckets(self._specs, kept, self._caps))
