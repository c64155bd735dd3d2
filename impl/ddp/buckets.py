"""A bucket at run time: how gradients come into its flat tensor and out again, and what a communication hook sees."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import repeat
from operator import is_
from typing import Any

import torch
import torch.distributed as dist

from ..comm.averaging import gradient_dtype
from ..comm.flat import copy_all, dense_view, extent, views_like
from ..comm.pending import Watch
from . import kernels
from .plan import BucketSpec

#: from this many neighbours of like shape on, joining them costs less than copying each
_LONG_RUN = 8


class Filling:
    """Fills ``flat``, of which ``views`` are the parts one after another, with tensors shaped like those.

    On the CPU small neighbours whose shapes differ in the first dimension at most are joined, which costs a third of
    copying each: 0.12 against 0.36 µs for 64 elements, about 0.3 of 4.6 µs that such a parameter costs the host in a
    step at 2 ranks.
    """

    def __init__(self, flat: torch.Tensor, views: Sequence[torch.Tensor]) -> None:
        self._flat = flat
        self._views = list(views)
        #: whether each is filled, and emptied, by itself
        self.large = kernels.are_large(flat, self._views)
        runs = [] if self.large or flat.device.type != "cpu" else list(_runs_of_like_shape(self._views))
        self._joined = [(run, _spanned(flat, self._views[run])) for run in runs]
        joined = {place for run in runs for place in range(run.start, run.stop)}
        self._single = [place for place in range(len(self._views)) if place not in joined]
        self._single_views = [self._views[place] for place in self._single]

    def fill(self, sources: list[torch.Tensor], factor: float) -> None:
        """Fill the flat tensor with the sources times ``factor``."""
        if self.large and factor != 1.0:
            for view, source in zip(self._views, sources, strict=True):
                torch.mul(source.to(view.dtype), factor, out=view)  # else it would compute in the dtype of the source
            return
        if not self._joined or not self._join(sources):
            copy_all(self._views, sources)
        if factor != 1.0:
            self._flat.mul_(factor)

    def _join(self, sources: list[torch.Tensor]) -> bool:
        """Fill the flat tensor, joining what can be joined; False if some source does not let itself be joined."""
        try:
            for run, target in self._joined:
                torch.cat(sources[run], out=target)
        except RuntimeError:  # a gradient that is a view of the part that it is to fill, say
            return False
        if self._single:
            copy_all(self._single_views, [sources[place] for place in self._single])
        return True


def _runs_of_like_shape(views: Sequence[torch.Tensor]) -> Iterator[slice]:
    """The places of long runs of neighbours that ``torch.cat`` would make of their like."""
    first = 0
    for place in range(1, len(views) + 1):
        if place == len(views) or not _continues(views[place - 1], views[place]):
            if place - first >= _LONG_RUN:
                yield slice(first, place)
            first = place


def _continues(one: torch.Tensor, following: torch.Tensor) -> bool:
    return (
        one.dim() > 0
        and one.dim() == following.dim()
        and one.shape[1:] == following.shape[1:]
        and one.is_contiguous()
        and following.is_contiguous()
        and one.storage_offset() + one.numel() == following.storage_offset()
    )


def _spanned(flat: torch.Tensor, views: Sequence[torch.Tensor]) -> torch.Tensor:
    """The part of ``flat`` that neighbouring views cover, shaped like all of them joined."""
    first, numel = views[0].storage_offset() - flat.storage_offset(), sum(view.numel() for view in views)
    rows = sum(view.shape[0] for view in views)
    return flat[first : first + numel].view(rows, *views[0].shape[1:])


def part_gradients(parameters: Sequence[torch.nn.Parameter], before: Sequence[torch.Tensor | None]) -> None:
    """Give gradients that share memory some of their own, before all are written to.

    Autograd lets parameters share it where what it brought them was equal; averages over ranks need not be. What was
    there ``before`` this backward is the program's own affair.
    """
    brought = [each for each, kept in zip(parameters, before, strict=True) if kept is None]
    there = [(each.grad, each) for each in brought if type(each.grad) is torch.Tensor and not each.grad.is_sparse]
    end = 0
    for gradient, parameter in sorted(there, key=lambda each: each[0].data_ptr()):
        if gradient.data_ptr() < end:
            parameter.grad = gradient.clone()
        elif gradient.numel():
            end = gradient.data_ptr() + extent(gradient) * gradient.element_size()


class GradBucket:
    """What a communication hook is given: one bucket's gradients as one flat tensor.

    Same methods as ``torch.distributed.GradBucket``, so that hooks written for it run unchanged; ``names``,
    ``process_group``, ``divisor``, ``divisor_over`` and ``watch`` are ours. Keeps COMM-016.
    """

    def __init__(
        self,
        index: int,
        last: bool,
        flat: torch.Tensor,
        views: Sequence[torch.Tensor],
        parameters: Sequence[torch.nn.Parameter],
        names: Sequence[str],
        group: dist.ProcessGroup,
        divisor: int,
        uncounted: Collection[int] = (),
        watch: Watch | None = None,
    ) -> None:
        self._index = index
        self._last = last
        self._own = flat, views
        # those that are shown now
        self._flat = flat
        self._views = views
        self._parameters = parameters
        self._names = names
        self._group = group
        self._divisor = divisor
        self._uncounted = uncounted
        self._watch = watch

    def index(self) -> int:
        """Place of the bucket in the order of reduction, from 0."""
        return self._index

    def is_last(self) -> bool:
        """Whether this is the last bucket of the iteration."""
        return self._last

    def buffer(self) -> torch.Tensor:
        """The flat 1-D tensor of all gradients of the bucket (a sparse gradient as it is).

        Of complex gradients it holds two real numbers for each, as torch's does, so that no cast loses one of them: in
        a last dimension where the gradient is sparse.
        """
        return self._flat

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Replace the flat tensor; ``gradients`` shows the new one from now on (wrapped hooks read it, COMM-021)."""
        flat, views = self._own
        if buffer.is_sparse or flat.is_sparse:  # of one parameter
            self._views = [buffer]
        elif buffer.numel() == flat.numel():
            self._views = views_like(views, flat, buffer.reshape(-1))
        self._flat = buffer

    def gradients(self) -> list[torch.Tensor]:
        """The gradients by parameter, as views of the flat tensor, shaped like ``parameters``.

        Complex ones have a last dimension of two, as ``torch.view_as_real`` shows them.
        """
        return list(self._views)

    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters whose gradients these are, in the same order."""
        return list(self._parameters)

    def names(self) -> list[str]:
        """What they are called in the wrapped module: the same after a restart."""
        return list(self._names)

    def process_group(self) -> dist.ProcessGroup:
        """The group over which the DDP that owns the bucket reduces (COMM-024: the right default for a hook)."""
        return self._group

    def divisor(self) -> int:
        """By how much an average divides in this iteration: the group's size, or the number of active ranks when a
        join context asked for that (DDPJ-014)."""
        return self._divisor

    def divisor_over(self, ranks: Collection[int]) -> int:
        """The same for an average over these global ranks only."""
        return max(sum(rank not in self._uncounted for rank in ranks), 1)

    def watch(self) -> Watch | None:
        """What looks out for failed peers while a hook waits, be it on another group than that of the join block."""
        return self._watch


def complex_again(shown: torch.Tensor) -> torch.Tensor:
    """The complex numbers that were shown as two real ones each, in the last dimension; dense or sparse."""
    if not shown.is_sparse:
        shown = shown.contiguous()
        return torch.view_as_complex(shown.clone() if shown.storage_offset() % 2 else shown)  # of whole pairs only
    rows = shown.coalesce()
    return _with_values(rows, torch.view_as_complex(rows.values().contiguous()))


def _with_values(rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A coalesced sparse tensor with the indices of another one."""
    return torch.sparse_coo_tensor(
        rows.indices(),
        values,
        (*rows.shape[: rows.sparse_dim()], *values.shape[1:]),
        dtype=values.dtype,
        device=values.device,
        is_coalesced=True,
        check_invariants=False,
    )


class Bucket:
    """The machine behind one ``BucketSpec``.

    ``missing`` counts the parameters that have not reported in this backward; the bucket is full at 0. ``flat`` is
    (numel,) and holds the gradients in flight; ``views[k]`` shows parameter k's part of it, shaped like the parameter.
    What becomes ``.grad`` is another tensor of the same part, since a program may move that elsewhere:
    ``.grad.data = …``, as ``Module.to`` does. A sparse bucket has no flat buffer: its one gradient travels as it is.
    """

    def __init__(self, spec: BucketSpec, parameters: Sequence[torch.nn.Parameter], *, as_view: bool) -> None:
        self.spec = spec
        self.parameters = [parameters[index] for index in spec.parameters]
        self.as_view = as_view  # whether .grad becomes a view of the flat buffer
        self.missing = len(spec.slots)
        #: parameters whose gradients have accumulated, in order, where nobody counts them (see ``arrivals``)
        self.arrived: list[torch.Tensor] = []
        self.flat: torch.Tensor | None = None
        self.views: list[torch.Tensor] = []
        #: what becomes ``.grad``, part by part, and where it lies unless it was moved (views only)
        self._handed: list[torch.Tensor] = []
        self._places: list[int] = []
        #: by how much the contribution was multiplied when it was last collected
        self.factor = 1.0
        #: the gradients that were collected, kept until delivery (copies only)
        self._held: list[Any] = []
        #: whether no gradient lay in the flat buffer when they were collected, as after ``zero_grad()`` (views only)
        self._all_apart = False
        #: old gradients, by place, of locally unused parameters whose gradient lives in the flat buffer; between
        #: ``collect`` and ``deliver`` only
        self._set_aside: dict[int, torch.Tensor] = {}
        if not spec.sparse:
            self.flat = torch.zeros(spec.numel, dtype=spec.dtype, device=spec.device)
            pairs = zip(spec.slots, self.parameters, strict=True)
            self.views = [dense_view(self.flat, slot.offset, parameter) for slot, parameter in pairs]
            self._filling = Filling(self.flat, self.views)
            #: whether a gradient may be marked as conjugate or negative; a real one of more than one element is a copy
            self._may_be_marked = spec.dtype.is_complex or any(slot.numel == 1 for slot in spec.slots)
            if as_view:
                self._handed = [view.view_as(view) for view in self.views]
                self._places = list(map(torch.Tensor.data_ptr, self._handed))

    def shown(self, contribution: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """What a hook is shown of a contribution: all of it, flat or sparse, and its parts by parameter."""
        if self.spec.sparse:
            # a hook may work in place, and another gradient lie there, too
            rows = contribution.clone() if contribution.is_coalesced() else contribution.coalesce()
            rows = _with_values(rows, torch.view_as_real(rows.values())) if rows.is_complex() else rows
            return rows, [rows]
        views = self.views if contribution is self.flat else self.views_of(contribution)
        if not contribution.is_complex():
            return contribution, views
        return torch.view_as_real(contribution).view(-1), list(map(torch.view_as_real, views))

    def answered(self, result: Any, whose: str) -> torch.Tensor:
        """What a hook answers with, in the bucket's own numbers; RuntimeError unless it is shaped like the bucket.

        ``whose``: the hook's, for people.
        """
        numel = self.spec.numel * (2 if self.spec.dtype.is_complex else 1)  # a hook is shown real numbers
        if not isinstance(result, torch.Tensor) or (not self.spec.sparse and result.numel() != numel):
            shape = f" of shape {tuple(result.shape)}" if isinstance(result, torch.Tensor) else ""
            raise RuntimeError(
                f"The {whose}'s future for bucket {self.spec.index} holds a {type(result).__name__}{shape}; expected "
                f"one tensor of {numel} elements, shaped like the bucket. A collective's own future holds a list: "
                "chain `.then(lambda future: future.value()[0])`."
            )
        return self.as_gradients(result)

    def as_gradients(self, shown: torch.Tensor) -> torch.Tensor:
        """What a hook was shown, or answers with, in the bucket's own numbers again."""
        if not self.spec.dtype.is_complex:
            return shown
        real = shown.to(self.spec.dtype.to_real())
        return complex_again(real if self.spec.sparse else real.reshape(-1, 2))

    def views_of(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Views of any flat tensor of this bucket's length, one for each parameter, laid out as in our own.

        Parameters may have been laid out anew since; the order of elements in the bucket stays.
        """
        return views_like(self.views, self.views[0], flat)  # the first begins where the bucket does

    def reset(self, flats: Collection[int]) -> None:
        """Make ready for the next backward. ``flats``: the addresses of all buckets' memory (views only)."""
        self.missing = len(self.parameters)
        self.arrived.clear()
        self._set_aside.clear()
        if self._places:
            self._part_from_others(flats)

    def _part_from_others(self, flats: Collection[int]) -> None:
        """The program has given a parameter what lies in another one's place: from now on that is memory of its own."""
        for parameter, place in zip(self.parameters, self._places, strict=True):
            gradient = parameter.grad
            if gradient is None or gradient.layout is not torch.strided or gradient.data_ptr() == place:
                continue
            if gradient.untyped_storage().data_ptr() in flats:
                parameter.grad = gradient.clone()

    def has_strays(self) -> bool:
        """Whether some gradient lies elsewhere than it was handed out, and none of them is sparse (views only)."""
        places = zip(self.parameters, self._places, strict=True)
        return any(each.grad is not None and each.grad.data_ptr() != place for each, place in places)

    def all_arrived(self) -> bool:
        """Whether every parameter is among the arrived."""
        if len(self.arrived) == len(self.parameters) and all(map(is_, self.arrived, self.parameters)):
            return True
        return set(map(id, self.parameters)) <= set(map(id, self.arrived))

    def zeros(self) -> torch.Tensor:
        """A contribution of nothing: what a joined rank sends (DDPJ-009)."""
        return self._no_rows() if self.flat is None else torch.zeros_like(self.flat)

    # -- filling

    def collect(self, unused: Collection[int], factor: float) -> torch.Tensor:
        """Bring the local gradients, times ``factor``, into the flat buffer and return it; absent ones are zeros.

        ``unused`` ones contribute what they hold from earlier iterations, so that averages add up (DDP-059). A sparse
        bucket returns its gradient in the dtype in which it travels, or an empty one.
        """
        if self.flat is None:
            return self._sparse_gradient()
        self.factor = factor
        if self._may_be_marked:
            self._resolve_marks()
        gradients: list[Any] = [parameter.grad for parameter in self.parameters]
        self._all_apart = False
        if self.as_view:
            self._notice_moved()
        if unused or any(map(is_, gradients, repeat(None))):
            self._collect_what_is_there(unused)
        elif not self.as_view:
            self._held = gradients  # a second look at the same objects costs a quarter of the first
            self._filling.fill(gradients, factor)
            return self.flat
        elif not all(map(is_, gradients, self._handed)):  # else autograd has accumulated right here
            self._all_apart = not any(map(is_, gradients, self._handed))
            if self._all_apart:
                self._filling.fill(gradients, factor)
                return self.flat
            self._collect_what_is_there(unused)
        if factor != 1.0:
            self.flat.mul_(factor)
        return self.flat

    def refuse_sparse(self) -> None:
        """RuntimeError where a gradient is sparse of which that was not known in time."""
        for index, parameter in zip(self.spec.parameters, self.parameters, strict=True):
            if not self.spec.sparse and parameter.grad is not None and parameter.grad.is_sparse:
                raise RuntimeError(
                    f"The gradient of the parameter at index {index}, of shape {tuple(parameter.shape)}, is sparse, "
                    "which was not known when the buckets were laid out: sparse gradients are expected of nn.Embedding "
                    "and nn.EmbeddingBag with sparse=True. Usual cause: torch.nn.functional.embedding with "
                    "sparse=True. Use such a layer, or a dense gradient."
                )

    def _resolve_marks(self) -> None:
        """Autograd leaves some gradients unconjugated or not negated, with a mark: lists of such take no results."""
        for parameter in self.parameters:
            if parameter.grad is not None and (parameter.grad.is_conj() or parameter.grad.is_neg()):
                parameter.grad = parameter.grad.resolve_conj().resolve_neg()

    def _notice_moved(self) -> None:
        """Hand out another tensor where the program has moved one: that is its own from now on."""
        places = list(map(torch.Tensor.data_ptr, self._handed))
        if places == self._places:
            return
        for part, (now, then) in enumerate(zip(places, self._places, strict=True)):
            if now != then:
                self._handed[part] = self.views[part].view_as(self.views[part])

    def _collect_what_is_there(self, unused: Collection[int]) -> None:
        targets, sources = [], []
        for place, (index, parameter) in enumerate(zip(self.spec.parameters, self.parameters, strict=True)):
            gradient, view = parameter.grad, self.views[place]
            if gradient is None:
                view.zero_()
            elif self.as_view and gradient is self._handed[place]:  # accumulated right here, now or earlier
                if index in unused:
                    self._set_aside[place] = view.clone()
            else:
                targets.append(view)
                sources.append(gradient)
        if sources:
            copy_all(targets, sources)

    def _sparse_gradient(self) -> torch.Tensor:
        parameter = self.parameters[0]
        if parameter.grad is None:
            return self._no_rows()
        rows = parameter.grad if parameter.grad.is_sparse else parameter.grad.to_sparse(1)
        return rows.to(self.spec.dtype)

    def _no_rows(self) -> torch.Tensor:
        parameter = self.parameters[0]
        rows = torch.empty((0, *parameter.shape[1:]), dtype=self.spec.dtype, device=parameter.device)
        none = rows.new_empty((1, 0), dtype=torch.int64)
        return torch.sparse_coo_tensor(none, rows, parameter.shape, dtype=rows.dtype, device=rows.device)

    def kept_gradient(self, place: int) -> torch.Tensor | None:
        """The gradient that the parameter at ``place`` keeps if nobody used it; between ``collect`` and ``deliver``."""
        return self._set_aside.get(place, self.parameters[place].grad)

    # -- delivering

    def deliver(self, result: torch.Tensor, untouched: Collection[int], divisor: int) -> None:
        """Hand the reduced gradients, divided, to the parameters; ``untouched`` ones keep what they had (DDP-100)."""
        if self.flat is None:
            if self.spec.slots[0].parameter not in untouched:
                if divisor != 1:
                    kernels.divide(result.values(), divisor)
                self._deliver_sparse(result)
        elif self.as_view:
            kernels.divide(result, divisor)
            self._deliver_views(result, untouched)
        else:
            self._deliver_copies(result, untouched, divisor)
            self._held = []

    def _deliver_sparse(self, result: torch.Tensor) -> None:
        parameter = self.parameters[0]
        if parameter.grad is None or parameter.grad.is_sparse:
            parameter.grad = result.to(gradient_dtype(parameter))
        else:  # a dense layer shares the table, and an optimizer may want a dense gradient of it
            parameter.grad.copy_(result.to_dense() if result.is_sparse else result)

    def _deliver_views(self, result: torch.Tensor, untouched: Collection[int]) -> None:
        assert self.flat is not None
        if result is not self.flat:
            self.flat.copy_(result.reshape(-1))
        if not untouched:  # as a rule, and then without a look at each place: twice as fast
            for parameter, handed in zip(self.parameters, self._handed, strict=True):
                if self._all_apart or parameter.grad is not handed:  # the look costs a quarter of the whole
                    parameter.grad = handed
            return
        for place, (index, parameter) in enumerate(zip(self.spec.parameters, self.parameters, strict=True)):
            if index in untouched:
                if place in self._set_aside:
                    self.views[place].copy_(self._set_aside[place])
            elif parameter.grad is not self._handed[place]:
                parameter.grad = self._handed[place]

    def _deliver_copies(self, result: torch.Tensor, untouched: Collection[int], divisor: int) -> None:
        views = self.views if result is self.flat else self.views_of(result.contiguous().view(-1))
        gradients: list[Any] = [parameter.grad for parameter in self.parameters]
        if not untouched and not any(map(is_, gradients, repeat(None))):
            if divisor == 1:
                copy_all(gradients, views)
            else:
                kernels.copy_divided(gradients, result, views, divisor, large=self._filling.large)
            return
        kernels.divide(result, divisor)
        targets, sources = [], []
        for index, parameter, view in zip(self.spec.parameters, self.parameters, views, strict=True):
            if index in untouched:
                continue
            if parameter.grad is None:
                parameter.grad = view.to(gradient_dtype(parameter), copy=True)
            else:
                targets.append(parameter.grad)
                sources.append(view)
        if targets:
            copy_all(targets, sources)

    # -- giving up, and a new plan

    def part_with_flat(self) -> None:
        """A collective may write to the flat buffer yet: gradients that live in it get memory of their own."""
        if not self.as_view:
            return
        for place, (parameter, handed) in enumerate(zip(self.parameters, self._handed, strict=True)):
            if parameter.grad is handed:
                kept = self._set_aside.get(place)
                parameter.grad = self.views[place].clone() if kept is None else kept

    def adopt_gradients(self) -> None:
        """Take over gradients that live in a former plan's buffers, values and all (bucket views only)."""
        if not self.as_view or self.flat is None:
            return
        for parameter, view, handed in zip(self.parameters, self.views, self._handed, strict=True):
            # else it was cast past the wrapper, and the buckets are laid out once more before the next forward
            if parameter.grad is not None and parameter.grad.dtype is view.dtype:
                view.copy_(parameter.grad)
                parameter.grad = handed
