"""What one process with a replica for each rank says of a program: the documented rules, and nothing of processes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from . import source as sources
from .loading import loaded
from .looking import Look
from .program import Program

OPEN = "open"  # noted where the documents leave a value to the implementation


@dataclass
class Wrapped:
    """One model under DDP on one rank."""

    module: nn.Module
    ignored: frozenset[str] = frozenset()
    used: set[str] = field(default_factory=set)  # parameters that have got gradients since the last reduction

    def __post_init__(self) -> None:
        self.parameters = dict(self.module.named_parameters())
        self.trained = [n for n, p in self.parameters.items() if p.requires_grad and n not in self.ignored]
        for name in self.trained:
            self.parameters[name].register_post_accumulate_grad_hook(self._noting(name))

    def _noting(self, name: str) -> Callable[[torch.Tensor], None]:
        return lambda _: self.used.add(name)

    @torch.no_grad()
    def take_parameters(self, source: Wrapped) -> None:
        for name, parameter in self.parameters.items():
            if name not in self.ignored:
                parameter.copy_(source.parameters[name])

    @torch.no_grad()
    def take_buffers(self, source: Wrapped) -> None:
        theirs = dict(source.module.named_buffers())
        for name, buffer in self.module.named_buffers():
            buffer.data.copy_(theirs[name])  # an earlier graph may still need it (DDP-086)


@dataclass
class Replica:
    """One rank: its model, its second model, its optimizers, and what it saw."""

    rank: int
    model: Wrapped
    optimizer: torch.optim.Optimizer
    later: list[torch.Tensor]
    other: Wrapped | None = None
    descent: torch.optim.Optimizer | None = None
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None
    look: Look = field(default_factory=Look)
    x: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # what it was fed last

    @property
    def models(self) -> list[Wrapped]:
        return [self.model, *([self.other] if self.other else [])]


def answers(program: Program) -> dict[int, dict[tuple[str, str], Any]]:
    """What every member must note, by its global rank."""
    with loaded(sources.source(program), None) as module:
        return Oracle(program, module).trained()


class Oracle:
    """Trains the replicas side by side."""

    def __init__(self, program: Program, module: Any) -> None:
        self.program, self.text = program, module
        self.synced_buffers = not program.has("buffer sync")
        self.source: Replica | None = None  # of the buffers, so far
        self.unsure: float = 0  # so many synchronised forwards more, until all ranks surely have the same buffers again
        self.replicas = [self._replica(rank) for rank in program.members]
        if not program.has("start"):
            for replica in self.replicas[1:]:
                for mine, first in zip(replica.models, self.replicas[0].models, strict=True):
                    mine.take_parameters(first)

    def _replica(self, rank: int) -> Replica:
        program, offset = self.program, 0 if self.program.has("start") else rank
        model = self.text.Model()
        self.text.fill(model, offset)
        ignored = frozenset(["ignored.weight", "ignored.bias"] if program.has("ignored") else [])
        wrapped = Wrapped(self._cast(model), ignored)
        if program["use"] == "without gradient":
            wrapped.trained = [name for name in wrapped.trained if not name.startswith("extra.")]
        if program.has("gradient dtype"):
            self.text.keep_wider([getattr(model, name.split(".")[1]) for name in sources.kept_wider(program)])
        replica = Replica(rank, wrapped, *self._optimizer(wrapped, program.has("param groups")))
        self._schedule(replica)
        if program.has("second model"):
            second = nn.Linear(4, 4)
            self.text.fill(second, offset)
            replica.other = Wrapped(self._cast(second))
            replica.descent = torch.optim.SGD(second.parameters(), lr=sources.LR)
        return replica

    def _cast(self, model: nn.Module) -> nn.Module:
        dtype = {"double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16}.get(self.program["types"])
        return model if dtype is None else model.to(dtype)

    def _optimizer(self, model: Wrapped, in_two: bool) -> tuple[torch.optim.Optimizer, list[torch.Tensor]]:
        kind, settings = sources.SETTINGS[self.program["optimizer"]]
        parameters: list[torch.Tensor] = [p for p in model.module.parameters() if p.requires_grad]
        now, later = (parameters[:-1], parameters[-1:]) if in_two else (parameters, [])
        scope = {"torch": torch, "Counting": getattr(self.text, "Counting", None), "now": now}
        made: torch.optim.Optimizer = eval(f"{kind}(now, {settings})", scope)
        return made, later

    def _step_anew(self, replica: Replica) -> None:
        replica.optimizer, _ = self._optimizer(replica.model, False)
        self._schedule(replica)

    def _schedule(self, replica: Replica) -> None:
        if self.program.has("rate"):
            replica.schedule = torch.optim.lr_scheduler.ExponentialLR(replica.optimizer, sources.RATE)

    # -- blocks

    def trained(self) -> dict[int, dict[tuple[str, str], Any]]:
        for block in range(self.program.blocks):
            if block:
                self._between()
            self._block(block)
        return {replica.rank: replica.look.noted for replica in self.replicas}

    def _block(self, block: int) -> None:
        program, schedule = self.program, self.program.schedule(block)
        throws = program.has("early end") and len(set(schedule)) > 1
        for i in range(min(schedule) if throws else max(schedule)):
            active = [replica for replica, count in zip(self.replicas, schedule, strict=True) if count > i]
            self._iteration(active, block, i)
        if throws:
            for replica, count in zip(self.replicas, schedule, strict=True):
                if count > min(schedule):  # it had cleared its gradients for one more iteration
                    self._clear(replica, block)
                replica.look.raised("block 1", RuntimeError())
        elif program.in_context(block):
            last = max(range(len(schedule)), key=lambda place: (schedule[place], place))
            self._final(self.replicas[last])
        for replica in self.replicas:
            self._look(replica, f"after block {block + 1}")
            sharded = program.has("sharded")
            if not program.has("overlapped") and (not sharded or replica is self.replicas[0]):
                replica.look.state(f"after block {block + 1}", replica.optimizer)

    def _final(self, source: Replica) -> None:
        """Everybody takes over the model of a rank that was among the last."""
        for replica in self.replicas:
            for mine, theirs in zip(replica.models, source.models, strict=True):
                mine.take_parameters(theirs)
                if self.synced_buffers and replica is not source:
                    mine.take_buffers(theirs)

    def _between(self) -> None:
        for replica in self.replicas:
            if self.program.has("copied"):
                for parameter in replica.model.parameters.values():
                    parameter.grad = None  # a pickled parameter has none
                self._step_anew(replica)
            if self.program.has("cast"):
                replica.model.module.zero_grad()
                replica.model.module.double()
                self._step_anew(replica)
            if self.program["frozen"] == "between blocks":
                replica.model.module.freezing.requires_grad_(False)  # type: ignore[union-attr, operator]
            if self.program.has("param groups") and not self.program.has("copied"):
                replica.optimizer.add_param_group({"params": replica.later, "lr": 2 * sources.LR})

    # -- one iteration

    def _iteration(self, active: list[Replica], block: int, i: int) -> None:
        program = self.program
        now, acting = 10 * block + i, i == program.act_at(block)
        context = program.in_context(block)
        for replica in active:
            self._clear(replica, block)
        if acting:
            self._evaluate(active, context, now)
            self._extra_forwards(active, context, now)
        outputs = self._forwards(active, context, now)
        losses = [self._loss(replica, each) for replica, each in zip(active, outputs, strict=True)]
        if acting and program["forwards"] == "two":
            seconds = [self.text.loss(each) for each in self._forwards(active, context, now, 2)]
            losses = [second + first for second, first in zip(seconds, losses, strict=True)]
        twice = acting and program["forwards"] == "two backwards"
        for each in losses:
            each.backward(retain_graph=twice)
        by = len(active) if context and program.has("divisor") else len(self.replicas)
        self._reduce([replica.model for replica in active], by)
        if program.has("overlapped"):
            self._step(active)
        if twice:
            for replica, each in zip(active, losses, strict=True):
                each.backward()
                replica.model.used.clear()
        self._train_second(active, now, by)
        for replica, seen in zip(active, outputs, strict=True):
            self._look(replica, f"iteration {now}", seen)
            self._clip(replica)
        if not program.has("overlapped"):
            self._step(active)
        for replica in active:
            if replica.schedule is not None:
                replica.schedule.step()
            if replica.descent is not None:
                replica.descent.step()

    def _clear(self, replica: Replica, block: int) -> None:
        if self.program["accumulation"] == "uncleared":
            return
        zeros = self.program["cleared"] == "to zeros"
        replica.optimizer.zero_grad(set_to_none=not zeros)
        if replica.descent is not None:
            replica.descent.zero_grad(set_to_none=not zeros)
        if block == 0:
            for parameter in replica.later:
                parameter.grad = torch.zeros_like(parameter.grad) if zeros and parameter.grad is not None else None

    def _evaluate(self, active: list[Replica], context: bool, now: int) -> None:
        how = self.program["evaluation"]
        if how == "alone in the wrapper" and self.replicas[-1] in active:
            with torch.no_grad():
                self.replicas[-1].look.outputs(f"evaluation {now}", self._forward(self.replicas[-1], now, 3))
        if how == "by all" and not context:
            self._sync_buffers(active, False)
        for replica in active if how == "by all" else self.replicas[-1:] if how == "by one" else ():
            if replica not in active:
                continue
            replica.model.module.eval()
            with torch.no_grad():
                outputs = self._forward(replica, now, 3)
            replica.model.module.train()
            replica.look.outputs(f"evaluation {now}", outputs)
            own_choice = self.unsure or (context and how == "by all" and self.synced_buffers)
            if own_choice and self.program["norm"] == "batch":
                self._leave_open(replica, lambda key: key[0] == f"evaluation {now}")

    def _extra_forwards(self, active: list[Replica], context: bool, now: int) -> None:
        if self.program["accumulation"] == "no_sync":
            for each in self._forwards(active, context, now, 1):
                self.text.loss(each).backward()
            self.unsure = 2 if self.synced_buffers else 0
        if self.program["forwards"] == "failing":
            unsure = self.unsure
            self._sync_buffers(active, context)
            self.unsure = unsure  # what a forward would make sure is so only when it has ended
        if self.program["forwards"] == "skipped backward":
            self._forwards(active, context, now, 2)

    def _loss(self, replica: Replica, outputs: Any) -> torch.Tensor:
        """What the first forward of an iteration is trained on."""
        loss: torch.Tensor = self.text.loss(outputs)
        if self.program["loss"] == "and weights":
            weights = [p for p in replica.model.module.parameters() if p.requires_grad]
            loss = loss + 12 * sum(p.float().sum() for p in weights)
        if self.program["loss"] == "and slopes":
            (slopes,) = torch.autograd.grad(loss, replica.x, create_graph=True, allow_unused=True)
            loss = loss if slopes is None else loss + slopes.sum()
        return loss

    def _clip(self, replica: Replica) -> None:
        parameters = replica.model.parameters.values()
        if self.program["clipped"] == "by norm":
            nn.utils.clip_grad_norm_(parameters, sources.CLIPPED_NORM)
        if self.program["clipped"] == "by value":
            nn.utils.clip_grad_value_(parameters, sources.CLIPPED_VALUE)

    def _forward(self, replica: Replica, now: int, again: int = 0) -> Any:
        batch = self.text.data(replica.rank, now, again)
        if not again and self.program["loss"] == "and slopes":
            replica.x = batch["x"].requires_grad_()
        module = replica.model.module
        call: Callable[..., Any] = partial(_lowered, module) if self.program.has("lowered") else module
        match self.program["call"]:
            case "keyword":
                return call(**batch)
            case "container":
                return call(batch)
            case _:
                return call(*batch.values())

    def _forwards(self, active: list[Replica], context: bool, now: int, again: int = 0) -> list[Any]:
        """A training forward of every active rank, with what happens to buffers before and after it."""
        self._sync_buffers(active, context)
        outputs = [self._forward(replica, now, again) for replica in active]
        if self.program["buffer hook"] == "after forward":
            for replica in self.replicas[1:]:
                replica.model.take_buffers(self.replicas[0].model)
        return outputs

    def _sync_buffers(self, active: list[Replica], context: bool) -> None:
        if not self.synced_buffers or self.program["buffer hook"] == "after forward":
            return
        source = active[-1] if context else active[0]
        if self.unsure and source is not self.source:  # whose own buffers are not known either
            self.unsure = math.inf
        self.unsure, self.source = max(0, self.unsure - 1), source
        for replica in self.replicas:
            if replica is not source:
                replica.model.take_buffers(source.model)

    @staticmethod
    def _reduce(models: list[Wrapped], by: int) -> None:
        """The mean of what there is, for every parameter that somebody used; joined ranks add nothing."""
        for name in models[0].trained:
            if not any(name in model.used for model in models):
                continue
            given = [p.grad for model in models if (p := model.parameters[name]).grad is not None]
            mean = sum(given[1:], start=given[0]) / by
            for model in models:
                model.parameters[name].grad = mean.clone()
        for model in models:
            model.used.clear()

    def _train_second(self, active: list[Replica], now: int, by: int) -> None:
        models = [replica.other for replica in active if replica.other is not None]
        for replica, model in zip(active, models, strict=False):
            (12 * model.module(self.text.data(replica.rank, now)["x"]).sum()).backward()
        if models:
            self._reduce(models, by)

    def _step(self, active: list[Replica]) -> None:
        for replica in active:
            replica.optimizer.step()
        if not self.program.has("sharded") and not self.program.has("overlapped"):
            return
        for replica in self.replicas:  # the shards of ranks that have joined are stepped with the live ranks' gradients
            if replica not in active:
                self._stepped_like(replica, active[-1])

    @staticmethod
    def _stepped_like(replica: Replica, live: Replica) -> None:
        kept = {name: parameter.grad for name, parameter in replica.model.parameters.items()}
        for name, parameter in replica.model.parameters.items():
            parameter.grad = copy.deepcopy(live.model.parameters[name].grad)
        for mine, theirs in zip(replica.optimizer.param_groups, live.optimizer.param_groups, strict=True):
            mine["lr"] = theirs["lr"]
        replica.optimizer.step()
        for name, parameter in replica.model.parameters.items():
            parameter.grad = kept[name]

    # -- what is compared

    def _look(self, replica: Replica, moment: str, outputs: Any = None) -> None:
        other = replica.other.module if replica.other is not None else None
        replica.look(moment, replica.model.module, outputs, other)
        if self.unsure:
            self._leave_open(replica, lambda key: key[0] == moment and key[1].startswith("buffer"))
        if self.program["overlap"] in ("reduce_scatter", "both"):
            self._leave_open(replica, lambda key: key[0] == moment and key[1].startswith("gradient"))

    @staticmethod
    def _leave_open(replica: Replica, which: Callable[[tuple[str, str]], bool]) -> None:
        keys: Iterable[tuple[str, str]] = [key for key in replica.look.noted if which(key)]
        for key in keys:
            replica.look.noted[key] = OPEN


def _lowered(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The module's forward with parameters and inputs in bfloat16; gradients arrive in full precision."""
    low = {name: p.to(torch.bfloat16) for name, p in module.named_parameters()}
    cast = partial(tree_map_only, torch.Tensor, lambda x: x.to(torch.bfloat16) if x.is_floating_point() else x)
    return torch.func.functional_call(module, low, cast(args), cast(kwargs))
