"""The reducer: watches gradients become ready, starts each bucket's reduction in plan order, delivers the results.

The life of a synchronised backward::

    forward ─ ticket ─► backward begins (hooks on the outputs) ─ arrivals ─► buckets start, in plan order
                                                                                   │
             gradients delivered ◄─ results ◄─ agreement on use ◄─ end of backward (a callback of the engine)

All collectives start on the thread that runs backward, in plan order. A joined rank walks the same way with zeros:
``shadow_bucket`` for each bucket, then ``shadow_finish``.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import Any

import torch

from ..comm.ranks import Team
from . import kernels
from .arrivals import Arrivals
from .bucket import Bucket
from .complaints import tell_second_arrival, tell_unfinished
from .log import Times
from .plan import BucketCaps, BucketPlan, ParameterSpec, first_plan, plan_buckets
from .remote import borrowed_gradients
from .ticket import Ticket
from .traffic import Flight, Traffic
from .unused import tell_needless


class Phase(Enum):
    """Where the reducer stands. Legal moves: IDLE → FILLING (begin), FILLING → IDLE (finish, abandon)."""

    IDLE = "no synchronised backward is under way"
    FILLING = "a synchronised backward has begun and has not delivered"


class Reducer:
    """Averages the gradients of ``parameters`` over a team. One for each DDP object."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        specs: Sequence[ParameterSpec],
        traffic: Traffic,
        caps: BucketCaps,
        *,
        find_unused: bool,
        static_graph: bool,
        as_view: bool,
        skip_unused: bool = False,
        recast: bool = False,
    ) -> None:
        self.parameters = list(parameters)
        self.specs = list(specs)
        self.traffic = traffic
        self.caps = caps
        self.find_unused = find_unused and not static_graph  # a static graph finds out by itself
        self.static_graph = static_graph
        self.as_view = as_view
        self.skip_unused = skip_unused  # leave what nobody uses out of later reductions (DDP-116)
        self.index_of: dict[torch.Tensor, int] = {parameter: index for index, parameter in enumerate(self.parameters)}

        # -- the same on every rank, because each reduction is either lived or shadowed by each rank
        #: reductions since the last reset
        self.reductions = 0
        #: whether the plan already follows the order of arrival
        self.rebuilt = False
        #: static graph: whether the ranks have agreed, once, on what nobody uses
        self._use_agreed = False
        #: static graph: parameters that no rank uses; empty until agreed
        self._never_used: frozenset[int] = frozenset()

        # -- this rank's own knowledge
        self.phase = Phase.IDLE
        #: whether the engine will call ``_backward_ended`` for a backward now running
        self._armed = False
        #: arrivals that make each parameter ready, learned in the first live backward of a static graph
        self._expected: list[int] | None = None
        #: order of readiness in the last complete live backward whose arrivals were counted
        self.arrival_order: list[int] = []
        #: whether every backward since the buckets follow the order of arrival has kept to it
        self._orderly = True
        #: 1 for parameters that received a gradient since the last synchronisation (kept if ``find_unused``)
        self._used_since_sync = bytearray(len(self.parameters))
        #: whether a backward here has left a parameter out (DDP-104)
        self._search_pays = False
        #: the last grad-enabled forward's; None before the first
        self._latest: Ticket | None = None
        #: (backward, parameter) of arrivals that came before their backward announced itself
        self._early: list[tuple[int, int]] = []
        #: found in the buckets' lists when a backward began: came early in it, or from another one
        self._perhaps_early: list[int] = []
        #: futures of buffer hooks, to be awaited before backward returns (DDP-095)
        self.other_futures: list[torch.futures.Future[Any]] = []

        # -- valid while FILLING
        #: arrivals still to come, by parameter; while learning a static graph: minus the arrivals so far
        self._need: list[int] = []
        self._order: list[int] = []
        self._unused: set[int] = set()
        #: distributed-autograd context of the forward whose backward this is
        self._context: int | None = None
        #: arrivals in such a backward, looked at when it ends
        self._postponed: list[int] = []
        self._flights: list[Flight] = []

        # -- valid while a joined rank shadows a reduction: what it has started so far
        self._shadow_flights: list[Flight] = []

        #: when the parts of this iteration began and ended, for the log
        self.times = Times()
        #: whether every synchronised backward so far left the same parameters out
        self._graph_static = True
        self._former_unused: set[int] | None = None
        self.sparse_metadata: dict[str, torch.Tensor] = {}
        self._arrivals = Arrivals(self, recast=recast)
        self._arrivals.count_each()
        self._lay_out(first_plan(self.specs, caps, will_be_rebuilt=not self.find_unused))

    @property
    def team(self) -> Team:
        return self.traffic.team

    # -- layout

    def _lay_out(self, plan: BucketPlan) -> None:
        self.plan = plan
        self.buckets = [Bucket(spec, self.parameters, as_view=self.as_view) for spec in plan.buckets]
        self._bucket_of = {index: self.buckets[place] for index, place in plan.bucket_of().items()}
        with torch.no_grad():
            for bucket in self.buckets:
                bucket.adopt_gradients()
        if not self._arrivals.counted:
            self._note_arrivals_in_buckets()

    def replan_due(self) -> bool:
        """Whether the next synchronised forward must rebuild the buckets (DDP-054). The same on every rank."""
        if self.rebuilt or self.find_unused:
            return False
        return self.reductions >= (2 if self.static_graph else 1)

    def proposed_order(self) -> list[int]:
        """This rank's proposal for the rebuilt plan: all parameters, by arrival as far as it has seen them arrive."""
        seen = dict.fromkeys(self.arrival_order)
        return [*seen, *(i for bucket in self.plan.buckets for i in bucket.parameters if i not in seen)]

    def rebuild(self, order: Sequence[int]) -> None:
        """Lay the buckets out anew, in the order that all ranks agreed on."""
        self._lay_out(plan_buckets(self.specs, order, self.caps))
        self.rebuilt = True
        if self._orderly and self._each_arrives_once() and self._arrivals.watching:
            self._note_arrivals_in_buckets()

    def move_to(self, team: Team) -> None:
        """Reduce over another team; everything learned from backwards is forgotten and agreed anew (DDP-164)."""
        self.traffic.team = team
        self.start_over()

    def start_over(self, *, static_graph: bool | None = None) -> None:
        """Forget everything learned from backwards; optionally become a static-graph reducer (DDP-109)."""
        self.abandon()
        if static_graph:
            self.static_graph, self.find_unused = True, False
        self.reductions = 0
        self.rebuilt = self._use_agreed = False
        self._never_used, self._expected, self.arrival_order = frozenset(), None, []
        self._orderly = True
        if self._arrivals.watching:
            self._arrivals.count_each()
        self._lay_out(first_plan(self.specs, self.caps, will_be_rebuilt=not self.find_unused))

    # -- watching parameters

    def _each_arrives_once(self) -> bool:
        """Whether every parameter of the plan is known to accumulate exactly once, or never, in each backward."""
        if self.find_unused or self.skip_unused:
            return False
        return not self.static_graph or (self._expected is not None and max(self._expected, default=0) <= 1)

    def _note_arrivals_in_buckets(self) -> None:
        """From now on buckets hold their arrivals; each tells only when it should be full."""
        unused = {i for i, need in enumerate(self._expected or ()) if need == 0} if self.static_graph else set()
        for bucket in self.buckets:
            bucket.await_all_but(unused)
        self._arrivals.note_in(self.buckets)

    def _count_again(self) -> None:
        """Something went another way than before: from now on each arrival tells of itself, as in the beginning."""
        noted = [(bucket, list(bucket.arrived)) for bucket in self.buckets]
        self._orderly = False
        self._arrivals.count_each()
        if self.phase is Phase.IDLE:
            return
        for bucket, arrived in noted:
            if not bucket.missing:  # found full, and perhaps under way already
                bucket.missing = len(bucket.awaited)
            for parameter in arrived:
                self.arrived(self.index_of[parameter])

    def watch_anew(self) -> None:
        """The parameters were moved or cast, which may have given them new nodes: watch those."""
        if not self._arrivals.watching:
            return
        if self._arrivals.counted:
            self._arrivals.count_each()
        else:
            self._note_arrivals_in_buckets()

    def remove_hooks(self) -> None:
        """Stop watching gradients: from now on backward is local (DDP-066)."""
        self._arrivals.stop()

    # -- forward

    @property
    def has_seen_forward(self) -> bool:
        """Whether a training forward has run."""
        return self._latest is not None

    def admit(self, ticket: Ticket) -> None:
        """Note a grad-enabled forward, whose backward may now come."""
        former = self._latest
        if ticket.unused is not None and former is not None and not former.spent and former.unused is not None:
            ticket.unused &= former.unused  # two forwards before one backward: used is what either uses
            former.unused = ticket.unused
        self._latest = ticket
        self._early.clear()
        if self._arrivals.counted:
            return
        if ticket.sync and not (ticket.announced and ticket.context is None):
            self._count_again()  # nothing but the arrivals themselves will tell that its backward begins
        elif self.phase is Phase.IDLE:
            for bucket in self.buckets:
                bucket.arrived.clear()

    def check_finished(self) -> None:
        """RuntimeError if the last synchronised backward left gradients unreduced (DDP-062, DDP-063)."""
        if self.phase is Phase.IDLE:
            return
        if self._armed:  # that backward never ended: it raised, and its caller has seen the exception
            self.abandon()
            return
        missing = [index for index, need in enumerate(self._need) if need > 0]
        started = len(self._flights)
        self.abandon()
        self._fail(tell_unfinished(self.specs, missing, self.team.rank, started, static=self.static_graph))

    def abandon(self) -> None:
        """Give up a backward that cannot be completed: gradients stay as they are, the next iteration starts clean."""
        if self._flights or self._shadow_flights:  # buffers in flight are left to their collectives
            self._lay_out(self.plan)
        self.phase = Phase.IDLE
        self._armed = False
        self._flights, self._shadow_flights = [], []
        self.other_futures.clear()

    # -- backward

    def begin(self, ticket: Ticket) -> None:
        """A backward through this ticket's forward starts now."""
        if ticket.spent or not self._arrivals.watching:
            return
        ticket.spent = True
        if not ticket.sync or self.phase is Phase.FILLING:
            return
        self.phase = Phase.FILLING
        self.times.backward_start = time.time_ns()
        self._order, self._flights, self._context, self._postponed = [], [], ticket.context, []
        self._perhaps_early = [self.index_of[found] for bucket in self.buckets for found in bucket.arrived]
        for bucket in self.buckets:
            bucket.reset()
        self._arm()
        self._take_as_unused(ticket)
        backward, early = kernels.backward_id(), self._early
        self._early = []
        for when, index in early:
            if when == backward:
                self.arrived(index)

    def _take_as_unused(self, ticket: Ticket) -> None:
        """Set up what this backward expects of each parameter."""
        if self.static_graph:
            self._need = list(self._expected) if self._expected is not None else [0] * len(self.parameters)
            self._unused = set() if self._expected is None else {i for i, n in enumerate(self._need) if n == 0}
        else:
            self._need = [1] * len(self.parameters)
            self._unused = set(ticket.unused or ())
        self._unused |= self.plan.left_out
        self._expect_no_more(self._unused)

    def _expect_no_more(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._need[index] = 0
            if index not in self.plan.left_out:
                self._bucket_of[index].missing -= 1

    @property
    def learning(self) -> bool:
        """First live backward of a static graph: arrivals are counted, nothing starts before its end (DDP-110)."""
        return self.static_graph and self._expected is None

    def _arm(self) -> None:
        self._armed = True
        kernels.call_at_end_of_backward(self._backward_ended)

    def arrived(self, index: int) -> None:
        """Autograd is done with parameter ``index``: it accumulated a local gradient, or passed None on (DDP-114)."""
        if self._context is not None and self.phase is Phase.FILLING:
            self._postponed.append(index)  # autograd does not say whether the gradient went to ``.grad``
            return
        searching = self.find_unused or self.static_graph
        none = searching and self.parameters[index].grad is None  # it only feeds outputs outside the loss
        if self.find_unused and not none:
            self._used_since_sync[index] = 1
        if self.phase is Phase.IDLE and not self._begins_late(index):
            return
        if none:
            if self.static_graph and not self.learning and not self._need[index]:
                return  # as in the first iteration
            self._unused.add(index)
        need = self._need[index] - 1
        self._need[index] = need
        if need == 0:
            self._order.append(index)
            bucket = self._bucket_of[index]
            bucket.missing -= 1
            if not bucket.missing:
                self._start_full_buckets()
        elif need < 0 and not self.learning:
            self._refuse_second_arrival(index)
        elif need == -1:
            self._order.append(index)

    def should_be_full(self, place: int) -> None:
        """The parameter that completed bucket ``place`` last time has accumulated."""
        bucket = self.buckets[place]
        if self.phase is Phase.IDLE or not bucket.missing:
            return
        if bucket.all_arrived():
            bucket.missing = 0
            self._start_full_buckets()
        else:
            self._count_again()

    def _begins_late(self, index: int) -> bool:
        """An arrival before its backward announced itself: outputs out of sight, or a parameter used outside."""
        ticket = self._latest
        if ticket is None or ticket.spent or not ticket.sync:
            return False
        if ticket.announced:
            self._early.append((kernels.backward_id(), index))
            return False
        self.begin(ticket)
        return True

    def _refuse_second_arrival(self, index: int) -> None:
        unused = index in self._unused
        self._fail(
            tell_second_arrival(self.specs[index], self.team.rank, taken_as_unused=unused, static=self.static_graph)
        )

    def _fail(self, text: str) -> None:
        self.traffic.around.fail(RuntimeError, text)

    # -- starting

    def _start_full_buckets(self) -> None:
        if not self._armed:  # a further backward through the same forward completes what the former one left open
            self._arm()
        with torch.no_grad():
            while len(self._flights) < len(self.buckets) and not self.buckets[len(self._flights)].missing:
                bucket = self.buckets[len(self._flights)]
                if not self._flights:
                    self.times.comm_start = time.time_ns()
                self.traffic.around.announce(bucket.spec.index)
                flat = bucket.collect(self._left_out(), self.traffic.factor_before())
                self._flights.append(self.traffic.start(bucket, flat, last=self._is_last(bucket)))

    def _is_last(self, bucket: Bucket) -> bool:
        return bucket is self.buckets[-1]

    def _left_out(self) -> Collection[int]:
        """Parameters that contribute zeros: not used now nor, with accumulation, since the last synchronisation."""
        if not self._unused or not self.find_unused:
            return self._unused
        return {index for index in self._unused if not self._used_since_sync[index]}

    # -- finishing

    def _backward_ended(self) -> None:
        """The engine's callback: a backward in which we armed is over."""
        self._armed = False
        if self.phase is not Phase.FILLING:
            return
        if self._context is not None and self._backward_ended_in(self._context):
            return
        nothing = not self._order and not any(bucket.arrived for bucket in self.buckets)
        if nothing and not kernels.accumulates_now(self.parameters):
            self.phase = Phase.IDLE  # torch.autograd.grad: nothing was accumulated, nothing is reduced
            return
        self._complete()

    def _backward_ended_in(self, context: int) -> bool:
        """Reduce the gradients that a backward of distributed autograd has left in its context, if there are any.

        Such a forward may also be followed by an ordinary backward; what arrived is looked at here in either case.
        """
        arrived, self._postponed, self._context = self._postponed, [], None
        self._armed = True
        with torch.no_grad(), borrowed_gradients(context, self.parameters) as present:
            for index in present:
                self.arrived(index)
            if present:
                self._complete()
        self._armed = False
        for index in [] if present else arrived:
            self.arrived(index)
        return bool(present)

    def _complete(self) -> None:
        """Reduce what has not started yet and deliver, unless a further backward is to complete this one."""
        if self.learning:
            self._learn_static_graph()
        elif self.find_unused:
            self._give_up_on([index for index, need in enumerate(self._need) if need > 0])
        if not self._arrivals.counted:
            self._look_into_buckets()
        for index in self._perhaps_early:
            if self._arrivals.counted and self._need[index] > 0:
                self.arrived(index)
        if self._arrivals.counted and any(need > 0 for need in self._need):
            return  # another backward may complete it; otherwise the next forward complains (DDP-062)
        self._armed = True  # whatever raises from here on has ended this backward
        with torch.no_grad():
            self._start_full_buckets()
            self._finish()
        self._armed = False

    def _look_into_buckets(self) -> None:
        """At the end of a backward: all is well if every list holds just what was awaited; else count."""
        for bucket in self.buckets:
            if bucket.missing and bucket.all_arrived():
                bucket.missing = 0
            if bucket.missing or len(bucket.arrived) != len(bucket.awaited):
                self._count_again()
                return

    def _give_up_on(self, indices: Sequence[int]) -> None:
        """Take as unused what has not arrived by the end of backward (outputs outside the loss: DDP-101)."""
        self._unused.update(indices)
        self._expect_no_more(indices)

    def _learn_static_graph(self) -> None:
        pairs = zip(self._need, self.parameters, strict=True)
        self._expected = [0 if parameter.grad is None else -need for need, parameter in pairs]
        self._unused = {index for index, count in enumerate(self._expected) if count == 0}
        self._need = [0] * len(self.parameters)
        for bucket in self.buckets:
            bucket.missing = 0

    def _finish(self) -> None:
        around = self.traffic.around
        self.times.backward_end = time.time_ns()
        around.announce(None)
        untouched: Collection[int] = self._never_used
        if self._agreement_due():
            untouched = self._agree_on_use([self._uses(index) for index in range(len(self.parameters))])
        for bucket, flight in zip(self.buckets, self._flights, strict=True):
            result, divisor = self.traffic.result(bucket, flight)
            bucket.deliver(result, untouched, divisor)
        self._await_others()
        self.times.comm_end = time.time_ns()
        self._graph_static &= self._former_unused in (None, self._unused)
        self._former_unused = self._unused
        if self._arrivals.counted:
            self.arrival_order = self._order
        self._used_since_sync = bytearray(len(self.parameters))
        self.phase = Phase.IDLE
        self._flights = []
        self._note_reduction(untouched)
        self._note_use_of_search()
        around.delivered()

    def arrived_order(self) -> list[int]:
        """The order of readiness in the last complete live backward; bucket by bucket where nobody counted."""
        noted = [self.index_of[parameter] for bucket in self.buckets for parameter in bucket.arrived]
        return self.arrival_order if self._arrivals.counted else noted

    def _note_reduction(self, untouched: Collection[int]) -> None:
        self.reductions += 1
        if self.skip_unused and set(untouched) - self.plan.left_out:
            kept = [i for bucket in self.buckets for i in bucket.spec.parameters if i not in untouched]
            self._lay_out(plan_buckets(self.specs, kept, self.caps))

    def _note_use_of_search(self) -> None:
        self._search_pays |= bool(self._unused)
        if self.find_unused and self.reductions >= 2 and not self._search_pays:
            tell_needless()

    def unused_bytes(self) -> int:
        """Size of the gradients that the last backward did not produce here."""
        return sum(self.specs[index].bytes for index in self._unused)

    def _agreement_due(self) -> bool:
        """Whether this reduction ends with an agreement on who used what. The same on every rank."""
        return self.find_unused or (self.static_graph and not self._use_agreed)

    def use_of(self, place: int) -> list[bool] | None:
        """Whether this rank uses each parameter of bucket ``place``, for hooks that step inside backward.

        None where this reduction does not agree on use: then all are used but those in ``never_used``. On a joined
        rank nothing is used.
        """
        if not self._agreement_due():
            return None
        live = self.phase is Phase.FILLING
        indices = self.buckets[place].spec.parameters
        return [live and self._uses(index) for index in indices]

    def _uses(self, index: int) -> bool:
        """Whether this rank used a parameter in this backward or, accumulating, since the last synchronisation."""
        return index not in self._unused or bool(self._used_since_sync[index])

    @property
    def never_used(self) -> frozenset[int]:
        """Static graph: the parameters that no rank uses, once the ranks have agreed on them."""
        return self._never_used

    def _agree_on_use(self, used: Sequence[bool]) -> frozenset[int]:
        untouched = self.traffic.agree_on_use(used, self.buckets[0].spec.device)
        if self.static_graph:
            self._never_used, self._use_agreed = untouched, True
        return untouched

    def _await_others(self) -> None:
        futures, self.other_futures = self.other_futures, []
        for future in futures:
            future.wait()

    # -- a joined rank's side

    def shadow_bucket(self) -> bool:
        """Start the next bucket's reduction with zeros, as the live ranks start it; False after the last one."""
        bucket = self.buckets[len(self._shadow_flights)]
        with torch.no_grad():
            zeros = bucket.zeros()
            self._shadow_flights.append(self.traffic.start(bucket, zeros, last=self._is_last(bucket)))
        return not self._is_last(bucket)

    def shadow_finish(self) -> None:
        """Go through the end of a reduction as the live ranks do; this rank's own gradients stay (DDPJ-010)."""
        with torch.no_grad():
            untouched: Collection[int] = self._never_used
            if self._agreement_due():
                untouched = self._agree_on_use([False] * len(self.parameters))
            for bucket, flight in zip(self.buckets, self._shadow_flights, strict=True):
                self.traffic.result(bucket, flight)
            self._await_others()
            self._shadow_flights = []
            self._note_reduction(untouched)

    def _get_local_used_map(self) -> torch.Tensor:
        """How many ranks used each parameter, as last agreed: (parameters,) int32."""
        return self.traffic.use_counts

    def _ddp_graph_static(self) -> bool:
        """Whether every synchronised backward so far left the same parameters out, so that the graph may be static."""
        return self._graph_static

    def _set_sparse_metadata(self, global_unique_ids: dict[str, torch.Tensor]) -> None:
        """Keep the global ids of sparse rows, for hooks that ask (DDP-169)."""
        self.sparse_metadata = global_unique_ids

