"""A reduction as every rank goes through it, live or joined: the buckets, their results, and what follows from them.

What must be equal on every rank depends on nothing but reductions, each of which every rank has either lived or
shadowed. What only a live rank knows, because its own backward tells it, is the affair of ``Reducer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..comm.ranks import Team
from .buckets import Bucket
from .plan import BucketCaps, BucketPlan, ParameterSpec, Planner
from .readiness import Readiness
from .shared import Agreement, SharedFacts
from .transport import BucketQueue, Transport
from .usage import Usage


class Reduction:
    """The side of a ``Reducer`` that does not depend on whether this rank has inputs."""

    #: what watches for the gradients that fill the buckets; supplied by ``Reducer`` before the first plan is laid out
    readiness: Readiness

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
        skip_unused: bool,
    ) -> None:
        self.parameters = list(parameters)
        self.specs = list(specs)
        self.transport = transport
        self.caps = caps
        #: equal on every rank; changed here only
        self.facts = SharedFacts(find_unused=find_unused, static=static_graph, skip_unused=skip_unused)
        self.usage = Usage(self.specs, transport, self.facts)
        self.queue = BucketQueue(self.parameters, transport, as_view=as_view)
        self.planner = Planner(self.specs, caps, self.facts)
        #: futures of buffer hooks, to be awaited before backward returns (DDP-095)
        self.other_futures: list[torch.futures.Future[Any]] = []
        self.sparse_metadata: dict[str, torch.Tensor] = {}

    @property
    def team(self) -> Team:
        return self.transport.team

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
        self.facts.plan_rebuilt()
        self._lay_out(self.planner.following(order))
        if self.facts.rebuilt and not self.facts.skips_unused and self.usage.each_arrives_once:
            self.readiness.settle()

    def _rebuild_buckets(self) -> bool:
        """Nothing to do, and False: where buckets are due to be rebuilt, the next synchronised forward does it."""
        return False

    # -- the end, on live and on joined ranks

    def _results(self, *, live: bool) -> Agreement | None:
        """Agree on use if that is due, and wait for the results, which only a live rank hands out."""
        agreement = self.usage.agree(live=live) if self.facts.agreement_due else None
        if live:
            self.queue.deliver(self._untouched(agreement))
        else:
            self.queue.shadow_results()
        futures, self.other_futures = self.other_futures, []
        for future in futures:
            future.wait()
        return agreement

    def _untouched(self, agreement: Agreement | None) -> frozenset[int]:
        """The parameters that no rank used in this reduction, as far as that matters."""
        return self.facts.never_used if agreement is None else agreement.unused

    def _note_reduction(self, agreement: Agreement | None) -> None:
        """A reduction is over that every rank has lived or shadowed."""
        self.facts.reduction_ended(agreement)
        plan = self.planner.after_reduction(self.plan, self._untouched(agreement))
        if plan is not None:
            self._lay_out(plan)

    # -- a joined rank's side

    def shadow_bucket(self) -> bool:
        """Start the next bucket's reduction with zeros, as the live ranks start it; False after the last one."""
        with torch.no_grad():
            return self.queue.shadow_next()

    def shadow_finish(self) -> None:
        """Go through the end of a reduction as the live ranks do."""
        with torch.no_grad():
            self._note_reduction(self._results(live=False))

    # -- for others

    @property
    def never_used(self) -> frozenset[int]:
        """Static graph: the parameters that no rank uses, once the ranks have agreed on them."""
        return self.facts.never_used

    def _set_sparse_metadata(self, global_unique_ids: dict[str, torch.Tensor]) -> None:
        """Keep the global ids of sparse rows, for hooks that ask (DDP-169)."""
        self.sparse_metadata = global_unique_ids
