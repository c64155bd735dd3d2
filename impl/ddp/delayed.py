"""Parameters that are reduced late, in one piece, after all others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from ..comm import collectives
from ..comm.averaging import divides_first, gradient_dtype
from ..comm.collectives import broadcast_coalesced
from ..comm.flat import dense_views, new_flat
from ..comm.pending import Pending
from ..comm.ranks import GroupRank
from . import kernels
from .iteration import Iteration
from .log import Fail
from .optimizer_in_backward import OptimizersInBackward
from .params import Managed, named_parameters

_GradientKind = tuple[torch.dtype, torch.device]


def _gradient_kind(parameter: nn.Parameter) -> _GradientKind:
    return gradient_dtype(parameter), parameter.device


def delayable(named: Iterable[tuple[str, nn.Parameter]], managed: Iterable[Managed]) -> dict[str, nn.Parameter]:
    """The parameters to be delayed, by name: none where all that are trained are named (exceeds DDP-127).

    Then nothing is left that could go first, and they are reduced in buckets, as they become ready.
    """
    chosen = {name.removeprefix("."): parameter for name, parameter in named}
    some_go_first = any(item.parameter.requires_grad and item.name not in chosen for item in managed)
    return chosen if some_go_first else {}


class DelayedReduction:
    """Keeps the gradients of the delayed parameters in flat buffers, one for each dtype and device, and averages those.

    The reduction follows that of the buckets, whether or not the trigger's gradient has come: some ranks may not use
    it. So gradients that come after the trigger are included (exceeds DDP-125), it is waited for before backward
    returns (exceeds DDP-124), and under ``no_sync`` nothing is reduced (exceeds DDP-126). Keeps DDP-121 … DDP-123.
    """

    def __init__(self, iteration: Iteration, parameters: Sequence[nn.Parameter], trigger: nn.Parameter) -> None:
        self._iteration = iteration
        iteration.buckets_only = False
        self.parameters = list(parameters)
        #: kept for who copies the object
        self._trigger = trigger
        self._lay_out()
        #: those that the delayed parameters carry; stepped with the averaged gradients
        self.optimizers: OptimizersInBackward | None = None

    @staticmethod
    def of(
        iteration: Iteration, parameters: Sequence[nn.Parameter], trigger: nn.Parameter | None
    ) -> DelayedReduction | None:
        """Set up the delayed reduction, starting from rank 0's values (DDP-121); None where nothing is delayed."""
        if trigger is None or not parameters:
            return None
        detached = [parameter.detach() for parameter in parameters]
        broadcast_coalesced(iteration.team, detached, GroupRank(0), "delayed parameters")
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

    def _lay_out(self) -> None:
        #: one for each dtype and device: (numel,); and each parameter's part. What becomes ``.grad`` is another tensor
        #: of that part, since a program may move it elsewhere: ``.grad.data = …``, as ``Module.to`` does
        self._flats: list[torch.Tensor] = []
        self._views: dict[nn.Parameter, torch.Tensor] = {}
        #: the parameters' kinds of gradient, and their strides
        self._laid_out_for = list(map(_gradient_kind, self.parameters)), list(map(torch.Tensor.stride, self.parameters))
        kinds: dict[_GradientKind, list[nn.Parameter]] = {}
        for kind, parameter in zip(self._laid_out_for[0], self.parameters, strict=True):
            kinds.setdefault(kind, []).append(parameter)
        for (dtype, device), members in kinds.items():
            flat = new_flat(sum(p.numel() for p in members), dtype, device)
            self._flats.append(flat)
            self._views.update(zip(members, dense_views(flat, members), strict=True))

    def _notice_cast(self) -> None:
        """Lay out anew if some parameters were moved, cast or laid out otherwise, on all ranks alike; gradients are
        taken in later."""
        kinds = list(map(_gradient_kind, self.parameters))
        if (kinds, list(map(torch.Tensor.stride, self.parameters))) != self._laid_out_for:
            self._lay_out()

    def after_forward(self) -> None:
        """Point gradients that are None at their views, emptied; the others go on accumulating (DDP-123)."""
        self._notice_cast()
        self._gather_strays()  # now, for backward adds to them where they lie: in a bucket, say
        self._fill_gaps()

    def _fill_gaps(self) -> None:
        for parameter, view in self._views.items():
            if parameter.grad is None:
                view.zero_()
                parameter.grad = view.detach() if parameter.requires_grad else None

    def reduce(self) -> None:
        """Average the delayed gradients."""
        with torch.no_grad():
            self._gather_strays()
            self._fill_gaps()
            divisor = self._iteration.divisor()
            kept = [(view, view.clone()) for each, view in self._views.items() if not each.requires_grad]
            for flat in self._flats:
                kernels.divide(flat, divisor if divides_first(flat.dtype) else 1)
            for pending in self._start(self._flats):
                flat = pending.wait(self._iteration.watch())
                kernels.divide(flat, 1 if divides_first(flat.dtype) else divisor)
            for view, gradient in kept:  # what is not trained keeps the gradient that it has (DDP-058)
                view.copy_(gradient)
            if self.optimizers is not None:
                self.optimizers.step()

    @torch.no_grad()
    def _gather_strays(self) -> None:
        """Take in gradients that the user has replaced or moved since they were pointed at their views.

        All are copied to new flat buffers: another gradient, of any parameter, may lie in the old ones now.
        """
        held = {parameter: parameter.grad for parameter in self.parameters if parameter.grad is not None}
        if all(not each.is_sparse and each.data_ptr() == self._views[p].data_ptr() for p, each in held.items()):
            return
        self._lay_out()
        for parameter, gradient in held.items():
            view = self._views[parameter]
            view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
            parameter.grad = view.detach()

    def _start(self, flats: Sequence[torch.Tensor]) -> list[Pending]:
        return [collectives.all_reduce(self._iteration.team, flat, "delayed gradients") for flat in flats]

    def shadow(self) -> None:
        """A joined rank's side: the same collectives with zeros; its own gradients stay."""
        self._notice_cast()
        for pending in self._start([torch.zeros_like(flat) for flat in self._flats]):
            pending.wait(self._iteration.watch())
