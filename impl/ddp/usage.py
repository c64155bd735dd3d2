"""Who uses which parameters: what this rank finds out in its backwards, and what the ranks have agreed on."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

import torch

from .iteration import Iteration
from .log import DDPLogger
from .messages import describe_second_arrival
from .plan import ParameterSpec
from .shared import SharedFacts


class Usage:
    """Knows which parameters a backward leaves out: this rank's own knowledge. One for each reducer.

    Where use does not vary (``SharedFacts.use_varies``) there is nothing to know, and nobody asks.
    """

    #: whether this process has been warned that looking for unused parameters found none; once is enough (DDP-104)
    _warned_needless = False

    def __init__(
        self, specs: Sequence[ParameterSpec], iteration: Iteration, facts: SharedFacts, log: DDPLogger
    ) -> None:
        self._specs = specs
        self._iteration = iteration
        self._facts = facts
        self._log = log
        #: arrivals that make each parameter ready, learned in the first live backward of a static graph
        self.expected: list[int] | None = None
        #: static graph: the parameters that this rank does not use; empty until it has learned that
        self.never_here: frozenset[int] = frozenset()
        #: parameters that the backward under way, or the last one, leaves out
        self.unused: set[int] = set()
        self._skipped: Collection[int] = ()
        #: 1 for parameters that received a gradient since the last synchronisation (kept if the graph is searched)
        self._since_sync = bytearray(len(specs))
        #: whether a backward here has left a parameter out (DDP-104)
        self._search_is_useful = False
        #: whether every synchronised backward so far left the same parameters out
        self.always_the_same = True
        self._former: set[int] | None = None
        #: the gradients as the backward now running has found them
        self._found: list[tuple[int, int] | None] = []

    def forget(self) -> None:
        """Forget what was learned from backwards; there may be more parameters now."""
        self.expected, self.never_here = None, frozenset()
        self._since_sync.extend(bytes(len(self._specs) - len(self._since_sync)))

    @property
    def learning(self) -> bool:
        """First live backward of a static graph: its arrivals are counted, and none makes a parameter ready."""
        return self._facts.static and self.expected is None

    @property
    def each_arrives_once(self) -> bool:
        """Whether every parameter is known to accumulate exactly once in each backward."""
        return not self._facts.searched and set(self.expectations()) == {1}

    # -- one backward

    def begin(
        self, parameters: Sequence[torch.Tensor], left_out: Collection[int], beyond_reach: Iterable[int] | None
    ) -> None:
        """A synchronised backward begins.

        ``left_out`` are never reduced, ``beyond_reach`` is what the search of the graph did not find. What was received
        since the last synchronisation and has been cleared, as ``zero_grad`` does, counts no more.
        """
        if any(self._since_sync):
            for index, parameter in enumerate(parameters):
                self._since_sync[index] &= parameter.grad is not None
        self._skipped = left_out
        self.unused = self.not_awaited(left_out, beyond_reach)

    def look(self, parameters: Sequence[torch.Tensor]) -> None:
        """A backward begins, synchronised or not, in which some may be used and others not."""
        self._found = [_mark(parameter.grad) for parameter in parameters]

    def wrote_itself(self, index: int, gradient: torch.Tensor | None) -> bool:
        """Whether a function of the user's own has written this gradient in the backward now running, and then passed
        None on."""
        return gradient is not None and index < len(self._found) and _mark(gradient) != self._found[index]

    def not_awaited(self, left_out: Collection[int], beyond_reach: Iterable[int] | None) -> set[int]:
        """The parameters that need not arrive in such a backward."""
        return {*(self.never_here if self._facts.static else beyond_reach or ()), *left_out}

    def expectations(self) -> list[int]:
        """How many arrivals make each parameter ready, if it is used."""
        if not self._facts.static:
            return [1] * len(self._specs)
        return [0] * len(self._specs) if self.expected is None else list(self.expected)

    def received(self, index: int, gradient: torch.Tensor | None) -> bool:
        """Whether autograd, which is done with a parameter, left it a gradient; if it only feeds outputs outside the
        loss there is none. Called in every backward, synchronised or not, where use varies."""
        if gradient is None:
            return False
        if self._facts.searched or self.learning:
            self._since_sync[index] = 1
        return True

    def learn(self, need: Sequence[int]) -> None:
        """The first backward of a static graph has counted ``-need`` arrivals of each parameter."""
        self.expected = [-count if came else 0 for count, came in zip(need, self._since_sync, strict=True)]
        self._since_sync = bytearray(len(self._specs))
        self.never_here = frozenset(index for index, count in enumerate(self.expected) if count == 0)
        self.unused = set(self.never_here)

    def here(self, index: int) -> bool:
        """Whether this rank used a parameter in this backward or, accumulating, since the last synchronisation."""
        return index not in self.unused or bool(self._since_sync[index])

    def delivered(self) -> None:
        """The gradients of a synchronised backward have been delivered."""
        self.always_the_same &= self._former in (None, self.unused)
        self._former = self.unused
        self._search_is_useful |= bool(self.unused)
        if self._facts.searched:
            self._since_sync = bytearray(len(self._specs))

    def judge_search(self, reductions: int) -> None:
        """Where the graph is searched: UserWarning, once a process, if that has found nothing in two reductions."""
        if reductions < 2 or self._search_is_useful or Usage._warned_needless:
            return
        Usage._warned_needless = True
        with suppress(UserWarning):  # it is said to one rank alone, whose step is not to end by it
            warnings.warn(
                "find_unused_parameters=True was given to DistributedDataParallel, but on this rank the first "
                "iterations used every parameter. The search costs time in each iteration. If no rank ever leaves a "
                "parameter out, leave the argument out; if your model does so later on, ignore this warning.",
                UserWarning,
                stacklevel=2,
            )

    def refuse_left_out(self, left_out: Collection[int], parameters: Sequence[torch.Tensor]) -> None:
        """RuntimeError where a parameter that no reduction covers has accumulated a gradient since the last one."""
        for index in left_out:
            if self._since_sync[index] and parameters[index].grad is not None:
                self._skipped = left_out
                self.refuse_second_arrival(index)

    def refuse_late(self, index: int, *, synchronised: bool) -> None:
        """RuntimeError where a parameter arrives for which the reduction of its forward has not waited, or, if that is
        not ``synchronised``, no reduction of a static graph waits."""
        if index in (self.unused if synchronised else self.never_here):
            self.refuse_second_arrival(index)

    def refuse_second_arrival(self, index: int) -> None:
        """A parameter has arrived of which nothing was expected any more: RuntimeError."""
        text = describe_second_arrival(
            self._specs[index],
            self._iteration.team.rank,
            taken_as_unused=index in self.unused,
            skipped=index in self._skipped,
            static=self._facts.static,
        )
        self._log.fail(RuntimeError, text)

    def unused_bytes(self) -> int:
        """Size of the gradients that the last backward did not produce here."""
        return sum(self._specs[index].bytes for index in self.unused)

    # -- agreement

    def reported(self, indices: Iterable[int], *, live: bool) -> list[bool]:
        """Whether this rank uses each of these parameters, as it tells the others.

        A joined rank (``live`` is False) has used nothing; but of a static graph it tells what it uses at other times,
        if it has learned that, since the agreement is to last.
        """
        tells = not self.learning if self._facts.static else live
        return [tells and self.here(index) for index in indices]


def _mark(gradient: torch.Tensor | None) -> tuple[int, int] | None:
    """What changes when a gradient does."""
    if gradient is None:
        return None
    return id(gradient) if gradient.layout != torch.strided else gradient.data_ptr(), gradient._version
