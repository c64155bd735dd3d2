"""What one process with a replica for each rank says of a program: the documented rules, and nothing of processes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from .loading import loaded
from .looking import tensors
from .program import Program
from .replica import Replica, Wrapped
from .rounding import unit
from .source import source
from .source_iteration import CLIPPED_NORM, CLIPPED_VALUE
from .source_model import kept_wider
from .source_optimizer import LR, RATE, SETTINGS

OPEN = "open"  # noted where the documents leave a value to the implementation


def answers(program: Program, shaken: int | None = None) -> dict[int, dict[tuple[str, str], Any]]:
    """What every member must note, by its global rank.

    If it is ``shaken``, every averaged gradient is moved by at most a unit of rounding, as drawn from this seed.
    """
    with loaded(source(program), None) as module:
        return Oracle(program, module, shaken).trained()


class Oracle:
    """Trains the replicas side by side."""

    def __init__(self, program: Program, module: Any, shaken: int | None = None) -> None:
        self.program, self.module = program, module
        self.shaking = None if shaken is None else torch.Generator().manual_seed(shaken)
        self.synced_buffers = not program.has("buffer sync")
        self.source: Replica | None = None  # of the buffers, so far
        self.counted = 0  # iterations of all ranks
        self.unsure: float = 0  # so many synchronised forwards more, until all ranks surely have the same buffers again
        self.replicas = [self._replica(rank) for rank in program.members]
        if not program.has("start"):
            for replica in self.replicas[1:]:
                for mine, first in zip(replica.models, self.replicas[0].models, strict=True):
                    mine.take_parameters(first)
        for replica in self.replicas:
            if program["frozen"] == "until the second block":
                replica.model.module.freezing.requires_grad_(False)  # type: ignore[union-attr, operator]
            if program.has("averaged"):
                replica.averaged = torch.optim.swa_utils.AveragedModel(replica.model.module, avg_fn=self.module.halfway)

    def _replica(self, rank: int) -> Replica:
        program, offset = self.program, 0 if self.program.has("start") else rank
        model = self.module.Model()
        self.module.fill(model, offset)
        ignored = frozenset(["ignored.weight", "ignored.bias"] if program.has("ignored") else [])
        wrapped = Wrapped(self._cast(model), ignored)
        if program["use"] == "without gradient":
            wrapped.trained = [name for name in wrapped.trained if not name.startswith("extra.")]
        if program.has("gradient dtype"):
            self.module.keep_wider([getattr(model, name.split(".")[1]) for name in kept_wider(program)])
        if program.has("parameter hooks"):
            self.module.hook_parameters(model)
        replica = Replica(rank, wrapped)
        self._step_anew(replica, in_two=program.has("param groups"))
        if program.has("second model"):
            second = nn.Linear(4, 4)
            self.module.fill(second, offset)
            replica.other = Wrapped(self._cast(second))
            replica.descent = torch.optim.SGD(second.parameters(), lr=LR)
        return replica

    def _cast(self, model: nn.Module) -> nn.Module:
        dtype = {"double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16}.get(self.program["types"])
        return model if dtype is None else model.to(dtype)

    def _step_anew(self, replica: Replica, *, in_two: bool = False) -> None:
        """Give a replica optimizers for the parameters that it has now."""
        parameters: list[torch.Tensor] = [p for p in replica.model.module.parameters() if p.requires_grad]
        if in_two:
            parameters, replica.later = parameters[:-1], parameters[-1:]
        if self.program.has("beside"):
            parameters, rest = parameters[::2], parameters[1::2]
            replica.further = torch.optim.SGD(rest, lr=LR)
        kind, settings = SETTINGS[self.program["optimizer"]]
        scope = {"torch": torch, "Counting": getattr(self.module, "Counting", None), "parameters": parameters}
        replica.optimizer = eval(f"{kind}(parameters, {settings})", scope)
        if self.program.has("step hooks"):
            self.module.hook_steps(replica.optimizer, replica.calls)
        if self.program.has("rate"):
            replica.schedule = torch.optim.lr_scheduler.ExponentialLR(replica.optimizer, RATE)

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
                    self._clear(replica, block, min(schedule))
                replica.look.raised("block 1", RuntimeError())
        elif program.in_context(block):
            last = max(range(len(schedule)), key=lambda place: (schedule[place], place))
            self._final(self.replicas[last])
        for replica in self.replicas:
            self._look(replica, f"after block {block + 1}")
            if replica.averaged is not None:
                replica.look.weights(f"after block {block + 1}", "averaged ", replica.averaged.module)
            if program.has("joinable"):
                replica.look.number(f"after block {block + 1}", "counted", self.counted)
            if program.has("step hooks"):
                replica.look.number(f"after block {block + 1}", "calls of hooks", len(replica.calls))
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
            if self.program["frozen"] in ("between blocks", "until the second block"):
                thawed = self.program["frozen"] != "between blocks"
                replica.model.module.freezing.requires_grad_(thawed)  # type: ignore[union-attr, operator]
            if self.program.has("param groups") and not self.program.has("copied"):
                replica.optimizer.add_param_group({"params": replica.later, "lr": 2 * LR})

    # -- one iteration

    def _iteration(self, active: list[Replica], block: int, i: int) -> None:
        program = self.program
        self.counted += len(active)
        now, acting = 10 * block + i, i == program.act_at(block)
        context = program.in_context(block)
        alone = program["accumulation"] == "every second" and i % 2 == 0  # without synchronisation, and no step
        for replica in active:
            self._clear(replica, block, i)
        if acting:
            self._evaluate(active, context, now)
            self._extra_forwards(active, context, now)
        outputs = self._forwards(active, context, now)
        losses = [self._loss(replica, each) for replica, each in zip(active, outputs, strict=True)]
        if acting and program["forwards"] == "two":
            seconds = [self.module.loss(each) for each in self._forwards(active, context, now, 2)]
            losses = [second + first for second, first in zip(seconds, losses, strict=True)]
        if program["second model"] == "behind":
            losses = [
                loss + self._through_second(replica, seen)
                for replica, loss, seen in zip(active, losses, outputs, strict=True)
            ]
        twice = acting and program["forwards"] == "two backwards"
        for each in losses:
            each.backward(retain_graph=twice)
        by = len(active) if context and program.has("divisor") else len(self.replicas)
        if alone:
            self.unsure = max(self.unsure, 2) if self.synced_buffers else 0
        else:
            self._reduce([replica.model for replica in active], by)
            self._step_in_backward(active)
        if twice:
            for replica, each in zip(active, losses, strict=True):
                each.backward()
                replica.model.used.clear()
        self._train_second(active, now, by)
        for replica, seen in zip(active, outputs, strict=True):
            self._look(replica, f"iteration {now}", seen)
        if not alone:
            self._end(active)

    def _end(self, active: list[Replica]) -> None:
        """What follows the backward of an iteration."""
        for replica in active:
            self._change(replica)
        if not self.program.has("overlapped"):
            self._step(active)
        for replica in active:
            for each in (replica.further, replica.schedule, replica.descent):
                if each is not None:
                    each.step()
            if replica.averaged is not None:
                replica.averaged.update_parameters(replica.model.module)

    def _clear(self, replica: Replica, block: int, i: int) -> None:
        how = self.program["accumulation"]
        if how == "uncleared" or (how == "every second" and i % 2):
            return
        zeros = self.program["cleared"] in ("to zeros", "in part")
        for optimizer in (replica.optimizer, replica.further, replica.descent):
            if optimizer is not None:
                optimizer.zero_grad(set_to_none=not zeros)
        if block == 0:
            for parameter in replica.later:
                parameter.grad = torch.zeros_like(parameter.grad) if zeros and parameter.grad is not None else None
        if self.program["cleared"] == "in part":
            for parameter in [*replica.model.module.parameters()][::2]:
                parameter.grad = None

    def _evaluate(self, active: list[Replica], context: bool, now: int) -> None:
        how = self.program["evaluation"]
        how = "by all" if how == "in inference mode" else how
        if how == "alone in the wrapper" and self.replicas[-1] in active:
            with torch.no_grad():
                self.replicas[-1].look.outputs(f"evaluation {now}", self._forward(self.replicas[-1], now, 3))
        if how == "by all" and not context and not self.unsure:
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
            if own_choice and (self.program["norm"] == "batch" or self.program["further layer"] == "spectral norm"):
                self._leave_open(replica, lambda key: key[0] == f"evaluation {now}")

    def _extra_forwards(self, active: list[Replica], context: bool, now: int) -> None:
        if self.program["accumulation"] == "no_sync":
            for each in self._forwards(active, context, now, 1):
                self.module.loss(each).backward()
            self.unsure = max(self.unsure, 2) if self.synced_buffers else 0
        if self.program["forwards"] == "failing":
            unsure = self.unsure
            self._sync_buffers(active, context)
            self.unsure = unsure  # what a forward would make sure is so only when it has ended
        if self.program["forwards"] == "skipped backward":
            self._forwards(active, context, now, 2)

    def _loss(self, replica: Replica, outputs: Any) -> torch.Tensor:
        """What the first forward of an iteration is trained on."""
        loss: torch.Tensor = self.module.loss(outputs)
        if self.program["loss"] == "and weights":
            weights = [p for p in replica.model.module.parameters() if p.requires_grad]
            loss = loss + 12 * sum(p.float().sum() for p in weights)
        if self.program["loss"] == "and slopes":
            (slopes,) = torch.autograd.grad(loss, replica.x, create_graph=True, allow_unused=True)
            loss = loss if slopes is None else loss + slopes.sum()
        return loss

    @staticmethod
    def _through_second(replica: Replica, outputs: Any) -> torch.Tensor:
        assert replica.other is not None
        loss: torch.Tensor = (12 * replica.other.module(next(tensors(outputs)))).sum()
        return loss

    def _change(self, replica: Replica) -> None:
        parameters = replica.model.parameters.values()
        for place, parameter in enumerate(parameters):
            match self.program["reworked"]:
                case "in place" | "replaced" if parameter.grad is not None:
                    parameter.grad = parameter.grad / 2
                case "dropped in part" if place % 2 == 0:
                    parameter.grad = None
        if self.program["clipped"] == "by norm":
            nn.utils.clip_grad_norm_(parameters, CLIPPED_NORM)
        if self.program["clipped"] == "by value" and any(each.grad is not None for each in parameters):
            nn.utils.clip_grad_value_(parameters, CLIPPED_VALUE)

    def _forward(self, replica: Replica, now: int, again: int = 0) -> Any:
        batch = self.module.data(replica.rank, now, again)
        if not again and self.program["loss"] == "and slopes":
            replica.x = batch["x"].requires_grad_()
        module = replica.model.module
        call: Callable[..., Any] = partial(_lowered, module) if self.program.has("lowered") else module
        if self.program.has("autocast"):
            call = partial(self.module.autocasting, module)
        if not again and self.program["checkpoint"] == "the whole model":
            call = partial(checkpoint, call, use_reentrant=False)
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

    def _reduce(self, models: list[Wrapped], by: int) -> None:
        """The mean of what there is, for every parameter that somebody used; joined ranks add nothing."""
        for name in models[0].trained:
            if not any(name in model.used for model in models):
                continue
            given = [p.grad for model in models if (p := model.parameters[name]).grad is not None]
            mean = self._shaken(sum(given[1:], start=given[0]) / by)
            for model in models:
                model.parameters[name].grad = mean.clone()
        for model in models:
            model.used.clear()

    def _shaken(self, mean: torch.Tensor) -> torch.Tensor:
        """The mean, moved by at most a unit of rounding of its largest number if this run is to be shaken."""
        if self.shaking is None:
            return mean
        if mean.is_sparse:
            mean = mean.coalesce()
            values = self._shaken(mean.values())
            return torch.sparse_coo_tensor(mean.indices(), values, mean.shape, check_invariants=False)
        dtype = torch.complex64 if mean.is_complex() else torch.float64
        drawn = torch.rand(mean.shape, dtype=dtype, generator=self.shaking)
        by = (2 * drawn - (1 + 1j if mean.is_complex() else 1)) * unit(mean, self.program)
        return (mean + by).to(mean.dtype)

    def _step_in_backward(self, active: list[Replica]) -> None:
        if self.program.has("overlapped"):
            self._step(active)
        if self.program.has("attached"):
            for replica in active:
                attached = list(replica.model.module.linear0.parameters())  # type: ignore[union-attr, operator]
                torch.optim.SGD(attached, lr=LR).step()
                for parameter in attached:
                    parameter.grad = None

    def _train_second(self, active: list[Replica], now: int, by: int) -> None:
        models = [replica.other for replica in active if replica.other is not None]
        for replica, model in zip(active, models, strict=False):
            if self.program["second model"] == "beside":
                (12 * model.module(self.module.data(replica.rank, now)["x"]).sum()).backward()
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
    cast = partial(tree_map_only, torch.Tensor, lambda x: x.to(torch.bfloat16) if x.is_floating_point() else x)
    return torch.func.functional_call(module, cast(dict(module.named_parameters())), cast(args), cast(kwargs))
