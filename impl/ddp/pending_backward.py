"""A forward's right to one synchronised backward, and how that backward is noticed at the forward's outputs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.hooks import unserializable_hook

from . import kernels
from .containers import find_tensors, map_tensors
from .graph import leaves_behind
from .messages import MODEL_GONE


class PendingBackward:
    """One grad-enabled forward's right to one synchronised backward.

    ``sync`` is decided at the forward, not at the backward (DDP-074). ``spent`` turns True when a backward through
    this forward begins: a second one through the same graph stays local (DDP-061). ``noticeable`` says whether the
    outputs will tell when that happens, and ``unreached`` how many of them no backward has reached yet. ``unused``
    holds the parameters that the graph search did not reach; None where no search was made, and ``sink`` the node that
    ties the outputs together then. ``partial``: its backwards so far were asked for some gradients only
    (``backward(inputs=...)``), so one more may be synchronised. ``differentiated``: its outputs were, by
    ``torch.autograd.grad``. ``context`` is the distributed-autograd context in which the forward ran, if any.
    ``averaged``: its gradients are to be averaged with those of other ranks.
    """

    __slots__ = (
        "__weakref__", "averaged", "context", "differentiated", "noticeable", "partial", "sink", "spent", "sync",
        "unreached", "unused",
    )

    def __init__(self, sync: bool) -> None:
        self.sync = sync
        self.averaged = False
        self.spent = False
        self.partial = False
        self.differentiated = False
        self.noticeable = False
        self.unreached = 0
        self.unused: set[int] | None = None
        self.sink: weakref.ref[Any] | None = None
        self.context = kernels.distributed_context() if kernels.uses_rpc() else None


#: what is called when the backward of a forward begins
Begin = Callable[[PendingBackward], None]


class Forwards:
    """The forwards whose backward may come, and the arrivals that came before it was noticed."""

    #: the latest backward through an output of any model, which may share parameters with others
    running_anywhere: int | None = None

    def __init__(self) -> None:
        #: the latest backward through an output of ours: a number that never comes back
        self.running_backward: int | None = None
        #: whether no backward has gone through our outputs since the last forward, whose own is to be synchronised
        self.only_past = False
        #: whether one of the forwards that it goes through was to be synchronised
        self.running_sync = False
        #: the last grad-enabled forward's; None before the first
        self.latest: PendingBackward | None = None
        #: all whose graph was searched and is still there, with what that has not reached
        self._searched: weakref.WeakKeyDictionary[PendingBackward, set[int]] = weakref.WeakKeyDictionary()
        #: the latest backward in which something arrived that none of our outputs had told of; -1 before the first
        self.unnoticed_backward = -1
        #: parameters that arrived before their backward was noticed, and in which
        self.early: dict[int, int] = {}
        #: the latest backward that went past all our forwards, and how many did since the last forward
        self._past: int | None = None
        self._times_past = 0

    def admit(self, pending: PendingBackward) -> None:
        """Note a grad-enabled forward."""
        if pending.unused is not None:
            self._searched[pending] = pending.unused
        self.latest = pending
        self.only_past = pending.sync
        self._times_past = 0
        self.early.clear()

    def beyond_reach(self, pending: PendingBackward, *, of_all: bool = False) -> set[int] | None:
        """What the backward now running does not reach, which goes through this forward; None where nobody knows.

        Used is what any of the forwards uses that it goes through. One that it leaves alone, an evaluation say, has no
        part in that, unless ``of_all`` asks for what no forward uses whose backward may still come.
        """
        if pending.unused is None:
            return None
        unused = set(pending.unused)
        for each, theirs in self._searched.items():
            sink = each.sink() if each.sink is not None and not of_all else None
            if not each.spent if sink is None else kernels.is_evaluated(sink):
                unused &= theirs
        return unused

    @property
    def awaited(self) -> PendingBackward | None:
        """The last forward, if its backward is to be synchronised and has not begun."""
        pending = self.latest
        return pending if pending is not None and pending.sync and not pending.spent else None

    def note_running(self, backward: int, pending: PendingBackward) -> None:
        """A backward has reached an output of this forward."""
        self.running_sync = pending.sync or (backward == self.running_backward and self.running_sync)
        self.running_backward = backward

    def synchronised(self, backward: int) -> bool | None:
        """Whether a forward of this backward was to be synchronised; None before the first forward.

        Where no output has told of it, the last forward decides: a checkpoint may run a backward of its own.
        """
        if backward == self.running_backward:
            return self.running_sync or self._will_be_synchronised()
        return None if self.latest is None else self.latest.sync

    def _will_be_synchronised(self) -> bool:
        """Whether the backward now running goes through a searched forward that was to be synchronised, though it may
        not have come to it yet: another one may have used parameters of its own."""
        sinks = (each.sink() for each in self._searched if each.sync and each.sink is not None)
        return any(sink is not None and kernels.is_evaluated(sink) for sink in sinks)

    def unnoticed(self, backward: int, index: int) -> PendingBackward | None:
        """The forward whose backward begins with this arrival, because nothing else could tell; else None.

        An arrival that may be early in a backward that will be noticed is remembered.
        """
        pending = self.awaited
        if pending is not None and pending.noticeable:
            self.early[index] = backward
            return None
        return pending

    def waits_for_another(self, backward: int) -> bool:
        """Whether the last forward's backward is still to come, and ``backward`` is seen for the first time here."""
        if self.awaited is None or self.unnoticed_backward == backward:
            return False
        self.unnoticed_backward = backward
        return True

    def goes_past(self, backward: int) -> bool:
        """Whether this backward, seen for the first time here, is one of many that go past the wrapper's forward.

        Before the first forward one is enough. After a forward whose backward has come, two may be penalties on
        parameters, whose gradients are the same on every rank. After one under ``no_sync`` gradients stay local anyway,
        and a reentrant checkpoint has backwards of its own inside that of the forward.
        """
        pending = self.latest
        if pending is not None and not (pending.spent and pending.sync):
            return False
        if backward in (self.running_backward, self._past):
            return False
        self._past = backward
        self._times_past += 1
        return (pending is None or self._times_past > 2) and backward != Forwards.running_anywhere

    def came_early(self, backward: int) -> list[int]:
        """The parameters that arrived in this backward before it was noticed."""
        return [index for index, when in self.early.items() if when == backward]

    def came_before(self, backward: int) -> list[int]:
        """Those that arrived in others before it, since the last forward."""
        return [index for index, when in self.early.items() if when != backward]


def call_when_backward_begins(
    outputs: Sequence[torch.Tensor], pending: PendingBackward, begin: Begin, *, changeable: bool = False
) -> None:
    """Have ``begin(pending)`` called when a backward pass reaches any of the outputs, before it goes further.

    ``changeable``: these may be changed in place; then a backward goes past one that is a view, to what it shows.
    ``begin`` must be a bound method; its object is held weakly.
    """
    weak_begin = weakref.WeakMethod(begin)

    @unserializable_hook  # saving an output is nothing to warn of
    def reached(_gradient: torch.Tensor) -> None:
        pending.unreached -= 1
        call = weak_begin()
        if call is not None:
            call(pending)
        else:
            _refuse_without_model(pending)

    for output in outputs:
        for tensor in (output, kernels.viewed(output)) if changeable else (output,):
            if tensor is not None and tensor.grad_fn is not None:
                tensor.register_hook(reached)
                pending.noticeable = True
                pending.unreached += 1


def _refuse_without_model(pending: PendingBackward) -> None:
    """RuntimeError where gradients should be averaged by a model that is gone."""
    if pending.averaged and not pending.spent:
        accumulating = leaves_behind([kernels.running_node()]).values()
        if any(map(kernels.is_evaluated, accumulating)):  # else the backward that runs adds to no ``.grad``
            raise RuntimeError(MODEL_GONE)


def with_graphs(inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[torch.Tensor, Any]:
    """The arguments of a forward, given as they are or in containers, and where the graph of each ends."""
    return {given: given.grad_fn for given in find_tensors([*inputs, *kwargs.values()])}


class OutputSink(torch.autograd.Function):
    """Ties all outputs of a forward together, so that backward is noticed before it goes further.

    Outputs that get no gradient pass None on rather than zeros (DDP-114).
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, begin: Begin, pending: PendingBackward, clone: bool, *outputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.begin = weakref.WeakMethod(begin)
        ctx.pending = pending
        pending.sink = weakref.ref(ctx)
        return tuple(output.clone() for output in outputs) if clone else outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        begin = ctx.begin()
        if begin is not None:
            begin(ctx.pending)
        else:
            _refuse_without_model(ctx.pending)
        return (None, None, None, *gradients)


def tied(
    output: Any, found: Sequence[torch.Tensor], pending: PendingBackward, begin: Begin, clone: bool
) -> Any:
    """The output of a forward with those of its tensors tied together that have a graph.

    ``clone``: they are copies, which may be changed in place (DDP-112).
    """
    tensors = {tensor: None for tensor in found if tensor.grad_fn is not None}
    if not tensors:
        return output
    through = OutputSink.apply(begin, pending, clone, *tensors)  # type: ignore[no-untyped-call]
    instead = dict(zip(tensors, through, strict=True))
    return map_tensors(lambda tensor: instead.get(tensor, tensor), output)
