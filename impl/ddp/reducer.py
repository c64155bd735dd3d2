"""The reducer: watches gradients become ready, starts each bucket's reduction in plan order, delivers the results.

The life of a synchronised backward::

    forward ─ ticket ─► backward begins (hooks on the outputs) ─ arrivals ─► buckets start, in plan order
                                                                                   │
             gradients delivered ◄─ results ◄─ agreement on use ◄─ end of backward (a callback of the engine)

All collectives start on the thread that runs backward, in plan order. A joined rank walks the same way with zeros:
``shadow_bucket`` for each bucket, then ``shadow_finish``.

The reducer says when; ``Forwards`` knows whose backward may come, ``Readiness`` what has arrived, ``Use`` who uses
what, ``BucketQueue`` what has started, ``Planner`` which buckets there should be.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from enum import Enum
from typing import Any

import torch

from ..comm.ranks import Team
from . import kernels
from .arrivals import Arrivals
from .bucket import Bucket
from .bucket_queue import BucketQueue
from .complaints import COMPILED_BACKWARD, tell_replaced, tell_unannounced, tell_unfinished
from .log import Times
from .plan import BucketCaps, BucketPlan, ParameterSpec
from .planner import Planner
from .readiness import Readiness
from .remote import borrowed_gradients
from .ticket import Forwards, Ticket
from .traffic import Traffic
from .unused import reachable_parameters
from .use import Use


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
        self.use = Use(self.specs, traffic, find_unused=find_unused, static=static_graph)
        self.queue = BucketQueue(self.parameters, traffic, as_view=as_view)
        self.planner = Planner(self.specs, caps, self.use, skip_unused=skip_unused)
        self.readiness = Readiness(self.parameters, self.use, self.queue, Arrivals(self, recast=recast))

        self.phase = Phase.IDLE
        #: whether the engine will call ``_backward_ended`` for a backward now running
        self._armed = False
        self.forwards = Forwards()
        #: what the next forward is to complain about, unless a backward still puts it right
        self._complaint = ""
        #: futures of buffer hooks, to be awaited before backward returns (DDP-095)
        self.other_futures: list[torch.futures.Future[Any]] = []
        #: when the parts of this iteration began and ended, for the log
        self.times = Times()
        self.sparse_metadata: dict[str, torch.Tensor] = {}

        # -- valid while FILLING
        #: distributed-autograd context of the forward whose backward this is
        self._context: int | None = None
        #: arrivals in such a backward, looked at when it ends
        self._postponed: list[int] = []

        self._lay_out(self.planner.first())

    @property
    def team(self) -> Team:
        return self.traffic.team

    @property
    def plan(self) -> BucketPlan:
        """Where each parameter travels now."""
        return self.queue.plan

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets of that plan, in the order in which they start."""
        return self.queue.buckets

    # -- layout

    def _lay_out(self, plan: BucketPlan) -> None:
        self.queue.lay_out(plan)
        self.readiness.buckets_are_new()

    def proposed_order(self) -> list[int]:
        """This rank's proposal for the rebuilt plan: all parameters, by arrival as far as it has seen them arrive."""
        seen = dict.fromkeys(self.readiness.order())
        return [*seen, *(i for bucket in self.plan.buckets for i in bucket.parameters if i not in seen)]

    def rebuild(self, order: Sequence[int]) -> None:
        """Lay the buckets out anew, in the order that all ranks agreed on."""
        self._lay_out(self.planner.following(order))
        if self.planner.may_be_noted:
            self.readiness.settle()

    def move_to(self, team: Team) -> None:
        """Reduce over another team; everything learned from backwards is forgotten and agreed anew (DDP-164)."""
        self.traffic.move_to(team)
        self.start_over()

    def start_over(self, *, static_graph: bool = False) -> None:
        """Forget everything learned from backwards; optionally become a static-graph reducer (DDP-109)."""
        self.abandon()
        self.use.forget(turn_static=static_graph)
        self.readiness.forget()
        self._lay_out(self.planner.first())

    def watch_anew(self) -> None:
        """The parameters were moved or cast, which may have given them new nodes: watch those."""
        self.readiness.watch_anew()

    def remove_hooks(self) -> None:
        """Stop watching gradients: from now on backward is local (DDP-066)."""
        self.readiness.stop()

    # -- forward

    def admit(self, ticket: Ticket) -> None:
        """Note a grad-enabled forward, whose backward may now come."""
        if ticket.sync and kernels.backwards_are_compiled():
            self.traffic.around.fail(RuntimeError, COMPILED_BACKWARD)
        self.forwards.admit(ticket)
        if self.readiness.counted:
            return
        if ticket.sync and not (ticket.announced and ticket.context is None):
            self._count_again()  # nothing but the arrivals themselves will tell that its backward begins
        elif self.phase is Phase.IDLE:
            self.readiness.forward_begins()

    def prepare_for_backward(self, outputs: Sequence[torch.Tensor]) -> None:
        """Let the coming backward be synchronised, whatever its forward was told.

        Trainers and pipelines call this after forwards under ``no_sync``. ``outputs`` are searched for what the
        backward cannot reach, if anything is searched.
        """
        self.check_finished()
        ticket = Ticket(sync=True)
        if outputs and self.use.searched:
            ticket.unused = set(range(len(self.parameters))) - reachable_parameters(outputs, self.readiness.index_of)
        self.admit(ticket)

    def _rebuild_buckets(self) -> bool:
        """Nothing to do, and False: where buckets are due to be rebuilt, the next synchronised forward does it."""
        return False

    def check_finished(self) -> None:
        """RuntimeError if the last synchronised backward left gradients unreduced (DDP-034, DDP-062, DDP-063)."""
        complaint, self._complaint = self._complaint, ""
        if complaint:
            self.abandon()
            self.traffic.around.fail(RuntimeError, complaint)
        if self.phase is Phase.IDLE:
            return
        if self._armed or not self.readiness.anything():
            self.abandon()  # that backward raised, and its caller has seen it; or it went past all parameters
            return
        missing, started = self.readiness.missing(), self.queue.started
        self.abandon()
        text = tell_unfinished(self.specs, missing, self.team.rank, started, static=self.use.static)
        self.traffic.around.fail(RuntimeError, text)

    def abandon(self) -> None:
        """Give up a backward that cannot be completed: gradients stay as they are, the next iteration starts clean."""
        if self.queue.forsake():  # buffers in flight are left to their collectives
            self._lay_out(self.plan)
        self.phase = Phase.IDLE
        self._armed = False
        self.other_futures.clear()

    # -- backward

    def begin(self, ticket: Ticket) -> None:
        """A backward through this ticket's forward starts now."""
        backward = self.forwards.running_backward = kernels.backward_id()
        if ticket.spent or not self.readiness.watching:
            return
        if ticket.context is None and not kernels.accumulates_now(self.parameters, self.readiness.nodes):
            return  # torch.autograd.grad, or a backward to other inputs: the one that reduces may still come
        ticket.spent = True
        self._complaint = ""
        if not ticket.sync or self.phase is Phase.FILLING:
            return
        self._open(ticket)
        self._arm()
        for index in self.forwards.came_early(backward):
            self.arrived(index)

    def _open(self, ticket: Ticket) -> None:
        self.phase = Phase.FILLING
        self.times.backward_start = time.time_ns()
        self._context, self._postponed = ticket.context, []
        self.readiness.begin(ticket.unused)
        self.traffic.around.foretell()

    def _arm(self) -> None:
        self._armed = True
        kernels.call_at_end_of_backward(self._backward_ended)

    def arrived(self, index: int) -> None:
        """Autograd is done with parameter ``index``: it accumulated a local gradient, or passed None on (DDP-114)."""
        if self._context is not None and self.phase is Phase.FILLING:
            self._postponed.append(index)  # autograd does not say whether the gradient went to ``.grad``
            return
        received = self.use.received(index, self.parameters[index].grad)
        if self.phase is Phase.IDLE and not self._begins_late(index):
            return
        if self.readiness.count(index, received):
            self._start_full_buckets()

    def should_be_full(self, place: int) -> None:
        """The parameter that completed bucket ``place`` last time has accumulated."""
        if self.phase is Phase.IDLE:
            self._perhaps_unannounced(kernels.backward_id())
            return
        full = self.readiness.full(place)
        if full:
            self._start_full_buckets()
        elif full is None:
            self._count_again()

    def _count_again(self) -> None:
        for index in self.readiness.count_again(under_way=self.phase is Phase.FILLING):
            self.arrived(index)

    def _begins_late(self, index: int) -> bool:
        """An arrival before its backward announced itself: outputs out of sight, or a parameter used outside."""
        backward = kernels.backward_id()
        ticket = self.forwards.unannounced(backward, index)
        if ticket is not None:
            self.begin(ticket)
        else:
            self._perhaps_unannounced(backward)
        return ticket is not None

    def _perhaps_unannounced(self, backward: int) -> None:
        """Something arrived while no output has told of a backward: look again when this backward is over."""
        if self.forwards.waits_for_another(backward):
            kernels.call_at_end_of_backward(self._unannounced_ended)

    def _unannounced_ended(self) -> None:
        """Reduce what a backward accumulated that went through no output: a penalty on gradients alone, say.

        It costs its forward nothing: averaging twice does no harm. Where it did not reach all parameters, it may have
        been one beside the forward's own (a penalty on weights), which will average what both have accumulated.
        """
        ticket, backward = self.forwards.latest, self.forwards.unannounced_backward
        if self.phase is not Phase.IDLE or ticket is None or ticket.spent or backward is None:
            return
        came = {*self.forwards.came_early(backward), *self.readiness.noted()}
        awaited = set(range(len(self.parameters))) - self.use.not_awaited(self.plan.left_out, ticket.unused)
        missing = sorted(awaited - came)
        if missing:
            self._complaint = tell_unannounced(self.specs, missing, self.team.rank)
            return
        self._open(ticket)
        self._armed = True
        for index in came if self.readiness.counted else ():
            self.arrived(index)
        self._complete()

    def _start_full_buckets(self) -> None:
        if not self._armed:  # a further backward through the same forward completes what the former one left open
            self._arm()
        if not self.queue.started:
            self.times.comm_start = time.time_ns()
        with kernels.unrecorded():
            self.queue.start_full(self.use.left_out())

    # -- finishing

    def _backward_ended(self) -> None:
        """The engine's callback: a backward in which we armed is over."""
        self._armed = False
        if self.phase is not Phase.FILLING:
            return
        if self._context is not None and self._backward_ended_in(self._context):
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
        if not self.readiness.backward_ended():
            self._count_again()
        for index in self.readiness.overlooked():
            self.arrived(index)
        if self.readiness.missing():
            replaced = [] if self.readiness.anything() else self.traffic.around.replaced()
            if replaced:
                self._complaint = tell_replaced(self.specs, replaced, self.team.rank)
            return  # another backward may complete it; otherwise the next forward complains (DDP-062)
        self._armed = True  # whatever raises from here on has ended this backward
        with kernels.unrecorded():
            if not self.queue.all_started:
                self._start_full_buckets()
            self._finish()
        self._armed = False

    def _finish(self) -> None:
        self.times.backward_end = time.time_ns()
        self.traffic.around.announce(None)
        untouched = self.use.used_by_nobody(live=True)
        self.queue.deliver(untouched)
        self._await_others()
        self.times.comm_end = time.time_ns()
        self.readiness.delivered()
        self.use.delivered()
        self.phase = Phase.IDLE
        self._note_reduction(untouched)
        self.use.judge_search(self.planner.reductions)
        self.traffic.around.delivered()

    def _note_reduction(self, untouched: Collection[int]) -> None:
        plan = self.planner.after_reduction(self.plan, untouched)
        if plan is not None:
            self._lay_out(plan)

    def _await_others(self) -> None:
        futures, self.other_futures = self.other_futures, []
        for future in futures:
            future.wait()

    # -- a joined rank's side

    def shadow_bucket(self) -> bool:
        """Start the next bucket's reduction with zeros, as the live ranks start it; False after the last one."""
        with torch.no_grad():
            return self.queue.shadow_next()

    def shadow_finish(self) -> None:
        """Go through the end of a reduction as the live ranks do."""
        with torch.no_grad():
            untouched = self.use.used_by_nobody(live=False)
            self.queue.shadow_results()
            self._await_others()
            self._note_reduction(untouched)

    # -- for others

    def use_of(self, place: int) -> list[bool] | None:
        """Whether this rank uses each parameter of bucket ``place``, for hooks that step inside backward.

        None where this reduction does not agree on use: then all are used but those in ``never_used``. On a joined
        rank nothing is used.
        """
        if not self.use.agreement_due:
            return None
        live = self.phase is Phase.FILLING
        return [live and self.use.here(index) for index in self.buckets[place].spec.parameters]

    @property
    def never_used(self) -> frozenset[int]:
        """Static graph: the parameters that no rank uses, once the ranks have agreed on them."""
        return self.use.never

    def _set_sparse_metadata(self, global_unique_ids: dict[str, torch.Tensor]) -> None:
        """Keep the global ids of sparse rows, for hooks that ask (DDP-169)."""
        self.sparse_metadata = global_unique_ids
