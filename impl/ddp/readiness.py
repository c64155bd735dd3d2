"""Which gradients of a backward are ready: each is reported, or noted in a list with one report a bucket."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch

from ..comm import streams
from . import kernels
from .buckets import Bucket
from .graph import leaves_behind, parameters_behind
from .reduction import BucketQueue
from .shared import SharedFacts
from .usage import Usage


class Listener(Protocol):
    """Who is told that gradients have accumulated: the reducer."""

    def arrived(self, index: int, passed: bool) -> None:
        """Autograd is done with parameter ``index``; ``passed``: it came with a gradient."""

    def should_be_full(self, place: int) -> None:
        """The parameter that completed bucket ``place`` last time has accumulated."""


class Arrivals:
    """The hooks on a reducer's parameters. They hold the reducer weakly: parameters outlive it (HOOK-008).

    The hooks that may start something stand on the nodes that accumulate gradients, after the parameters' own hooks:
    what a user's hook makes of a gradient is what is reduced.

    Asking the reducer about every parameter costs more than the rest of a small model's reduction. So where the order
    of arrival is known, each parameter is only appended to its bucket's list, and the one that should come last asks.
    Whatever goes another way than last time sends us back to counting each, for good: that is always right.
    """

    def __init__(self, listener: Listener, parameters: Sequence[torch.nn.Parameter], *, lowered: bool) -> None:
        """``lowered``: the parameters change their dtype between forwards, which gives them new nodes each time. Then
        our hooks stand on the parameters, and are put after all others before each backward."""
        self._listener = weakref.ref(listener)
        self._parameters = parameters
        self._lowered = lowered
        #: our hooks on lowered parameters, which come after all others, and their handles
        self._last: dict[tuple[torch.nn.Parameter, Callable[..., None]], Any] = {}
        #: the watched nodes; autograd holds these only while a graph does, and hooks live as long as their node. On an
        #: accelerator a node accumulates on the stream on which it was made: since all are made and kept here, a bucket
        #: is read behind all of its gradients, whatever streams the user's forward has used
        self._nodes: dict[torch.Tensor, torch.autograd.graph.Node] = {}
        self._handles: list[Any] = []
        #: the lists that hooks append to. A parameter's own hook holds one that holds the parameter, a cycle that
        #: Python's garbage collector cannot see; and where it collects us, handles find no hooks any more to remove
        self._lists: list[list[torch.Tensor]] = []
        #: whether each arrival is reported by itself; otherwise the buckets' lists hold them
        self.counted = True
        #: whether anybody watches at all
        self.watching = False
        #: parameters that are averaged with these, though nobody watches them
        self.delayed: Sequence[torch.nn.Parameter] = ()

    def count_each(self) -> None:
        """Call ``listener.arrived(index)`` for every parameter."""
        self.stop()
        for index, parameter in enumerate(self._parameters):
            self._hook(parameter, _counting(self._listener, index))
        self.counted = self.watching = True

    def note_in(self, buckets: Sequence[Bucket]) -> None:
        """Append each parameter to its bucket's ``arrived``; call ``should_be_full`` after the last of each."""
        self.stop()
        self._lists = [bucket.arrived for bucket in buckets]
        for bucket in buckets:
            for parameter in bucket.parameters:
                self._note(parameter, bucket.arrived.append)
            self._hook(bucket.parameters[-1], _reporting(self._listener, bucket.spec.index))
        self.counted, self.watching = False, True

    def stop(self) -> None:
        """Watch nothing any more."""
        for handle in [*self._handles, *self._last.values()]:
            if handle is not None:
                handle.remove()
        self._handles.clear()
        self._last.clear()
        self._nodes.clear()
        self.watching = False

    def _note(self, parameter: torch.nn.Parameter, append: Callable[[torch.Tensor], None]) -> None:
        """Have the parameter appended.

        A built-in function on the parameter itself is the cheapest hook there is. That it comes before some of the
        user's does no harm: nothing is read before the node of the last parameter is done. A frozen one takes none:
        should it be thawed, what has arrived is counted again.
        """
        if parameter.requires_grad:
            self._keep(parameter)
            self._handles.append(parameter.register_post_accumulate_grad_hook(append))

    def _keep(self, parameter: torch.nn.Parameter) -> torch.autograd.graph.Node:
        """The node that accumulates this parameter's gradient, which lives from now on."""
        return self._nodes.setdefault(parameter, kernels.accumulator(parameter))

    def _hook(self, parameter: torch.nn.Parameter, hook: Callable[..., None]) -> None:
        if parameter.is_inference():  # made under ``torch.inference_mode()``: it can only be evaluated
            return
        if self._lowered:
            self._last[parameter, hook] = _registered(parameter, hook)
            return
        self._handles.append(self._keep(parameter).register_hook(hook))

    def come_last(self) -> None:
        """Put our hooks on lowered parameters after those that users have registered by now, and look for new nodes."""
        if not self._lowered:
            return
        self._nodes.clear()
        for parameter in self._parameters:
            if streams.is_accelerated(parameter.device) and parameter.requires_grad:  # else streams are no matter
                self._keep(parameter)
        for (parameter, hook), handle in self._last.items():
            if handle is not None:
                handle.remove()
            self._last[parameter, hook] = _registered(parameter, hook)

    def accumulates_now(self) -> bool:
        """Whether the backward pass now running (in one of whose hooks we are) may add to some ``.grad``.

        False for ``torch.autograd.grad`` (DDP-065), for ``backward(inputs=...)`` that names none of the parameters, and
        where all parameters are frozen for the moment. The watched nodes come first: finding one costs more than all
        the rest (12 of 16 µs).
        """
        try:
            if any(map(kernels.will_evaluate, self._accumulating())):
                return True  # as a rule told by the first one
            trained = {each for each in (*self._parameters, *self.delayed) if each.requires_grad}
            if not trained:
                return False
            # Either they are passed by; or this graph has other nodes of them, from before a cast; or none at all: a
            # reentrant checkpoint reaches them in its own, and this output may have none. Other leaves tell then.
            leaves = leaves_behind([kernels.running_node()])
            mine = [leaf for each, leaf in leaves.items() if each in trained] or [*leaves.values()]
            return not mine or any(map(kernels.will_evaluate, mine))
        except RuntimeError:  # the functional interface was asked for this very gradient
            return False

    def _accumulating(self) -> Iterator[torch.autograd.graph.Node]:
        """The nodes that add to the gradients of the parameters that are not frozen now."""
        for parameter, node in self._nodes.items():
            if parameter.requires_grad:
                yield node
        for parameter in self._parameters:
            if parameter.requires_grad and parameter not in self._nodes:
                yield kernels.accumulator(parameter)

    def __del__(self) -> None:
        self.stop()
        for arrived in self._lists:
            arrived.clear()


def _registered(parameter: torch.nn.Parameter, hook: Callable[..., None]) -> Any:
    """The handle of a hook on a parameter; None as long as that is frozen, when it takes none."""
    return parameter.register_post_accumulate_grad_hook(hook) if parameter.requires_grad else None


def _counting(listener: weakref.ref[Listener], index: int) -> Callable[..., None]:
    def arrived(*given: Any) -> None:
        me = listener()
        if me is not None:  # a node's hook is given what it took, and what was passed to it: None outside of the loss
            me.arrived(index, len(given) < 2 or given[1][0] is not None)

    return arrived


def _reporting(listener: weakref.ref[Listener], place: int) -> Callable[..., None]:
    def last_arrived(*_: Any) -> None:
        me = listener()
        if me is not None:
            me.should_be_full(place)

    return last_arrived


def call_when_backward_is_over(ended: Callable[[], None], failed: Callable[[], None]) -> None:
    """Have ``ended`` called once the backward now running is over, and ``failed`` if that backward or ``ended`` raises.

    Where the pass raises, the engine does not call us but lets go of us.
    """

    def reached() -> None:
        dropped.detach()
        try:
            ended()
        except BaseException:
            failed()
            raise

    dropped = weakref.finalize(reached, failed)
    dropped.atexit = False
    kernels.call_at_end_of_backward(reached)


class Readiness:
    """Keeps count for the reducer. Arrivals are counted until the order is known and kept to, and then only noted."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        facts: SharedFacts,
        usage: Usage,
        queue: BucketQueue,
        arrivals: Arrivals,
    ) -> None:
        self._parameters = parameters
        self._facts = facts
        self._usage = usage
        self._queue = queue
        self._arrivals = arrivals
        self.index_of: dict[torch.Tensor, int] = {parameter: index for index, parameter in enumerate(parameters)}
        #: order of readiness in the last complete live backward whose arrivals were counted
        self._former_order: list[int] = []

        # -- valid while a synchronised backward is under way
        #: arrivals still to come, by parameter; while learning a static graph: minus the arrivals so far
        self._need: list[int] = []
        self._order: list[int] = []
        arrivals.count_each()

    # -- which of the two

    def forget(self) -> None:
        """Back to the beginning: everything is counted, also what has been added to the parameters."""
        self._former_order = []
        self.index_of.update({parameter: index for index, parameter in enumerate(self._parameters)})
        if self._arrivals.watching:
            self._arrivals.count_each()

    def begin_noting(self) -> None:
        """The buckets follow the order of arrival now."""
        if self._arrivals.watching:
            self._arrivals.note_in(self._queue.buckets)

    def watch_anew(self) -> None:
        """Parameters were moved or cast, which may have given them new nodes: watch those."""
        if not self._arrivals.counted:
            self.begin_noting()
        elif self._arrivals.watching:
            self._arrivals.count_each()

    def buckets_are_new(self) -> None:
        """Their lists are new, too."""
        if not self._arrivals.counted:
            self.begin_noting()

    def count_again(self, *, under_way: bool) -> list[int]:
        """Something went another way than before: from now on each arrival tells of itself, as in the beginning.

        Returns what has arrived in the backward under way, if one is: that is to be counted now.
        """
        self._arrivals.count_each()
        if not under_way:
            return []
        self._need = self._usage.expectations()
        for bucket in self._queue.buckets:
            if not bucket.missing:  # found full, and perhaps under way already
                bucket.missing = len(bucket.parameters)
        return self.noted()

    def noted(self) -> list[int]:
        """What the buckets' lists hold, as a rule nothing where arrivals are counted or a backward begins."""
        noted: list[int] = []
        for bucket in self._queue.buckets:
            if bucket.arrived:
                noted += map(self.index_of.__getitem__, bucket.arrived)
        return noted

    # -- one backward

    def forget_noted(self) -> None:
        """What was noted since the last backward belongs to none that is synchronised."""
        for bucket in self._queue.buckets:
            bucket.arrived.clear()

    def begin(self, beyond_reach: Iterable[int] | None) -> None:
        """A synchronised backward begins; the search of its graph, if there was one, did not find ``beyond_reach``."""
        counted = self._arrivals.counted
        self._order = []
        self._queue.reset()
        if self._facts.use_varies:
            self._usage.begin(self._parameters, self._queue.plan.left_out, beyond_reach)
        if counted:
            self._need = self._usage.expectations()
            self._expect_no_more(self._usage.unused)

    def _expect_no_more(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._need[index] = 0
            if index not in self._queue.plan.left_out:
                self._queue.ready(index)

    def count(self, index: int, received: bool) -> bool:
        """Count one arrival, with a gradient or without; whether it makes a bucket full."""
        usage, need = self._usage, self._need[index]
        if not received:
            if not usage.learning and not need:
                return False  # nobody waits for it: as in the first iteration of a static graph, or left out
            usage.unused.add(index)
        need -= 1
        self._need[index] = need
        if need == 0:
            self._order.append(index)
            return self._queue.ready(index)
        if need < 0 and not usage.learning:
            usage.refuse_second_arrival(index)
        elif need == -1:
            self._order.append(index)
        return False

    def anything(self) -> bool:
        """Whether anything has arrived in this backward."""
        return bool(self._order) or any(bucket.arrived for bucket in self._queue.buckets)

    def conclude(self) -> None:
        """A backward whose arrivals were counted is over: draw the conclusions from what did not arrive."""
        if self._usage.learning:
            self._learn_static_graph()
        elif self._facts.searched:  # what has not arrived feeds outputs outside the loss (DDP-101)
            missing = self.missing()
            self._usage.unused.update(missing)
            self._expect_no_more(missing)

    def holds_all_once(self) -> bool:
        """A backward whose arrivals were noted is over: whether every list was found full, and holds each once."""
        for bucket in self._queue.buckets:
            if bucket.missing or len(bucket.arrived) != len(bucket.parameters):
                return False
        return True

    def _learn_static_graph(self) -> None:
        self._usage.learn(self._need)
        self._need = [0] * len(self._parameters)
        for bucket in self._queue.buckets:
            bucket.missing = 0

    def _silent(self) -> list[int]:
        """The parameters that are awaited, or of which a static graph is to learn, and have not arrived at all."""
        whole, learning = self._usage.expectations(), self._usage.learning
        return [i for i, need in enumerate(self._need) if need == whole[i] and (need > 0 or learning)]

    def overlooked(self, came_before: Collection[int]) -> list[int]:
        """What has come without being counted: before the backward that now ends reached an output, or where its
        forward's last backward ends, in another one before it."""
        return [
            index
            for index in self._silent()
            if index in came_before or kernels.is_evaluated(kernels.accumulator(self._parameters[index]))
        ]

    def of_this_backward(self, indices: Iterable[int]) -> list[int]:
        """Those that the backward now running evaluates. A parameter that changes its dtype tells only until then."""
        return [index for index in indices if kernels.is_evaluated(kernels.accumulator(self._parameters[index]))]

    def passed_over(self, node: torch.autograd.graph.Node) -> bool:
        """Whether a backward through this node has left parameters behind it out, since it was asked for others."""
        silent = {self._parameters[index]: index for index in self._silent()}
        return bool(silent) and bool(parameters_behind([node], silent))

    def missing(self) -> list[int]:
        """The parameters of which arrivals are still to come, where they are counted."""
        return [index for index, need in enumerate(self._need) if need > 0]

    def delivered(self) -> None:
        """A backward whose arrivals were counted is complete."""
        self._former_order = self._order

    def order(self) -> list[int]:
        """The order of readiness in the last complete live backward; bucket by bucket where nobody counted."""
        return self._former_order if self._arrivals.counted else self.noted()
