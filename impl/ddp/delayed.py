"""Parameters that are reduced late, in one piece, after all others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from ..comm.collectives import broadcast_coalesced
from ..comm.ranks import GroupRank
from .iteration import Iteration
from .log import Fail
from .optimizer_in_backward import OptimizersInBackward
from .params import Managed, named_parameters, respecified, specs_of
from .plan import UNLIMITED, ParameterSpec, plan_buckets
from .reduction import BucketQueue, Transport
from .shared import SharedFacts


def delayable(named: Iterable[tuple[str, nn.Parameter]], managed: Iterable[Managed]) -> dict[str, nn.Parameter]:
    """The parameters to be delayed, by name: none where all that are trained are named (exceeds DDP-127).

    Then nothing is left that could go first, and they are reduced in buckets, as they become ready.
    """
    chosen = {name.removeprefix("."): parameter for name, parameter in named}
    some_go_first = any(item.parameter.requires_grad and item.name not in chosen for item in managed)
    return chosen if some_go_first else {}


class DelayedReduction:
    """Keeps the gradients of the delayed parameters in buckets, one for each dtype and device, and averages those.

    The reduction follows that of the buckets, whether or not the trigger's gradient has come: some ranks may not use
    it. So gradients that come after the trigger are included (exceeds DDP-125), it is waited for before backward
    returns (exceeds DDP-124), and under ``no_sync`` nothing is reduced (exceeds DDP-126). Keeps DDP-121 … DDP-123.
    """

    def __init__(self, iteration: Iteration, parameters: Sequence[nn.Parameter], trigger: nn.Parameter) -> None:
        self.parameters = parameters
        #: kept for who copies the object
        self._trigger = trigger
        self._specs = specs_of([Managed("", parameter, sparse=False) for parameter in parameters])
        #: the parameters' specs, and their strides, when the buckets were laid out
        self._laid_out_for: tuple[list[ParameterSpec], list[tuple[int, ...]]] = [], []
        transport, facts = Transport(iteration, "delayed gradients"), SharedFacts(find_unused=False, skip_unused=False)
        self._queue = BucketQueue(self.parameters, transport, facts, as_view=True)
        self._follow_changes()
        #: those that the delayed parameters carry; stepped with the averaged gradients
        self.optimizers: OptimizersInBackward | None = None

    @staticmethod
    def of(
        iteration: Iteration, parameters: Sequence[nn.Parameter], trigger: nn.Parameter | None
    ) -> DelayedReduction | None:
        """Set up the delayed reduction, starting from rank 0's values (DDP-121); None where nothing is delayed."""
        if trigger is None or not parameters:
            return None
        broadcast_coalesced(iteration.team, parameters, GroupRank(0), "delayed parameters")
        return DelayedReduction(iteration, parameters, trigger)

    def names(self, module: nn.Module, fail: Fail) -> tuple[list[str], str]:
        """The names of the delayed parameters and of the trigger, by which a pickled object finds them again."""
        called = {parameter: name for name, parameter in named_parameters(module)}
        if not {*self.parameters, self._trigger} <= called.keys():
            fail(
                RuntimeError,
                "This model cannot be pickled: a delayed parameter, or param_to_hook_all_reduce, is not a parameter of "
                "the wrapped module. Pickle its state_dict instead.",
            )
        return [called[parameter] for parameter in self.parameters], called[self._trigger]

    @staticmethod
    def found(
        iteration: Iteration, module: nn.Module, names: tuple[list[str], str] | None
    ) -> DelayedReduction | None:
        """Set up anew what ``names`` told before pickling. Nothing is broadcast (DDP-160)."""
        if names is None:
            return None
        *delayed, trigger = [module.get_parameter(name) for name in (*names[0], names[1])]
        return DelayedReduction(iteration, delayed, trigger)

    @property
    def _frozen(self) -> list[int]:
        return [index for index, parameter in enumerate(self.parameters) if not parameter.requires_grad]

    @torch.no_grad()
    def _follow_changes(self) -> None:
        """Lay out new buckets if some parameters were moved, cast or laid out otherwise, on all ranks alike, or if the
        user has replaced or moved gradients: another one, of any parameter, may lie in the old buckets now."""
        for parameter in self.parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        specs, strides = respecified(self._specs, self.parameters), list(map(torch.Tensor.stride, self.parameters))
        changed = (specs, strides) != self._laid_out_for
        if changed or any(bucket.has_strays() for bucket in self._queue.buckets):
            self._laid_out_for = specs, strides
            self._queue.lay_out(plan_buckets(specs, range(len(specs)), UNLIMITED))

    def after_forward(self) -> None:
        """Let gradients accumulate in the buckets, from zero where they are None (DDP-123)."""
        self._follow_changes()  # now, for backward adds to them where they lie: in a bucket of others, say
        frozen = self._frozen
        for bucket in self._queue.buckets:
            bucket.deliver(bucket.collect(frozen, 1.0), frozen, 1)

    def reduce(self) -> None:
        """Average the delayed gradients. What is not trained keeps the gradient that it has (DDP-058)."""
        frozen = self._frozen
        self._follow_changes()
        self._queue.reset()
        for _ in self._queue.buckets:
            self._queue.start_next(frozen)
        self._queue.deliver(frozen)
        if self.optimizers is not None:
            self.optimizers.step()

    def shadow(self) -> None:
        """A joined rank's side: the same collectives with zeros; its own gradients stay."""
        self._follow_changes()
        while self._queue.shadow_next():
            pass
        self._queue.shadow_results()
