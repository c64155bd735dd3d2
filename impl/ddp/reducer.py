"""The reducer: watches gradients become ready, starts each bucket's reduction in plan order, delivers the results.

The life of a synchronised backward::

    forward ─ pending backward ─► backward begins (output hooks) ─ gradients ready ─► buckets start, in plan order
                                                                                   │
             gradients delivered ◄─ results ◄─ agreement on use ◄─ end of backward (a callback of the engine)

    IDLE ── begin: an output was reached, or ──► FILLING ── arrived, should_be_full: buckets start
      ▲     something arrived unnoticed             │
      └──── delivered, or given up (abandon) ◄──────┘ a callback of the engine at its end; open until all have arrived

All collectives start on the thread that runs backward, in plan order. The reducer says when, by going through stages;
``Reduction`` does them. Its other parts know the rest: ``Forwards`` whose backward may come, ``Readiness`` what has
arrived, ``Usage`` who uses what, ``SharedFacts`` what is equal on every rank. What must be equal on every rank depends
on nothing but reductions, each of which every rank has either lived or shadowed.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from enum import Enum
from operator import attrgetter
from typing import Any, NoReturn

import torch

from ..comm import collectives
from ..comm.ranks import Team
from . import kernels
from .buckets import Bucket
from .containers import find_tensors
from .graph import reachable_parameters
from .iteration import Stage
from .log import DDPLogger
from .messages import (
    COMPILED_BACKWARD,
    INSIDE_THE_FORWARD,
    PAST_THE_WRAPPER,
    STEPPED_ALREADY,
    describe_replaced,
    describe_unfinished,
    describe_unnoticed,
)
from .mixed_precision import MixedPrecisionRun
from .optimizer_in_backward import OptimizersInBackward
from .params import Managed, replaced, respecified, specs_of
from .pending_backward import Forwards, PendingBackward, call_when_backward_begins, tied
from .plan import BucketCaps, BucketPlan, ParameterSpec, checked_order, expected_plan, first_plan, plan_buckets
from .readiness import Arrivals, Readiness, call_when_backward_is_over
from .reduction import BucketQueue, Reduction, Transport
from .remote import RemoteBackward
from .shared import SharedFacts
from .usage import Usage

#: mapped over all parameters before each forward, where a Python loop would show; ``grad_dtype`` since torch 2.10
_form_of = attrgetter("shape", "dtype", *["grad_dtype"] * hasattr(torch.Tensor, "grad_dtype"))


class Phase(Enum):
    """Where the reducer stands. Legal moves: IDLE → FILLING (begin), FILLING → IDLE (finish, abandon)."""

    IDLE = "no synchronised backward is under way"
    FILLING = "a synchronised backward has begun and has not delivered"


#: all that there are, by their ids
_reducers: weakref.WeakValueDictionary[int, Reducer] = weakref.WeakValueDictionary()


def all_reducers() -> list[Reducer]:
    """Those that there are. Another thread may make a model meanwhile."""
    return [reducer for reference in _reducers.valuerefs() if (reducer := reference()) is not None]


@atexit.register
def _warn_of_the_unfinished() -> None:
    for reducer in all_reducers():
        reducer.warn_if_unfinished()


_NOWHERE = object()  # where no graph ends
_NO_CONTEXT = nullcontext()  # instead of ``torch.no_grad()``, 3 µs, as most backwards record no gradients


class Reducer:
    """Averages the gradients of ``parameters`` over a team. One for each DDP object."""

    def __init__(
        self,
        module: torch.nn.Module,
        parameters: Sequence[torch.nn.Parameter],
        specs: Sequence[ParameterSpec],
        transport: Transport,
        caps: BucketCaps,
        log: DDPLogger,
        *,
        find_unused: bool,
        as_view: bool,
        skip_unused: bool = False,
        lowered: MixedPrecisionRun | None = None,
        frozen: Sequence[Managed] = (),
    ) -> None:
        self.parameters = list(parameters)
        self.specs = list(specs)
        #: of those that the object manages, too; they join the others when they are thawed
        self._frozen = list(frozen)
        #: called when they have
        self.if_thawed: Callable[[], None] | None = None
        self.transport = transport
        self.log = log
        #: what the parameters belong to; they may have been replaced in it
        self.module = module
        self.iteration = transport.iteration
        #: equal on every rank; changed here only
        self.facts = SharedFacts(find_unused=find_unused, skip_unused=skip_unused)
        self.usage = Usage(self.specs, self.iteration, self.facts, log)
        self.caps = caps
        self.queue = BucketQueue(self.parameters, transport, self.facts, as_view=as_view)
        self.reduction = Reduction(transport, self.facts, self.usage, self.queue, self.specs, caps, log.times)
        recast = lowered is not None and lowered.config.param_dtype is not None
        self.arrivals = Arrivals(self, self.parameters, lowered=recast)
        #: what lowers the parameters, if anything does
        self._lowered = lowered
        #: of the parameters at the last look; the buckets are made for these
        self._forms = list(map(_form_of, self.parameters))
        #: of the parameters when the buckets were laid out
        self._strides: list[tuple[int, ...]] = []
        self.readiness = Readiness(self.parameters, self.facts, self.usage, self.queue, self.arrivals)
        #: the forwards whose backward may come
        self.forwards = Forwards()
        #: when the parts of this iteration began and ended
        self.times = log.times
        #: stepped with the averaged gradients, before backward returns
        self.optimizers: list[OptimizersInBackward | torch.optim.Optimizer] = []
        #: held by whatever autograd calls. On a module on several devices it goes backward on a thread for each, all at
        #: once, and two of them that both find bucket 3 full would both start it; each call may call others from inside
        self.turn = threading.RLock()
        #: whether the communication hook steps an optimizer in every reduction
        self.steps_by_hook = False
        #: the last forward of which a backward was reduced that did not go through its outputs
        self._reduced_past: PendingBackward | None = None
        self.phase = Phase.IDLE
        self.sparse_metadata: dict[str, torch.Tensor] = {}
        #: the backward for which the engine will call ``_backward_ended``, if any; -1 once it delivers
        self._armed: int | None = None
        #: whether that one has raised, and nobody has asked for it yet
        self.raised = False
        #: what the next forward is to complain about, unless a backward still puts it right
        self._complaint = ""
        #: what a backward has left out while the module held it
        self._unused_before: set[int] = set()
        #: whether the user has been warned of backwards that go past the wrapper's forward; once is enough
        self._warned = False
        self._accumulated_inside = False  # whether a backward within a forward has brought gradients
        #: while FILLING: set if the backward is one of distributed autograd
        self._remote: RemoteBackward | None = None
        #: likewise: the forward, what arrived between it and this backward, and where this one has entered the graph
        self._pending = PendingBackward(sync=False)
        self._came_before: list[int] = []
        self._came_now: list[int] = []  # those that came in the same backward as what follows
        self._entered_at: torch.autograd.graph.Node | None = None
        self._lay_out_first()
        #: reducers of other wrappers that average some of the same parameters
        self._beside: weakref.WeakSet[Reducer] = weakref.WeakSet()
        _reducers[id(self)] = self
        self._find_those_beside()

    @property
    def team(self) -> Team:
        """The ranks that gradients are averaged over."""
        return self.iteration.team

    @property
    def lowers(self) -> bool:
        """Whether the parameters change their dtype in each iteration."""
        return self._lowered is not None

    @property
    def plan(self) -> BucketPlan:
        """Where each parameter travels now."""
        return self.queue.plan

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets of that plan, in the order in which they start."""
        return self.queue.buckets

    # -- layout

    def expected_plan(self) -> BucketPlan:
        """The plan that the buckets have settled on; until then, the one that they are likely to settle on."""
        return self.plan if self.facts.rebuilt or self.facts.searched else expected_plan(self.specs, self.caps)

    def _lay_out_first(self) -> None:
        self._lay_out(first_plan(self.specs, self.caps, will_be_rebuilt=not self.facts.searched))
        self.log.note_plan(self.plan, self.specs, rebuilt=False)

    def _lay_out(self, plan: BucketPlan) -> None:
        self.queue.lay_out(plan)
        self._strides = self._strides_now()
        self.readiness.buckets_are_new()

    def _strides_now(self) -> list[tuple[int, ...]]:
        return list(map(torch.Tensor.stride, self.parameters))

    def replan_due(self) -> bool:
        """Whether this forward begins with an agreement on the order of buckets.

        Not under ``no_sync``, unless some model of the group synchronises buffers: where ranks accumulate over
        unequally many batches, those come with the first forward of some and with the synchronised one of others.
        """
        if not self.facts.rebuild_due or not torch.is_grad_enabled():
            return False
        iteration = self.iteration
        return iteration.wants_reductions or (iteration.session is None and self.team.tally.buffers_travel)

    def replan(self) -> None:
        """Agree on the order that the source of this iteration proposes, and lay the buckets out anew."""
        device = self.team.control_device(self.buckets[0].spec.device)
        proposed = torch.tensor(self.proposed_order(), dtype=torch.int64, device=device)
        source = self.iteration.source()
        agreed = collectives.broadcast(self.team, proposed, source, "bucket order").wait(self.iteration.watch())
        due = set(range(len(self.parameters))) - self.plan.left_out
        order = checked_order(agreed.tolist(), due, f"rank {self.team.rank} has received from rank {source}")
        self.rebuild(order)
        self.log.note_plan(self.plan, self.specs, rebuilt=True)

    def proposed_order(self) -> list[int]:
        """This rank's proposal for the rebuilt plan: what the plan holds, by arrival as far as it has seen that."""
        seen = dict.fromkeys(self.readiness.order())
        return [*seen, *(index for index in self.plan.order if index not in seen)]

    def rebuild(self, order: Sequence[int]) -> None:
        """Lay the buckets out anew, in the order that all ranks agreed on."""
        self.facts.plan_rebuilt()
        self._lay_out(plan_buckets(self.specs, order, self.caps))
        if self.usage.each_arrives_once:
            self.readiness.begin_noting()

    def _rebuild_buckets(self) -> bool:
        """Nothing to do, and False: where buckets are due to be rebuilt, one of the next forwards does it."""
        return False

    def keep_gradients_apart(self) -> None:
        """Another wrapper averages them, too, in the same backward: neither may see what the other's buckets hold."""
        if self.queue.keep_apart():
            self._lay_out(self.plan)

    # -- beginning anew

    def move_to(self, team: Team) -> None:
        """Reduce over another team; everything learned from backwards is forgotten and agreed anew (DDP-164)."""
        self.transport.move_to(team)
        self.start_over()

    def start_over(self, *, static_graph: bool = False) -> None:
        """Forget everything learned from backwards; optionally become a static-graph reducer (DDP-109). What the last
        backward has left unreduced is complained of all the same."""
        if self._left_open:
            self._complaint = self._unfinished()
        self.abandon()
        self.facts.start_over(turn_static=static_graph)
        self.usage.forget()
        self.readiness.forget()
        self._lay_out_first()

    def watch_anew(self) -> None:
        """The parameters were moved, cast or laid out otherwise, on all ranks alike: new buckets, and new nodes to
        watch. They hold full values now."""
        former, self._forms = self._forms, list(map(_form_of, self.parameters))
        specs = respecified(self.specs, self.parameters)
        if self._lowered is not None:
            specs = self._lowered.reduced_specs(specs)
        self.iteration.recast |= specs != self.specs or former != self._forms
        if specs != self.specs:
            self.specs[:] = specs
            self.start_over()
        elif self.phase is Phase.IDLE and self._strides_now() != self._strides:
            self._lay_out(self.plan)
        self.readiness.watch_anew()

    def notice_changes(self) -> None:
        """Watch anew if some parameters were cast past the wrapper (``ddp.module.head.double()``), thawed or laid out
        otherwise, of which a fused optimizer must find the gradients laid out alike. All ranks ask at the same points:
        before a forward, and where a join context begins, in which a rank may make none."""
        if self._frozen and any(item.trained for item in self._frozen):
            self.restore_full_values()  # a forward whose backward has not come may have lowered them
            self._take_in_thawed()
        if self._lowered is not None and self._lowered.lowered_now:
            return
        if list(map(_form_of, self.parameters)) != self._forms or self._strides_now() != self._strides:
            self.watch_anew()

    def _take_in_thawed(self) -> None:
        """Average what is trained now and was not when the model was wrapped; all ranks have its values since then."""
        thawed = [item for item in self._frozen if item.trained]
        self._frozen = [item for item in self._frozen if not item.trained]
        first = len(self.parameters)
        self.parameters += [item.parameter for item in thawed]
        specs = [replace(spec, index=first + spec.index) for spec in specs_of(thawed)]
        if self._lowered is not None:
            self._lowered.watch([item.parameter for item in thawed])
            specs = self._lowered.reduced_specs(specs)
        self.specs += specs
        self._forms += map(_form_of, self.parameters[first:])
        self.iteration.recast = True
        self.start_over()
        self._find_those_beside()
        if self.if_thawed is not None:
            self.if_thawed()
        self.log.note_parameters(respecified(self.specs, self.parameters))

    def _find_those_beside(self) -> None:
        """Find reducers that average some of the same parameters, and tell them of this one."""
        mine, others = set(map(id, self.parameters)), [each for each in all_reducers() if each is not self]
        self._beside.update(each for each in others if not mine.isdisjoint(map(id, each.parameters)))
        for other in self._beside:
            other._beside.add(self)

    def remove_hooks(self) -> None:
        """Stop watching gradients: from now on backward is local (DDP-066)."""
        self.arrivals.stop()

    # -- forward

    def expect_backward(
        self, output: Any, given: Mapping[torch.Tensor, Any], *, sync: bool, clone: bool
    ) -> Any:
        """A grad-enabled forward ends: arrange that its backward is noticed; returns the output to hand out.

        An argument of the forward that is handed out as it was (in ``given``, with where its graph ended) tells of no
        backward of ours. ``sync``: the backward is to be synchronised. ``clone``: outputs that pass the sink may be
        changed in place.
        """
        pending = PendingBackward(sync)
        pending.averaged = sync and self.iteration.team.size > 1
        found = [output] if isinstance(output, torch.Tensor) else find_tensors(output)
        if self._accumulated_inside:
            self._refuse_a_loss_inside(sync, found)
        made = [each for each in found if given.get(each, _NOWHERE) is not each.grad_fn] if given else found
        # under a transform, as vmap's, outputs do not tell of the graph behind them
        tells = self.facts.use_varies and not kernels.transforming()
        through_sink = tells and (self.facts.searched or self.facts.holds_back)
        # also where a sink follows: a container may keep the tensors that it was made with
        call_when_backward_begins(made, pending, self.begin, changeable=not through_sink)
        if self.facts.searched and through_sink:
            pending.unused = self._out_of_reach(found)
        if through_sink or (tells and not pending.noticeable):  # then an argument that is handed out must do
            output = tied(output, made if pending.noticeable else found, pending, self.begin, clone)
        self.admit(pending)
        return output

    def _refuse_a_loss_inside(self, sync: bool, outputs: Sequence[torch.Tensor]) -> None:
        """RuntimeError where what the forward has accumulated by itself is all that this iteration brings."""
        self._accumulated_inside = False
        left = any(parameter.grad is not None for parameter in self.parameters)
        if sync and left and not any(output.requires_grad for output in outputs):
            self.log.fail(RuntimeError, INSIDE_THE_FORWARD)

    def _out_of_reach(self, outputs: Sequence[torch.Tensor]) -> set[int]:
        """The parameters that a backward from these outputs does not reach."""
        return set(range(len(self.parameters))) - reachable_parameters(outputs, self.readiness.index_of)

    def admit(self, pending: PendingBackward) -> None:
        """Note a grad-enabled forward, whose backward may now come."""
        if pending.sync and "torch._dynamo" in sys.modules and kernels.backwards_are_compiled():
            self.log.fail(RuntimeError, COMPILED_BACKWARD)
        self.forwards.admit(pending)
        self.iteration.awaits_backward = pending.sync
        if self._beside and pending.sync and (others := [each for each in self._beside if each.forwards.awaited]):
            for each in [self, *others]:
                each.keep_gradients_apart()
        if self.arrivals.counted:
            return
        if self.arrivals.watching and pending.sync and not (pending.noticeable and pending.context is None):
            self._count_again()  # nothing but the arrivals themselves will tell that its backward begins
        else:
            self.readiness.forget_noted()

    def prepare_for_backward(self, outputs: Sequence[torch.Tensor]) -> None:
        """Let the coming backward be synchronised, whatever its forward was told.

        Trainers and pipelines call this after forwards under ``no_sync``. ``outputs`` are searched for what the
        backward cannot reach, if anything is searched.
        """
        self.check_finished()
        pending = PendingBackward(sync=True)
        if outputs and self.facts.searched:
            pending.unused = self._out_of_reach(outputs)
        self.admit(pending)

    def check_finished(self) -> None:
        """RuntimeError if the last synchronised backward left gradients unreduced (DDP-034, DDP-062, DDP-063)."""
        complaint, self._complaint = self._complaint, ""
        if self.forwards.only_past and not self.arrivals.counted:
            complaint = complaint or self._passed_unnoticed()
        if complaint:
            self._complain(complaint)
        if self.phase is Phase.IDLE:
            return
        if self._left_open:
            self._complain(self._unfinished())
        self._end_what_raised()  # and its caller has seen it; or it went past all parameters

    def _complain(self, text: str) -> NoReturn:
        """RuntimeError for a backward that has come to nothing here; others may be in its reduction."""
        self.iteration.break_off("backward", RuntimeError(text), shadowed=self.reducing_with_others)
        self._go_idle()  # without a wait for others, so that the error comes first
        self.log.fail(RuntimeError, text)

    def _passed_unnoticed(self) -> str:
        """What to complain of where all backwards since the last forward went past its outputs and completed no list of
        arrivals either: so none was looked at when it ended."""
        came = self.readiness.noted()
        if all(self.parameters[index].grad is None for index in came):
            return ""  # nothing has come, or it was cleared
        missing = sorted(set(range(len(self.parameters))).difference(came))
        return describe_unnoticed(self.specs, missing, self.team.rank)

    @property
    def _left_open(self) -> bool:
        """Whether the last synchronised backward has ended and left gradients unreduced."""
        return self.phase is Phase.FILLING and self._armed is None and self.readiness.anything()

    def _unfinished(self) -> str:
        missing, started, static = self.readiness.missing(), self.queue.started, self.facts.static
        return describe_unfinished(self.specs, missing, self.team.rank, started, static=static)

    def warn_if_unfinished(self) -> None:
        """UserWarning if the last synchronised backward left gradients unreduced; where no forward comes to say so."""
        if self._left_open:
            warnings.warn(self._unfinished(), UserWarning, stacklevel=2)

    # -- backward, as autograd reports it

    def begin(self, pending: PendingBackward) -> None:
        """The backward that this forward has pending starts now."""
        with self.turn:
            backward = Forwards.running_anywhere = kernels.backward_id()
            if self.raised:  # it was caught, and no forward has come in between
                if self.iteration.session is not None:
                    self.iteration.session.refuse_to_go_on()
                self.abandon()
            if self._lowered is not None and backward != self.forwards.running_backward:
                self._lowered.before_backward()
            if self.facts.use_varies and backward != self.forwards.running_backward:
                self.usage.look(self.parameters)
            self.forwards.note_running(backward, pending)
            if self.iteration.futures and not pending.sync:
                # what a buffer hook has started is done when this backward returns, though it stays local (DDP-095)
                call_when_backward_is_over(self.iteration.await_futures, self._backward_failed)
            if (pending.spent and not pending.partial) or not self.arrivals.watching:
                self.forwards.only_past = False
                return
            if pending.context is None and not self.arrivals.accumulates_now():
                pending.differentiated = True
                return  # torch.autograd.grad, or a backward to other inputs: the one that reduces may still come
            self.forwards.only_past, pending.spent = False, True
            if not pending.sync:
                return
            self._complaint = ""
            if self.phase is Phase.FILLING:
                return
            if pending is self._reduced_past and self.steps_by_hook:
                self.log.fail(RuntimeError, STEPPED_ALREADY)
            self._open(pending, None if pending.unused is None else self.forwards.beyond_reach(pending))
            self._entered_at = kernels.running_node() if self.facts.agreement_due else None
            self._arm()
            if self.forwards.early:
                came_early = self.forwards.came_early(backward)
                self.forwards.early.clear()
                for index in came_early:
                    self.arrived(index)
            if self.usage.unused and self._remote is None and not self.facts.holds_back:
                self._start_full_buckets()  # nothing need arrive for those; a model behind this one is reduced later

    def _open(self, pending: PendingBackward, beyond_reach: set[int] | None) -> None:
        if self.plan.left_out:
            self.usage.refuse_left_out(self.plan.left_out, self.parameters)
        self.phase = Phase.FILLING
        fresh = self.iteration.awaits_backward and pending is self.forwards.latest
        self._came_before = self.readiness.noted() if fresh and not self.arrivals.counted else []
        self._came_now = self.readiness.of_this_backward(self._came_before) if self._came_before else []
        if self.forwards.early:
            self._came_before += self.forwards.came_before(kernels.backward_id())
        self._pending, self._entered_at = pending, None
        self.iteration.awaits_backward = False
        self.times.backward_start = time.time_ns()
        self._remote = None if pending.context is None else RemoteBackward(pending.context)
        self.readiness.begin(beyond_reach)
        session = self.iteration.session
        if session is not None and self.queue.only_sums:
            self.iteration.announce_early(session)

    def _arm(self) -> None:
        self._armed = kernels.backward_id()
        call_when_backward_is_over(self._backward_ended, self._backward_failed)

    def arrived(self, index: int, passed: bool = True) -> None:
        """Autograd is done with parameter ``index``: it accumulated a local gradient, or passed None on (DDP-114).

        ``passed``: which of the two, as far as that is known; a gradient may be there from before, or written past
        autograd.
        """
        with self.turn:
            if self._remote is not None and self.phase is Phase.FILLING:
                if passed:
                    self._remote.came.add(index)
                return  # looked at when this backward ends
            gradient = self.parameters[index].grad
            if not passed and not self.usage.wrote_itself(index, gradient):
                gradient = None
            received = not self.facts.use_varies or self.usage.received(index, gradient)
            if self.raised and self._pending.noticeable:  # until an output tells, what arrives comes with others
                return
            if self.phase is Phase.IDLE and not self._begins_late(index):
                if received and kernels.backward_id() == self.forwards.running_backward:
                    self.usage.refuse_late(index, synchronised=self.forwards.running_sync)
                return
            if self.readiness.count(index, received):
                self._bucket_filled()

    def should_be_full(self, place: int) -> None:
        """The parameter that completed bucket ``place`` last time has accumulated."""
        with self.turn:
            if self.raised and self._pending.noticeable:
                return
            bucket = self.queue.buckets[place]
            if self.phase is Phase.IDLE:
                self._perhaps_unnoticed(kernels.backward_id())
                if self.forwards.awaited is None:
                    bucket.arrived.clear()  # it would grow with each backward past the wrapper
                return
            if not bucket.missing:
                return
            if bucket.all_arrived():
                bucket.missing = 0
                self._bucket_filled()
            else:
                self._count_again()

    def _count_again(self) -> None:
        for index in self.readiness.count_again(under_way=self.phase is Phase.FILLING):
            self.arrived(index)

    def _begins_late(self, index: int) -> bool:
        """An arrival before its backward was noticed: outputs out of sight, or a parameter used outside."""
        backward = kernels.backward_id()
        pending = self.forwards.unnoticed(backward, index)
        if pending is not None:
            self.begin(pending)
        else:
            self._perhaps_unnoticed(backward)
        return pending is not None

    def _perhaps_unnoticed(self, backward: int) -> None:
        """Something arrived while no output has told of a backward: look again when this backward is over."""
        if self.forwards.waits_for_another(backward):
            call_when_backward_is_over(self._unnoticed_ended, self._backward_failed)
        elif self.iteration.records:
            self._accumulated_inside = True
        elif self.forwards.goes_past(backward) and self.iteration.wants_reductions and not self._warned:
            self._warned = True
            warnings.warn(PAST_THE_WRAPPER, UserWarning, stacklevel=2)

    def _unnoticed_ended(self) -> None:
        """Reduce what a backward accumulated that went through no output: a penalty on gradients alone, say.

        It costs its forward nothing: averaging twice does no harm. Where it did not reach all parameters, it may have
        been one beside the forward's own (a penalty on weights), which will average what both have accumulated. Where
        ranks may use different ones, what it reached says something only if it is everything (a loss that the module
        keeps to itself, say): else it counts there if the outputs were differentiated.
        """
        with self.turn:
            pending, backward = self.forwards.awaited, self.forwards.unnoticed_backward
            if self.phase is not Phase.IDLE or pending is None:
                return
            if backward == self.forwards.running_backward:
                return  # it went through another forward of ours, after all: what it brought stays local (DDP-074)
            came = {*self.forwards.came_early(backward), *self.readiness.noted()}
            unused = self.forwards.beyond_reach(pending, of_all=True)
            awaited = set(range(len(self.parameters))) - self.usage.not_awaited(self.plan.left_out, unused)
            missing = sorted(awaited - came)
            everything = self.facts.searched and self.plan.left_out | came >= set(range(len(self.parameters)))
            tells = pending.differentiated or everything or not self.facts.use_varies
            if not tells or (missing and not (self.facts.searched or self.usage.learning)):
                self._complaint = describe_unnoticed(self.specs, missing, self.team.rank)
                return
            # nothing is unused if everything has come, whatever a search of the outputs has not found
            self._open(pending, None if everything else unused)
            self._armed = -1
            if not self.arrivals.counted:
                self._count_again()
            for index in came:
                self.arrived(index)
            self._complete()
            self._reduced_past = pending  # whose own backward may still come

    def _bucket_filled(self) -> None:
        if self._armed is None:  # a further backward through the same forward completes what the former one left open
            self._arm()
        if not self.facts.holds_back:
            self._start_full_buckets()

    def _start_full_buckets(self) -> None:
        """Start every full bucket that has none before it which is not."""
        with torch.no_grad() if torch.is_grad_enabled() else _NO_CONTEXT:
            while self.reduction.bucket_due():
                stage = Stage.BUCKET
                if not self.queue.flights:
                    stage = Stage.BUCKETS
                    self.times.comm_start = time.time_ns()
                    self.queue.begin()
                if self._lowered is not None:
                    self._lowered.restore(self.queue.next_bucket.parameters)
                self.iteration.go_through(stage, silent=self.queue.alone)

    # -- finishing

    def _backward_ended(self) -> None:
        """The engine's callback: a backward in which we armed is over."""
        with self.turn:
            self._armed = None
            if self.phase is not Phase.FILLING:
                return
            remote, self._remote = self._remote, None
            if remote is None or not self._ended_remotely(remote):
                self._complete()

    def _backward_failed(self) -> None:
        """It has raised; what follows from that, the next forward decides. Until then the program may clear gradients
        in place, which nothing may undo, and go on with other collectives, while the others still wait for rows."""
        with self.turn, torch.no_grad():
            self.raised = self.phase is Phase.FILLING and self._armed is not None
            self.queue.part_with_flights()
            if self._armed != -1 and all(each.phase is Phase.IDLE or each._only_reads for each in all_reducers()):
                with suppress(Exception):  # a peer is lost, say: what this backward has raised comes first
                    self.transport.catch_up()

    @property
    def _only_reads(self) -> bool:
        """Whether the others start nothing before they read the results of what is under way."""
        return self.reduction.finish_due() and not self.facts.agreement_due and self.iteration.session is None

    def _ended_remotely(self, remote: RemoteBackward) -> bool:
        """Reduce the gradients that a backward of distributed autograd has left in its context, if there are any.

        Such a forward may also be followed by an ordinary backward, whose end then shows what it has reached.
        """
        self._armed = -1
        with torch.no_grad(), remote.borrowed_gradients(self.parameters) as present:
            for index in present:
                if index in remote.came or index not in self.usage.unused:  # else it is from a backward before this one
                    self.arrived(index)
            if present:
                self._complete()
        self._armed = None
        return bool(present)

    def _complete(self) -> None:
        """Reduce what has not started yet and deliver, unless a further backward is to complete this one."""
        if not self.arrivals.counted and not self.readiness.holds_all_once():
            self._count_again()
        if self.arrivals.counted and self._counts_on_another():
            return
        self._armed = -1  # whatever raises from here on has ended this backward
        with torch.no_grad() if torch.is_grad_enabled() else _NO_CONTEXT:
            if not self.reduction.finish_due():
                self._start_full_buckets()
            self.times.backward_end = time.time_ns()
            self.iteration.go_through(Stage.FINISH)
            if self.arrivals.counted:
                self.readiness.delivered()
            self.phase = Phase.IDLE
            self._delivered()
            if Stage.DELAYED in self.iteration.order:
                self.iteration.go_through(Stage.DELAYED)
        self._armed, self.raised = None, False

    def _counts_on_another(self) -> bool:
        """Whether a further backward is to bring what the count still misses."""
        for index in self.readiness.overlooked(self._came_now if self._pending.unreached > 0 else self._came_before):
            self.arrived(index)
        if self._entered_at is not None:
            self._pending.partial = self.readiness.passed_over(self._entered_at)
            self._entered_at = None
        self.readiness.conclude()
        if self.usage.unused - self._unused_before or not self.readiness.anything():
            self._notice_replaced()
        return bool(self.readiness.missing())  # another one may complete it; else the next forward complains (DDP-062)

    def _notice_replaced(self) -> None:
        """Something has not come that always came before, or nothing has: perhaps the module trains others instead."""
        gone = replaced(self.module, self.specs, self.parameters)
        if gone:
            self._complaint = describe_replaced(self.specs, gone, self.team.rank)
        self._unused_before |= self.usage.unused.difference(gone)

    def _delivered(self) -> None:
        """A synchronised backward has delivered its gradients."""
        for optimizer in self.optimizers:
            optimizer.step()
        if self.log.samples_step():
            usage = self.usage
            unused_bytes = usage.unused_bytes() if usage.unused else 0
            self.log.note_step(self.readiness.order(), len(self.queue.buckets), unused_bytes, usage.always_the_same)

    # -- a backward that is broken off

    @property
    def reducing_with_others(self) -> bool:
        """Whether buckets are under way that other ranks reduce, too."""
        return self.queue.started > 0 and not self.queue.alone

    def end_what_raised(self) -> None:
        """Nothing follows any more from a backward that has raised, and what hooks have begun beside its reductions is
        ended: by all ranks at one place."""
        if self.raised:
            self._end_what_raised()

    def _end_what_raised(self) -> None:
        self.abandon()
        for end in self.iteration.if_raised:
            end()

    def abandon(self) -> None:
        """Give up a backward that cannot be completed: gradients stay as they are, the next iteration starts clean."""
        self._go_idle()
        self.transport.catch_up()

    def _go_idle(self) -> None:
        """The part of ``abandon`` that waits for nothing."""
        if self.queue.abandon():  # buffers in flight are left to their collectives
            self._lay_out(self.plan)
        if self._armed is not None and self.phase is Phase.FILLING:
            self._pending.spent = False  # it has come to nothing, and may be tried again through the same graph
        self.phase = Phase.IDLE
        self._armed, self.raised, self._entered_at = None, False, None
        self.iteration.futures.clear()

    # -- for others

    def restore_full_values(self) -> None:
        """What a forward in mixed precision has lowered is full again, should its backward not come."""
        if self._lowered is not None:
            self._lowered.restore_all()

    def _set_sparse_metadata(self, global_unique_ids: dict[str, torch.Tensor]) -> None:
        """Keep the global ids of sparse rows, for hooks that ask (DDP-169)."""
        self.sparse_metadata = global_unique_ids

    def _get_local_used_map(self) -> torch.Tensor:
        """How many ranks used each parameter, as last agreed: (parameters,) int32; a name of torch's."""
        return self.transport.use_counts

    def _ddp_graph_static(self) -> bool:
        """Whether all synchronised backwards so far left the same parameters out; a name of torch's."""
        return self.usage.always_the_same

    def use_of(self, place: int) -> list[bool] | None:
        """Whether this rank uses each parameter of bucket ``place``, for hooks that step inside backward.

        None where this reduction does not agree on use: then all are used but those in ``facts.never_used``. A joined
        rank uses nothing.
        """
        if not self.facts.agreement_due:
            return None
        return self.usage.reported(self.buckets[place].spec.parameters, live=self.phase is Phase.FILLING)
