"""The overlapped step: one session for each pair of DDP and ZeRO, with two schedules of the same work.

For every bucket: reduce (R), step what this rank owns of it (S), publish the owners' parameters (P).

    sequential     R0 R1 R2 ─ in the last bucket's hook: S0 S1 S2 P, or between processes of one host S0 P0 S1 P1 S2 P2
    interleaved    R0 │ R1 S0 P0 │ R2 S1 P1 S2 P2

An optimizer that is none of torch's own steps once, S012, in the last bucket's hook, whatever the schedule.

Between hosts whose collectives are not pipelined (Gloo) the buckets of a *window*, in which every rank owns a part, are
published together, in the sequential schedule all. Where a publication is of two messages (``Gathering``), the second
starts in the next bucket's hook, when the first has come as a rule.

All collectives start on the thread that runs backward, in an order that depends on nothing but the plan: a bucket is
stepped when the next one's reduction has been started, never when a future happens to complete. A future's callback
neither communicates nor waits. That is why any backend will do. Nobody asks whether an owner is done: every rank takes
part in the owner's publication, and the last bucket's hook waits until all publications have come. A joined rank goes
through the same calls with zero buckets, steps what it owns with the reduced gradients, and takes its settings from a
live rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import torch

from ..comm.pending import Watch
from ..comm.ranks import Team
from ..ddp.buckets import GradBucket
from ..ddp.plan import BucketPlan
from ..ddp.wrapper import DistributedDataParallel
from ..zero.arguments import check_own_memory
from ..zero.overlapping import Overlap
from ..zero.partition import ShardPlan
from ..zero.shard import numels_of
from ..zero.transfer import Publication
from .bucket_reduction import BucketReduction, InFlight
from .clipping import Clipping
from .layout import BucketPart, Layout
from .plan import OverlapPlan, sharded_buckets, whole_buckets
from .use import agree_on_use


class Schedule(Enum):
    """When a bucket is stepped and sent."""

    SEQUENTIAL = "all in the last bucket's hook"
    INTERLEAVED = "each when the next bucket's reduction has been started"


#: Starts one bucket's reduction: (state, bucket, part of the layout, team of the DDP).
Reducing = Callable[[Any, GradBucket, BucketPart, Team], BucketReduction]


class OverlapSession:
    """Runs the overlapped step. Called once for each bucket, in plan order, by DDP (live) or by its shadow (joined)."""

    def __init__(
        self,
        ddp: DistributedDataParallel,
        zero: torch.optim.Optimizer,
        overlap: Overlap,
        schedule: Schedule,
        reducing: Reducing,
        clipping: Clipping | None,
    ) -> None:
        self._ddp = weakref.ref(ddp)
        self._zero = zero  # which nobody else may keep
        self._overlap = overlap
        self._shard = overlap.shard
        self._schedule = schedule
        self._reducing = reducing
        self._clipping = clipping
        # whether ZeRO's group had the members of DDP's when we began: then it follows when DDP changes groups
        self._follows_ddp = overlap.shard.team.global_ranks() == ddp.reducer.team.global_ranks()
        if ddp.process_group is overlap.shard.team.group:
            overlap.follow(ddp)
        ddp.reducer.iteration.if_raised.append(self._backward_raised)
        # that of DDP when we began, or when we last followed it
        self._team = ddp.reducer.team
        self._layout: Layout
        # the DDP plan that the layout follows, replaced whenever DDP has laid out its buckets anew; None at first
        self._plan_seen: object = None
        # parameters in no bucket of that plan, since nobody uses them
        self._left_out: dict[int, torch.Tensor] = {}
        # buckets of this iteration by index; the first so many are stepped and sent, or about to be
        self._flights: list[InFlight] = []
        self._completed = 0
        # what is being published, in the order of its start; all but the first so many have not advanced yet
        self._publications: list[Publication] = []
        self._advanced = 0

    # --- one bucket after the other --------------------------------------------------------------------------------

    def on_bucket(self, state: Any, bucket: GradBucket) -> torch.futures.Future[Any]:
        """The communication hook's work for one bucket."""
        ddp, index = self._live_ddp(), bucket.index()
        if index == 0:  # also after an iteration that failed half-way
            self._forget()
            self._follow_the_layout(ddp)
        elif index != len(self._flights):
            raise AssertionError(
                f"DDP's buckets must come in order: bucket {index} came where bucket {len(self._flights)} was due"
            )
        part = self._layout.parts[index]
        if index == 0 and bucket.parameters()[0] is not part.bucket.parameters[0]:
            raise RuntimeError(
                "This hook was made for another model than the one with which it is registered, whose gradients it "
                "would take for that one's: make a hook for each DistributedDataParallel."
            )
        flight = InFlight(part, self._reducing(state, bucket, part, ddp.reducer.team))
        if index == 0:
            self._overlap.begin(ddp.reducer.iteration.session)
        self._flights.append(flight)
        self._ask_who_uses(ddp, bucket.is_last())
        self._advance(ddp, bucket.is_last())
        return flight.reduction.future

    def _advance(self, ddp: DistributedDataParallel, last: bool) -> None:
        """Step and send what the schedule says is due now that one more reduction has been started."""
        due = len(self._flights)
        if self._all_together:
            due = due if last else 0
        elif not last:
            due -= 1
        due_flights = self._flights[self._completed : due]
        if not due_flights:
            return
        self._completed = due  # also if a step fails half-way: what it has moved by then is sent
        watch = ddp.reducer.iteration.watch()
        if self._clipping is not None or not self._overlap.in_parts:  # which need all gradients at once
            for flight in due_flights:
                self._reduce(ddp, flight, watch)
        if self._clipping is not None:
            self._overlap.info.total_norm = self._clipping.apply(due_flights, self._shard, watch)
        if not self._overlap.in_parts:
            self._step(due_flights)
        for flight in due_flights:
            self._step_and_send(ddp, flight, watch)
        if last:
            self._receive(watch)  # the next forward needs all owners' parameters (HOOK-019)
            self._overlap.end()
            self._forget()

    @property
    def _all_together(self) -> bool:
        """Whether all buckets are stepped in the last one's hook."""
        return self._schedule is Schedule.SEQUENTIAL or not self._overlap.in_parts

    def _step_and_send(self, ddp: DistributedDataParallel, flight: InFlight, watch: Watch | None) -> None:
        if flight.flat is None:
            self._reduce(ddp, flight, watch)
        if self._overlap.in_parts:
            self._step([flight])
        under_way = len(self._publications)
        self._publish(flight.part)
        self._advance_publications(under_way, watch)

    def _step(self, flights: Sequence[InFlight]) -> None:
        """Step what this rank owns of these buckets."""
        gradients: dict[torch.Tensor, torch.Tensor] = {
            flight.part.bucket.parameters[place]: gradient
            for flight in flights for place, gradient in flight.gradients.items()
        }  # fmt: skip
        if gradients or not self._overlap.in_parts:  # one of the user's may move what has no gradient
            self._overlap.step(gradients)

    def _publish(self, part: BucketPart) -> None:
        for publication in part.publications:
            publication.start()
            self._publications.append(publication)

    def _advance_publications(self, up_to: int, watch: Watch | None) -> None:
        for publication in self._publications[self._advanced : up_to]:
            publication.advance(watch)
        self._advanced = up_to

    def _reduce(self, ddp: DistributedDataParallel, flight: InFlight, watch: Watch | None) -> None:
        """Wait for a bucket's reduction and find the gradients of the parameters that this rank owns."""
        part = flight.part
        flight.flat = flat = flight.reduction.result(watch)
        untouched = self._untouched(ddp, flight, watch)
        flight.kept = {place: gradient for place, gradient in untouched.items() if gradient is not None}
        views = part.views_of(flat)
        for place in part.own:
            gradient = untouched[place] if place in untouched else views[place]
            if gradient is not None:
                flight.gradients[place] = gradient

    # --- parameters that nobody used -------------------------------------------------------------------------------

    def _ask_who_uses(self, ddp: DistributedDataParallel, last: bool) -> None:
        """Where DDP searches for unused parameters: of each bucket as it comes, or of all at once if all are due."""
        asked = self._flights[-1:]
        if self._all_together:
            asked = self._flights if last else []
        use = agree_on_use(ddp, [flight.part for flight in asked]) if asked else None
        for flight in asked:
            flight.use = use

    def _untouched(
        self, ddp: DistributedDataParallel, flight: InFlight, watch: Watch | None
    ) -> dict[int, torch.Tensor | None]:
        """The places that no rank used, with the gradient that the ordinary optimizer would see there."""
        bucket, session = flight.part.bucket, ddp.reducer.iteration.session
        if flight.use is None:
            never = ddp.reducer.facts.never_used
            unused = [place for place, index in enumerate(bucket.spec.parameters) if index in never]
        else:
            unused = [place for place, count in enumerate(flight.use.of(bucket.spec.index, watch)) if not count]
        kept = {place: bucket.kept_gradient(place) for place in unused}
        if kept and session is not None:
            return self._overlap.joining.share_kept(kept, bucket.spec.device, session)
        return kept

    # --- the iteration ---------------------------------------------------------------------------------------------

    def _receive(self, watch: Watch | None) -> None:
        self._advance_publications(len(self._publications), watch)
        for publication in self._publications:
            publication.finish(watch)
        self._publications, self._advanced = [], 0

    def _backward_raised(self) -> None:
        """Every owner sends what it has, if some were stepped before: the ranks go on from the same values."""
        watch = self._live_ddp().reducer.iteration.watch()
        with torch.no_grad():
            self._receive(watch)
            for part in self._layout.parts if self._completed else ():
                self._publish(part)
            self._receive(watch)

    def _forget(self) -> None:
        self._flights, self._completed = [], 0
        self._publications, self._advanced = [], 0

    # --- the layout ------------------------------------------------------------------------------------------------

    def _follow_the_layout(self, ddp: DistributedDataParallel) -> None:
        """Name the owners the first time; follow DDP when it lays out its buckets anew or changes its group."""
        reducer = ddp.reducer
        moves = self._follows_ddp and self._team is not reducer.team
        self._team = reducer.team
        if moves or self._plan_seen is None:
            reducer.steps_by_hook = True
            team = reducer.team if moves else self._shard.team
            self._overlap.name_owners(team, self._shard_plan(ddp, reducer.expected_plan(), team))
        elif self._plan_seen is not reducer.plan:
            self._reassign_owners(ddp)
        if self._plan_seen is not reducer.plan or self._layout.stale(reducer.buckets, self._shard.plan.owners):
            self._lay_out(ddp)
            self._plan_seen = reducer.plan
        session = reducer.iteration.session
        if self._left_out and not (session is not None and session.shadowing):
            self._refuse_kept_gradients()

    def _refuse_kept_gradients(self) -> None:
        """RuntimeError where an ordinary optimizer would step what is in no bucket any more."""
        kept = [index for index, parameter in self._left_out.items() if parameter.grad is not None]
        if kept:
            raise RuntimeError(
                f"Parameter(s) {kept} of the optimizer are left out of the reductions (skip_all_reduce_unused_params), "
                "so this step does not come to them, but they have a gradient, perhaps of zeros, with which momentum "
                "and decay would go on. Clear gradients by zero_grad(set_to_none=True), or let DDP reduce all of them."
            )

    def _reassign_owners(self, ddp: DistributedDataParallel) -> None:
        """DDP has settled on other buckets than expected: each gets its owner by its number (HOOK-038).

        Not where all is stepped at once in any case: what an optimizer of the user's keeps by itself would not move.
        """
        if not self._overlap.in_parts:
            return
        plan = self._shard_plan(ddp, ddp.reducer.plan, self._shard.team)
        if plan.owners != self._shard.plan.owners:
            self._overlap.name_owners(self._shard.team, plan)

    def _shard_plan(self, ddp: DistributedDataParallel, layout: BucketPlan, team: Team) -> ShardPlan:
        """Owners by the buckets of a plan; what no bucket holds goes where the load is least."""
        buckets = [self._indices(ddp, bucket.parameters) for bucket in layout.buckets]
        numels = numels_of(self._shard.parameters())
        if self._overlap.info.shard_buckets:
            owners = sharded_buckets(buckets, numels, team.size)
        else:
            owners = whole_buckets(buckets, team.size)
        everyone = range(len(numels))
        return ShardPlan.greedy(numels, team.size, everyone, list(map(owners.get, everyone)))

    def _indices(self, ddp: DistributedDataParallel, managed: tuple[int, ...]) -> tuple[int, ...]:
        """ZeRO's indices of some of DDP's parameters; -1 for those that ZeRO does not have."""
        index_of = {id(parameter): index for index, parameter in enumerate(self._shard.parameters())}
        return tuple(index_of.get(id(ddp.reducer.parameters[index]), -1) for index in managed)

    def _lay_out(self, ddp: DistributedDataParallel) -> None:
        check_own_memory(self._shard.parameters())
        buckets = ddp.reducer.buckets
        members = tuple(self._indices(ddp, bucket.spec.parameters) for bucket in buckets)
        plan = OverlapPlan(members, self._shard.plan.owners)
        left, parameters = self._indices(ddp, tuple(ddp.reducer.plan.left_out)), self._shard.parameters()
        inside = {index for bucket in members for index in bucket}
        outside = {index: each for index, each in enumerate(parameters) if index not in inside}
        if self._overlap.in_parts:  # torch's own need a gradient to step
            outside = {}
        self._layout = Layout(plan, buckets, self._shard.team, together=self._all_together, outside=outside)
        self._left_out = {index: parameters[index] for index in sorted(left) if index >= 0}
        info = self._overlap.info
        info.params_per_bucket = [list(bucket.parameters) for bucket in buckets]
        info.assigned_ranks_per_bucket = [{piece.owner for piece in part.pieces} for part in self._layout.parts]
        if info.shard_buckets:
            info.total_size = sum(bucket.spec.numel for bucket in buckets)

    def _live_ddp(self) -> DistributedDataParallel:
        ddp = self._ddp()
        if ddp is None:
            raise AssertionError("the DDP object of this hook no longer exists")
        return ddp
