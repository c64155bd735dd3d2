"""The backwards of a live rank: which of them is reduced, what arrives in it, when it is over.

    IDLE ── begin: an output was reached, or ──► FILLING ── arrived, should_be_full: buckets start
      ▲     something arrived unannounced           │
      └──── delivered, or given up (abandon) ◄──────┘ a callback of the engine at its end; open until all have arrived
"""

from __future__ import annotations

import time
from enum import Enum

import torch

from . import kernels
from .log import Times
from .messages import describe_replaced, describe_unannounced
from .pending_backward import Forwards, PendingBackward
from .reduction import Reduction
from .remote import RemoteBackward


class Phase(Enum):
    """Where the reducer stands. Legal moves: IDLE → FILLING (begin), FILLING → IDLE (finish, abandon)."""

    IDLE = "no synchronised backward is under way"
    FILLING = "a synchronised backward has begun and has not delivered"


class Backwards(Reduction):
    """The side of a ``Reducer`` that autograd calls."""

    #: the forwards whose backward may come; supplied by ``Reducer``
    forwards: Forwards
    #: when the parts of this iteration began and ended, for the log; supplied by ``Reducer``
    times: Times

    phase = Phase.IDLE
    #: whether the engine will call ``_backward_ended`` for a backward now running
    _armed = False
    #: what the next forward is to complain about, unless a backward still puts it right
    _complaint = ""
    #: while FILLING: set if the backward is one of distributed autograd
    _remote: RemoteBackward | None = None

    def begin(self, pending: PendingBackward) -> None:
        """A backward through this pending's forward starts now."""
        backward = self.forwards.running_backward = kernels.backward_id()
        if pending.spent or not self.readiness.watching:
            return
        if pending.context is None and not kernels.accumulates_now(self.parameters, self.readiness.nodes):
            return  # torch.autograd.grad, or a backward to other inputs: the one that reduces may still come
        pending.spent = True
        self._complaint = ""
        if not pending.sync or self.phase is Phase.FILLING:
            return
        self._open(pending)
        self._arm()
        for index in self.forwards.came_early(backward):
            self.arrived(index)

    def _open(self, pending: PendingBackward) -> None:
        self.phase = Phase.FILLING
        self.times.backward_start = time.time_ns()
        self._remote = None if pending.context is None else RemoteBackward(pending.context)
        self.readiness.begin(pending.unused)
        self.transport.around.foretell()

    def _arm(self) -> None:
        self._armed = True
        kernels.call_at_end_of_backward(self._backward_ended)

    def arrived(self, index: int) -> None:
        """Autograd is done with parameter ``index``: it accumulated a local gradient, or passed None on (DDP-114)."""
        if self._remote is not None and self.phase is Phase.FILLING:
            self._remote.postponed.append(index)
            return
        received = self.usage.received(index, self.parameters[index].grad)
        if self.phase is Phase.IDLE and not self._begins_late(index):
            return
        if self.readiness.count(index, received):
            self._bucket_filled()

    def should_be_full(self, place: int) -> None:
        """The parameter that completed bucket ``place`` last time has accumulated."""
        if self.phase is Phase.IDLE:
            self._perhaps_unannounced(kernels.backward_id())
            return
        full = self.readiness.full(place)
        if full:
            self._bucket_filled()
        elif full is None:
            self._count_again()

    def _count_again(self) -> None:
        for index in self.readiness.count_again(under_way=self.phase is Phase.FILLING):
            self.arrived(index)

    def _begins_late(self, index: int) -> bool:
        """An arrival before its backward announced itself: outputs out of sight, or a parameter used outside."""
        backward = kernels.backward_id()
        pending = self.forwards.unannounced(backward, index)
        if pending is not None:
            self.begin(pending)
        else:
            self._perhaps_unannounced(backward)
        return pending is not None

    def _perhaps_unannounced(self, backward: int) -> None:
        """Something arrived while no output has told of a backward: look again when this backward is over."""
        if self.forwards.waits_for_another(backward):
            kernels.call_at_end_of_backward(self._unannounced_ended)

    def _unannounced_ended(self) -> None:
        """Reduce what a backward accumulated that went through no output: a penalty on gradients alone, say.

        It costs its forward nothing: averaging twice does no harm. Where it did not reach all parameters, it may have
        been one beside the forward's own (a penalty on weights), which will average what both have accumulated.
        """
        pending, backward = self.forwards.latest, self.forwards.unannounced_backward
        if self.phase is not Phase.IDLE or pending is None or pending.spent or backward is None:
            return
        came = {*self.forwards.came_early(backward), *self.readiness.noted()}
        awaited = set(range(len(self.parameters))) - self.usage.not_awaited(self.plan.left_out, pending.unused)
        missing = sorted(awaited - came)
        if missing:
            self._complaint = describe_unannounced(self.specs, missing, self.team.rank)
            return
        self._open(pending)
        self._armed = True
        for index in came if self.readiness.counted else ():
            self.arrived(index)
        self._complete()

    def _bucket_filled(self) -> None:
        if not self._armed:  # a further backward through the same forward completes what the former one left open
            self._arm()
        if not self.facts.holds_back:
            self._start_full_buckets()

    def _start_full_buckets(self) -> None:
        if not self.queue.started:
            self.times.comm_start = time.time_ns()
        with kernels.unrecorded():
            self.queue.start_full(self.usage.left_out())

    # -- finishing

    def _backward_ended(self) -> None:
        """The engine's callback: a backward in which we armed is over."""
        self._armed = False
        if self.phase is not Phase.FILLING:
            return
        remote, self._remote = self._remote, None
        if remote is None or not self._ended_remotely(remote):
            self._complete()

    def _ended_remotely(self, remote: RemoteBackward) -> bool:
        """Reduce the gradients that a backward of distributed autograd has left in its context, if there are any.

        Such a forward may also be followed by an ordinary backward; what arrived is looked at here in either case.
        """
        self._armed = True
        with torch.no_grad(), remote.borrowed_gradients(self.parameters) as present:
            for index in present:
                self.arrived(index)
            if present:
                self._complete()
        self._armed = False
        for index in [] if present else remote.postponed:
            self.arrived(index)
        return bool(present)

    def _complete(self) -> None:
        """Reduce what has not started yet and deliver, unless a further backward is to complete this one."""
        if not self.readiness.backward_ended():
            self._count_again()
        for index in self.readiness.overlooked():
            self.arrived(index)
        if self.readiness.missing():
            replaced = [] if self.readiness.anything() else self.transport.around.replaced()
            if replaced:
                self._complaint = describe_replaced(self.specs, replaced, self.team.rank)
            return  # another backward may complete it; otherwise the next forward complains (DDP-062)
        self._armed = True  # whatever raises from here on has ended this backward
        with kernels.unrecorded():
            if not self.queue.all_started:
                self._start_full_buckets()
            self._finish()
        self._armed = False

    def _finish(self) -> None:
        self.times.backward_end = time.time_ns()
        alone = self.queue.alone
        self.transport.around.announce(None)
        agreement = self._results(live=True)
        self.times.comm_end = time.time_ns()
        self.readiness.delivered()
        self.usage.delivered()
        self.phase = Phase.IDLE
        if not alone:
            self._note_reduction(agreement)
        self.usage.judge_search(self.facts.reductions)
        self.transport.around.delivered()

    @property
    def raised(self) -> bool:
        """Whether the last synchronised backward has ended by an exception, and nobody has asked for it yet."""
        return self.phase is Phase.FILLING and self._armed and kernels.backward_id() < 0

    @property
    def reducing_with_others(self) -> bool:
        """Whether buckets are under way that other ranks reduce, too."""
        return self.queue.started > 0 and not self.queue.alone

    def give_up_what_raised(self) -> None:
        """Nothing follows any more from a backward that has raised."""
        if self.raised:
            self.abandon()

    def abandon(self) -> None:
        """Give up a backward that cannot be completed: gradients stay as they are, the next iteration starts clean."""
        if self.queue.forsake():  # buffers in flight are left to their collectives
            self._lay_out(self.plan)
        self.phase = Phase.IDLE
        self._armed = False
        self.other_futures.clear()
