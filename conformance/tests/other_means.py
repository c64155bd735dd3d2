"""A subject that is right by other means than torch's: other words and errors, no buckets, gradients in ``main_grad``.

It reduces once, at the end of a backward, by gathering what every rank has and adding it up itself. Whatever the suite
says against it, beside what it declares to lack, is a false alarm.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo import compiled_autograd
from torch.nn.parameter import UninitializedParameter

from conformance.subjects import Subject
from conformance.subjects.foreign import OF_DDP_ALONE, lacking, taken

#: Options of how, not of what: this reduces everything once, and leaves out what no rank used, whatever they say.
_WITHOUT_EFFECT = ("find_unused_parameters", "bucket_cap_mb")


class Refused(RuntimeError, ValueError, TypeError):
    """Of every kind that a clause may name."""


class EndOfBackward(nn.Module):
    """Averages the gradients that any rank has, when the engine has come to its end."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__()
        options = taken(options, "process_group", *_WITHOUT_EFFECT)
        self.module, self.require_backward_grad_sync = module, True
        self._may_miss = options.get("find_unused_parameters", False)
        self._own_group = options.get("process_group")
        self._begin()
        self._look_over()
        for tensor in [*module.parameters(), *module.buffers()]:
            self._from_first(tensor)

    def _begin(self) -> None:
        """What is not pickled: the group, and what hangs on parameters."""
        self._reduces, self._due = True, False  # whether the last forward that was for training allows it
        self._group = self._own_group or dist.distributed_c10d._get_default_group()
        self._trained = [each for each in self.module.parameters() if each.requires_grad]
        self._frozen = [each for each in self.module.parameters() if not each.requires_grad]
        self._came: set[nn.Parameter] = set()  # since the last reduction
        self._now: set[nn.Parameter] = set()  # in this backward
        self._missed: list[int] = []  # those that had no gradient in the last one
        self._awaits = SimpleNamespace(reduction=False)  # by the backward that is to come
        #: a hook that held us would keep us for as long as our own parameters live
        me, awaits = weakref.ref(self), self._awaits

        def arrived(parameter: nn.Parameter) -> None:
            model = me()
            if model is not None:
                model._arrived(parameter)
            elif awaits.reduction:
                raise Refused("the wrapper has to be kept until its backward has ended")

        for parameter in self._trained:
            if not isinstance(parameter, UninitializedParameter):
                parameter.register_post_accumulate_grad_hook(arrived)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)

    def __getstate__(self) -> dict[str, Any]:
        if self._own_group is not None and self._own_group is not dist.group.WORLD:
            raise Refused("another group than the default one cannot be taken along")
        without = ("_group", "_own_group", "_trained", "_frozen", "_came", "_now")
        return {name: value for name, value in vars(self).items() if name not in without}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._own_group = None
        self._begin()

    def _look_over(self) -> None:
        """Refuse what cannot be trained, on every rank if one of them has it."""
        every = list(self.module.parameters())
        if not self._trained:
            raise Refused("nothing to train here")
        if any(isinstance(each, UninitializedParameter) for each in every):
            raise Refused("run the model once, so that its lazy layers get their sizes")
        if len({each.device.type for each in every}) > 1:
            raise Refused("one model on devices of two types")
        if any(isinstance(each, nn.SyncBatchNorm) for each in self.module.modules()) and every[0].device.type == "cpu":
            raise Refused("a layer of this model works on GPUs alone")
        names = {each: name for name, each in self.module.named_parameters()}
        mine = [(names[each], tuple(each.shape), each.stride(), str(each.dtype)) for each in self._trained]
        told: list[Any] = [None] * self._group.size()
        dist.all_gather_object(told, mine, self._group)
        counts = [len(each) for each in told]
        if len({*counts}) > 1:
            each = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(counts))
            raise Refused(f"ranks train unlike numbers of parameters, {each}")
        for place, kinds in enumerate(zip(*told, strict=True)):
            if len({*kinds}) > 1:
                raise Refused(f"ranks have unlike models, from trained parameter {place} on")

    def forward(self, *given: Any, **named: Any) -> Any:
        if compiled_autograd.compiled_autograd_enabled:
            raise Refused("the hooks of this model are not called in a backward that is compiled")
        if self._reduces and (self.require_backward_grad_sync or torch.is_grad_enabled()):
            self._look_at_sizes()
            for buffer in self.module.buffers():
                self._from_first(buffer)
        self._due = False  # a backward that failed has left it
        if torch.is_grad_enabled():
            if self._missed:
                names = {each: name for name, each in self.module.named_parameters()}
                left_out = ", ".join(f"{at} ({names.get(self._trained[at])})" for at in self._missed)
                raise Refused(f"the backward before left out {left_out}; find_unused_parameters=True allows that")
            if not {*self._trained} <= {*self.module.parameters()}:
                raise Refused("a parameter was put in place of another after wrapping")
            if any(each.requires_grad and each.is_leaf for each in self._frozen):
                raise Refused("a parameter is trained that was not when the model was wrapped")
            self._now.clear()
            self._reduces = self.require_backward_grad_sync
            self._awaits.reduction = self._reduces
        return self.module(*given, **named)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients stay local inside."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @torch.compiler.disable
    def _look_at_sizes(self) -> None:
        """Refuse buffers that have other sizes on some ranks, on all of them."""
        mine = [tuple(buffer.shape) for buffer in self.module.buffers()]
        if not mine:
            return
        told: list[Any] = [None] * self._group.size()
        with torch._C._DisableFuncTorch():
            dist.all_gather_object(told, mine, self._group)
        if any(sizes != mine for sizes in told):
            raise Refused("buffers have other sizes on some ranks")

    def _from_first(self, tensor: torch.Tensor) -> None:
        """A copy of the tensor travels; the tensor itself is only written."""
        with torch.no_grad(), torch._C._DisableFuncTorch():  # in a function that is transformed, too
            sent = tensor.detach().clone().contiguous()
            dist.broadcast(sent, dist.get_global_rank(self._group, 0), self._group)
            tensor.data.copy_(sent)

    def _arrived(self, parameter: nn.Parameter) -> None:
        self._came.add(parameter)
        self._now.add(parameter)
        meant = self.require_backward_grad_sync or self._awaits.reduction
        if self._reduces and meant and not self._due:
            self._due = True
            torch.autograd.Variable._execution_engine.queue_callback(self._reduce)

    def _reduce(self) -> None:
        self._due = self._awaits.reduction = False
        held = [each.grad if each in self._came else None for each in self._trained]
        came = [0 if grad is None else 1 + (grad.sparse_dim() if grad.is_sparse else 0) for grad in held]
        kinds = torch.tensor(came, dtype=torch.uint8)  # that any rank has: 1 dense, n + 1 sparse in n dimensions
        dist.all_reduce(kinds, dist.ReduceOp.MAX, self._group)
        missed = [at for at, each in enumerate(self._trained) if each not in self._now]
        self._missed = [] if self._may_miss else missed
        self._came.clear()
        for parameter, kind in zip(self._trained, kinds.tolist(), strict=True):
            if kind:
                parameter.main_grad = self._average(parameter, parameter.grad, kind - 1)
                parameter.grad = parameter.main_grad

    def _average(self, parameter: nn.Parameter, mine: torch.Tensor | None, sparse_dims: int) -> torch.Tensor:
        """The mean in a new tensor, laid out as the parameter is; divided first, then added."""
        wanted = getattr(parameter, "grad_dtype", None) or parameter.dtype
        if mine is None:
            mine = torch.zeros_like(parameter, dtype=wanted)
        mine = mine.to_dense() if mine.is_sparse else mine
        everyone = [torch.empty_like(mine).contiguous() for _ in range(self._group.size())]
        dist.all_gather(everyone, mine.contiguous() / len(everyone), self._group)
        mean = torch.empty_like(parameter, dtype=mine.dtype).copy_(torch.stack(everyone).sum(0))
        return mean.to_sparse(sparse_dims) if sparse_dims else mean


subject = Subject(
    "right by other means",
    "1",
    {"DistributedDataParallel": EndOfBackward},
    {
        **lacking(OF_DDP_ALONE, "it has no such attribute", ("require_backward_grad_sync",)),
    },
)
