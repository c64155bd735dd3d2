"""The reducer: watches gradients become ready, starts each bucket's reduction in plan order, delivers the results.

The life of a synchronised backward::

    forward ─ pending ─► backward begins (hooks on the outputs) ─ arrivals ─► buckets start, in plan order
                                                                                   │
             gradients delivered ◄─ results ◄─ agreement on use ◄─ end of backward (a callback of the engine)

All collectives start on the thread that runs backward, in plan order. Here stands what DDP asks for: a forward begins
or has run, everything starts over. What autograd tells, from the beginning of a backward to its delivery, is in
``backwards.py``; what joined ranks go through as well, with zeros, in ``reduction.py``.

These say when; ``Forwards`` knows whose backward may come, ``Readiness`` what has arrived, ``Use`` who uses what,
``BucketQueue`` what has started, ``Planner`` which buckets there should be.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..comm.ranks import Team
from . import kernels
from .backwards import Backwards, Phase
from .graph import reachable_parameters
from .log import Times
from .messages import COMPILED_BACKWARD, describe_unfinished
from .pending_backward import Forwards, PendingBackward
from .plan import BucketCaps, ParameterSpec
from .readiness import Arrivals, Readiness
from .transport import Transport


class Reducer(Backwards):
    """Averages the gradients of ``parameters`` over a team. One for each DDP object."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        specs: Sequence[ParameterSpec],
        transport: Transport,
        caps: BucketCaps,
        *,
        find_unused: bool,
        static_graph: bool,
        as_view: bool,
        skip_unused: bool = False,
        recast: bool = False,
    ) -> None:
        super().__init__(
            parameters, specs, transport, caps,
            find_unused=find_unused, static_graph=static_graph, as_view=as_view, skip_unused=skip_unused,
        )
        arrivals = Arrivals(self, self.parameters, recast=recast)
        self.readiness = Readiness(self.parameters, self.usage, self.queue, arrivals)
        self.forwards = Forwards()
        self.times = Times()
        self._lay_out(self.planner.first())

    # -- beginning anew

    def move_to(self, team: Team) -> None:
        """Reduce over another team; everything learned from backwards is forgotten and agreed anew (DDP-164)."""
        self.transport.move_to(team)
        self.start_over()

    def start_over(self, *, static_graph: bool = False) -> None:
        """Forget everything learned from backwards; optionally become a static-graph reducer (DDP-109)."""
        self.abandon()
        self.facts.start_over(turn_static=static_graph)
        self.usage.forget()
        self.readiness.forget()
        self._lay_out(self.planner.first())

    def watch_anew(self) -> None:
        """The parameters were moved or cast, which may have given them new nodes: watch those."""
        self.readiness.watch_anew()

    def remove_hooks(self) -> None:
        """Stop watching gradients: from now on backward is local (DDP-066)."""
        self.readiness.stop()

    # -- forward

    def admit(self, pending: PendingBackward) -> None:
        """Note a grad-enabled forward, whose backward may now come."""
        if pending.sync and kernels.backwards_are_compiled():
            self.transport.around.fail(RuntimeError, COMPILED_BACKWARD)
        self.forwards.admit(pending)
        if self.readiness.counted:
            return
        if pending.sync and not (pending.announced and pending.context is None):
            self._count_again()  # nothing but the arrivals themselves will tell that its backward begins
        elif self.phase is Phase.IDLE:
            self.readiness.forward_begins()

    def prepare_for_backward(self, outputs: Sequence[torch.Tensor]) -> None:
        """Let the coming backward be synchronised, whatever its forward was told.

        Trainers and pipelines call this after forwards under ``no_sync``. ``outputs`` are searched for what the
        backward cannot reach, if anything is searched.
        """
        self.check_finished()
        pending = PendingBackward(sync=True)
        if outputs and self.usage.searched:
            pending.unused = set(range(len(self.parameters))) - reachable_parameters(outputs, self.readiness.index_of)
        self.admit(pending)

    def check_finished(self) -> None:
        """RuntimeError if the last synchronised backward left gradients unreduced (DDP-034, DDP-062, DDP-063)."""
        complaint, self._complaint = self._complaint, ""
        if complaint:
            self.abandon()
            self.transport.around.fail(RuntimeError, complaint)
        if self.phase is Phase.IDLE:
            return
        if self._armed or not self.readiness.anything():
            self.abandon()  # that backward raised, and its caller has seen it; or it went past all parameters
            return
        missing, started = self.readiness.missing(), self.queue.started
        self.abandon()
        text = describe_unfinished(self.specs, missing, self.team.rank, started, static=self.usage.static)
        self.transport.around.fail(RuntimeError, text)

    # -- for others

    def _get_local_used_map(self) -> torch.Tensor:
        """How many ranks used each parameter, as last agreed: (parameters,) int32; a name of torch's."""
        return self.transport.use_counts

    def _ddp_graph_static(self) -> bool:
        """Whether all synchronised backwards so far left the same parameters out; a name of torch's."""
        return self.usage.always_the_same

    def use_of(self, place: int) -> list[bool] | None:
        """Whether this rank uses each parameter of bucket ``place``, for hooks that step inside backward.

        None where this reduction does not agree on use: then all are used but those in ``never_used``. On a joined
        rank nothing is used.
        """
        if not self.facts.agreement_due:
            return None
        return self.usage.reported(self.buckets[place].spec.parameters, live=self.phase is Phase.FILLING)
