"""One variant on one rank: model, DDP and optimizer of a subject, built as a user would, and its training loops."""

from __future__ import annotations

import contextlib
import inspect
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

from conformance.fixtures.groups import group_of
from conformance.ranks import RankContext
from conformance.subjects import Subject

from ..plan.axes import OVERLAPPED
from ..plan.cells import Cell
from ..workloads import Workload
from .clock import Clock


def measured_group(ctx: RankContext, cells: Iterable[Cell]) -> Any:
    """The group on which cells are measured together: torch's overlap hooks refuse Gloo by its name."""
    return group_of(ctx) if any(cell.hook in OVERLAPPED for cell in cells) else ctx.group


class Trainer:
    """Builds a cell on this rank and trains it. Construction communicates: every rank must be here at the same time."""

    def __init__(self, ctx: RankContext, cell: Cell, subject: Subject, workload: Workload, group: Any) -> None:
        self.cell, self.subject, self.group = cell, subject, group
        self.rank, self.world, self.device = ctx.rank, ctx.world, ctx.device
        self.bare = workload.model(cell.pace).to(ctx.device)
        self.delay_s = 0.0  # by so much this rank is slower in every iteration (skew: straggler)
        kind, settings = workload.optimizer(cell.optimizer)
        if cell.strategy in ("join", "throwing", "after_join"):
            self._join = subject.Join  # a subject without it says so here, where nothing is disturbed yet
        if cell.hook == "local":
            self.model: Any = self.bare
            self.optimizer: Any = kind(self.bare.parameters(), **settings)
        else:
            self.model = subject.DistributedDataParallel(self.bare, **self._options())
            self.optimizer = self._optimizer(kind, settings)
        self.calls_step = cell.hook not in OVERLAPPED
        if not self.calls_step:
            self.model.register_comm_hook(group, self._hook())
        self._fresh = [tensor.detach().clone() for tensor in self._tensors()]

    def _options(self) -> dict[str, Any]:
        cell = self.cell
        options: dict[str, Any] = {"process_group": self.group, "gradient_as_bucket_view": cell.bucket_view}
        if self.device.type == "cuda":
            options["device_ids"] = [self.device.index]
        if cell.cap_mib:
            options["bucket_cap_mb"] = cell.cap_mib
        known = inspect.signature(self.subject.DistributedDataParallel).parameters
        if cell.settings == "best" and "batched_grad_copy" in known:  # elsewhere the default is the best
            options["batched_grad_copy"] = True
        return options

    def _optimizer(self, kind: type[torch.optim.Optimizer], settings: dict[str, Any]) -> Any:
        if self.cell.zero == "off":
            return kind(self.bare.parameters(), **settings)
        if self.cell.hook in OVERLAPPED:
            settings = {**settings, "overlap_with_ddp": True}
        elif self.cell.zero == "views":
            settings = {**settings, "parameters_as_bucket_view": True}
        return self.subject.ZeroRedundancyOptimizer(
            self.model.parameters(), kind, process_group=self.group, **settings
        )

    def _hook(self) -> Callable[..., Any]:
        subject, cell = self.subject, self.cell
        interleaved = cell.hook.endswith("interleaved")
        factory = subject.hook_with_zero_step_interleaved if interleaved else subject.hook_with_zero_step
        scatter = cell.hook.startswith("reduce_scatter")
        wrapped = None if scatter else subject.default_hooks.allreduce_hook
        more = {"reduce_scatter": True} if scatter else {}
        hook: Callable[..., Any] = factory(wrapped, self.model, self.optimizer, cell.shard_buckets, **more)
        return hook

    # -- state

    def _tensors(self) -> list[torch.Tensor]:
        return [*self.bare.parameters(), *self.bare.buffers()]

    def state(self) -> Iterator[torch.Tensor]:
        """The tensors of the optimizer's state that this rank keeps."""
        keeper = getattr(self.optimizer, "optim", self.optimizer)
        for values in keeper.state.values():
            yield from (value for value in values.values() if isinstance(value, torch.Tensor))

    @torch.no_grad()
    def reset(self) -> None:
        """Back to the initial weights and a state of zeros, in place: what a new optimizer would make of them."""
        for tensor, fresh in zip(self._tensors(), self._fresh, strict=True):
            tensor.copy_(fresh)
        for tensor in self.state():
            tensor.zero_()

    # -- training

    def iterate(self, batch: Any, clock: Clock) -> None:
        """One iteration, with the marks of its phases."""
        clock.mark()
        if self.delay_s:
            time.sleep(self.delay_s)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(batch)
        clock.mark()
        loss.backward()
        clock.mark()
        if self.calls_step:
            self.optimizer.step()
        clock.mark()

    def steps(self, batches: Sequence[Any], clock: Clock) -> None:
        """Iterations in a row, within whatever the strategy puts around them."""
        flag = self.cell.strategy == "flag"
        with self.model.no_sync() if self.cell.hook == "no_sync" else self.context():
            for batch in batches:
                if flag:
                    self._all_have_next(True)
                self.iterate(batch, clock)

    def epoch(self, batches: Sequence[Any], clock: Clock) -> None:
        """A whole uneven run: this rank's batches, under the cell's strategy."""
        clock.mark()
        with self.context():
            if self.cell.strategy == "flag":
                self._flagged(batches)
            else:
                for batch in batches:
                    self.iterate(batch, _SILENT)
        clock.mark()

    def _flagged(self, batches: Sequence[Any]) -> None:
        position = 0
        while self._all_have_next(position < len(batches)):
            self.iterate(batches[position], _SILENT)
            position += 1

    def _all_have_next(self, mine: bool) -> bool:
        flag = torch.tensor([float(mine)], device=self.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=self.group)
        return bool(flag.item())

    def context(self) -> AbstractContextManager[Any]:
        """What the strategy puts around iterations."""
        if not self.cell.joins:
            return contextlib.nullcontext()
        return self.join(throw_on_early_termination=self.cell.strategy == "throwing")

    def join(self, **options: Any) -> AbstractContextManager[Any]:
        """The subject's join context over what takes part here."""
        joinables = [self.model] if self.cell.zero == "off" else [self.model, self.optimizer]
        context: AbstractContextManager[Any] = self._join(joinables, **options)
        return context


class _Silent(Clock):
    """Takes no notes: inside an epoch only its ends count."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))

    def mark(self) -> None:
        pass


_SILENT = _Silent()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without the warnings that libraries give while they are built and joined; ranks print nowhere that is read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
