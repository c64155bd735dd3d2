"""The mode without buckets: each parameter's gradient is averaged by itself as soon as it has accumulated (DDP-167)."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from . import kernels
from .hooks.reduction import finish_mean, start_mean
from .iteration import Stage
from .log import Fail
from .pending_backward import Forwards
from .reduction import Transport


class PerParameterReduction:
    """One blocking average for each parameter. Nothing happens in the backward of a forward under ``no_sync``.

    The registered communication hook is called with ``(gradient, parameter)`` instead of a bucket.
    """

    def __init__(self, transport: Transport, forwards: Forwards, fail: Fail) -> None:
        self._transport = transport
        self._forwards = forwards
        self._iteration = transport.iteration
        self._fail = fail
        #: what is averaged this way: the reducer's own list, which thawed parameters join
        self._parameters: Sequence[torch.nn.Parameter] = ()
        self._handles: list[Any] = []

    def install(self, parameters: Sequence[torch.nn.Parameter], beside: Sequence[str]) -> None:
        """Average these parameters' gradients from now on, in the place of buckets.

        RuntimeError inside a join block, or where there is anything ``beside`` that acts when buckets are reduced.
        """
        if self._iteration.session is not None:
            self.refuse_uneven_inputs()
        self._refuse(beside)
        self._parameters = parameters
        self.watch_thawed()

    def watch_thawed(self) -> None:
        """Average what has come to those parameters, too."""
        arrived = kernels.weak_call(self._arrived)
        for parameter in self._parameters[len(self._handles) :]:
            handle = parameter.register_post_accumulate_grad_hook(arrived)
            weakref.finalize(self, handle.remove).atexit = False
            self._handles.append(handle)

    def refuse_uneven_inputs(self, *, entered: bool = False) -> None:
        """RuntimeError inside a join block; where one is entered, only if gradients are averaged this way."""
        if entered and not self._handles:
            return
        self._fail(
            RuntimeError,
            "This DDP averages its gradients parameter by parameter (_register_accum_grad_hook), which a rank that has "
            "run out of inputs cannot follow: it would wait for buckets that never come. Train on uneven inputs "
            "without it, or give every rank equally many inputs and leave the join context out (enable=False).",
        )

    def refuse_beside(self, others: Sequence[str]) -> None:
        """RuntimeError where gradients are averaged this way beside what acts when buckets are reduced."""
        if self._handles:
            self._refuse(others)

    def _refuse(self, others: Sequence[str]) -> None:
        if others:
            self._fail(
                RuntimeError,
                "This DDP averages its gradients parameter by parameter (_register_accum_grad_hook), so no buckets are "
                f"reduced, after which {' and '.join(others)} would act. Leave one of them out.",
            )

    def due(self) -> bool:
        """Whether a gradient that has accumulated is to be averaged: where its forward was to be synchronised."""
        forward = self._forwards.synchronised(kernels.backward_id())
        return self._iteration.wants_reductions if forward is None else forward

    def _arrived(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None and self.due():
            # It may lie in memory that this backward is still to read (a sum passes one gradient on to all), and if the
            # program has made it, it may be laid out as on no other rank.
            if gradient.is_sparse:
                gradient.data = gradient.clone()
            else:
                gradient.data = torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient.detach())
            self._iteration.go_through(Stage.PARAMETER, parameter, gradient)

    def reduce(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Average this parameter's gradient over the group, in place."""
        self._iteration.await_futures()
        with torch.no_grad():
            if self._transport.hook is not None:
                state, hook = self._transport.hook
                hook(state, (gradient, parameter))  # type: ignore[arg-type]
                return
            team = self._iteration.team
            start_mean(team, team.size, gradient, "gradient of one parameter").wait()
            finish_mean(gradient, team.size)
