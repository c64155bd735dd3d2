"""How the reducer learns that gradients have accumulated: one call for each, or lists with one call a bucket.

The hooks that may start something stand on the nodes that accumulate gradients, behind the parameters' own hooks: what
a user's hook makes of a gradient is what is reduced.

Asking the reducer about every parameter costs more than the rest of a small model's reduction. So where the order of
arrival is known, each parameter is only appended to its bucket's list, and the one that should come last asks. Whatever
goes another way than last time sends us back to counting each, for good: that is always right.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from . import kernels

if TYPE_CHECKING:
    from .bucket import Bucket
    from .reducer import Reducer


class Arrivals:
    """The hooks on a reducer's parameters. They hold the reducer weakly: parameters outlive it (HOOK-008)."""

    def __init__(self, reducer: Reducer, *, recast: bool) -> None:
        """``recast``: the parameters change their dtype between forwards, which gives them new nodes each time."""
        self._reducer = weakref.ref(reducer)
        self._parameters = reducer.parameters
        self._recast = recast
        #: the watched nodes; autograd holds these only while a graph does, and hooks live as long as their node
        self.nodes: dict[torch.Tensor, torch.autograd.graph.Node] = {}
        self._handles: list[Any] = []
        #: the lists that hooks append to. A parameter's own hook holds one that holds the parameter, a cycle that
        #: Python's garbage collector cannot see; and where it collects us, handles find no hooks any more to remove
        self._lists: list[list[torch.Tensor]] = []
        #: whether each arrival is told by itself; otherwise the buckets' lists hold them
        self.counted = True
        #: whether anybody watches at all
        self.watching = False

    def count_each(self) -> None:
        """Call ``reducer.arrived(index)`` for every parameter."""
        self.stop()
        for index, parameter in enumerate(self._parameters):
            self._hook(parameter, _counting(self._reducer, index))
        self.counted = self.watching = True

    def note_in(self, buckets: Sequence[Bucket]) -> None:
        """Append each parameter to its bucket's ``arrived``; call ``should_be_full`` after the last of each."""
        self.stop()
        self._lists = [bucket.arrived for bucket in buckets]
        for bucket in buckets:
            for parameter in bucket.parameters:
                self._note(parameter, bucket.arrived.append)
            if bucket.awaited:
                self._hook(bucket.awaited[-1], _telling(self._reducer, bucket.spec.index))
        self.counted, self.watching = False, True

    def stop(self) -> None:
        """Watch nothing any more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.nodes.clear()
        self.watching = False

    def _note(self, parameter: torch.nn.Parameter, append: Callable[[torch.Tensor], None]) -> None:
        """Have the parameter appended.

        A built-in function on the parameter itself is the cheapest hook there is. That it comes before some of the
        user's does no harm: nothing is read before the node of the last parameter is done. (A frozen one takes none.)
        """
        if parameter.requires_grad:
            self._handles.append(parameter.register_post_accumulate_grad_hook(append))
        else:
            self._hook(parameter, lambda *_: append(parameter))

    def _hook(self, parameter: torch.nn.Parameter, hook: Callable[..., None]) -> None:
        if self._recast:
            self._handles.append(parameter.register_post_accumulate_grad_hook(hook))
            return
        node = self.nodes.setdefault(parameter, kernels.accumulator(parameter))
        self._handles.append(node.register_hook(hook))

    def __del__(self) -> None:
        self.stop()
        for arrived in self._lists:
            arrived.clear()


def _counting(reducer: weakref.ref[Reducer], index: int) -> Callable[..., None]:
    def arrived(*_: Any) -> None:
        me = reducer()
        if me is not None:
            me.arrived(index)

    return arrived


def _telling(reducer: weakref.ref[Reducer], place: int) -> Callable[..., None]:
    def last_arrived(*_: Any) -> None:
        me = reducer()
        if me is not None:
            me.should_be_full(place)

    return last_arrived
