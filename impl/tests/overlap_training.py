"""Training with the overlap hooks and by itself: models, data and the one-process rule that the tests compare."""

from __future__ import annotations

import copy

import torch
from torch import nn

from conformance.fixtures.models import integers

from .zero_training import OPTIMIZERS, halving


class Net(nn.Module):
    """Layers of unequal size, registered out of their order of use; ``extra`` is used only when asked."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 2)
        self.first = nn.Linear(3, 4)
        self.extra = nn.Linear(4, 4)
        self.second = nn.Linear(4, 6)
        self.third = nn.Linear(6, 6, bias=False)
        with torch.no_grad():
            for place, parameter in enumerate(self.parameters()):
                parameter.copy_(integers(*parameter.shape, seed=place) / 4)

    def forward(self, batch, extra=False):
        hidden = self.first(batch)
        if extra:
            hidden = self.extra(hidden)
        return self.last(torch.relu(self.third(self.second(hidden))))


def batch(rank, iteration):
    return integers(2 + rank, 3, seed=100 * rank + iteration)


def loss_of(output):
    return (output * output).sum() / 8


def uses_extra(options, rank, iteration):
    """Every third iteration nobody uses the extra layer; in the others some rank does. With ``given`` nobody ever."""
    if options.get("given"):
        return False
    if not options.get("unused"):
        return True
    return (iteration % 3 != 1) and (rank + iteration) % 2 == 0


def groups_of(model, options):
    params = list(model.parameters())
    return [{"params": params[::2]}, {"params": params[1::2], "lr": 0.0625}] if options.get("several") else params


class Alone:
    """One process: sums every active rank's gradient, divides, steps the ordinary optimizer."""

    def __init__(self, model, name, options):
        self.model = copy.deepcopy(model)
        self.options = options
        self.seen = set()  # parameters that have had a gradient
        kind, settings = OPTIMIZERS[name]
        self.optimizer = kind(groups_of(self.model, options), **settings)
        self.scheduler = halving(self.optimizer) if options.get("scheduled") else None

    def step(self, schedule, iteration, micro=1):
        active = [rank for rank, count in enumerate(schedule) if count > iteration]
        divisor = len(schedule) if self.options.get("divide_by_initial", True) else len(active)
        total = {}
        for rank in active:
            self.model.zero_grad()  # each rank's part is taken by itself
            for part in range(micro):
                number = iteration * micro + part
                loss_of(self.model(batch(rank, number), uses_extra(self.options, rank, iteration))).backward()
            for name, parameter in self.model.named_parameters():
                if parameter.grad is not None:
                    total[name] = total[name] + parameter.grad if name in total else parameter.grad.clone()
        for name, parameter in self.model.named_parameters():
            kept = torch.zeros_like(parameter) if self.options.get("zeros") and name in self.seen else None
            parameter.grad = total[name] / divisor if name in total else kept
        give_gradients(self.model, self.options, iteration)
        self.seen |= set(total)
        if self.options.get("clip"):
            nn.utils.clip_grad_norm_(self.model.parameters(), self.options["clip"])
        self.optimizer.step()
        if self.scheduler:
            self.scheduler.step()


def differences(model, alone, tolerance=1e-5):
    """Parameters that differ from one process by more than rounding."""
    wrong = []
    for (name, mine), theirs in zip(model.named_parameters(), alone.model.parameters(), strict=True):
        gap = (mine - theirs).abs().max().item()
        if not gap <= tolerance * max(1.0, theirs.abs().max().item()):
            wrong.append(f"{name}: gap {gap:g}")
    return wrong


def clear_gradients(ddp, options, iteration=0):
    """As users do: drop them, or (with ``zeros``) keep them as zeros, which momentum and decay notice."""
    ddp.zero_grad(set_to_none=not options.get("zeros"))
    give_gradients(ddp.module, options, iteration)


def give_gradients(model, options, iteration):
    """With ``given``: what the user gives the extra layer in every iteration, since nobody uses it."""
    if options.get("given"):
        for parameter in model.extra.parameters():
            parameter.grad = torch.full_like(parameter, 1.0 + iteration)


def build(ctx, model, name, options, group=None):
    """DDP and ZeRO over the model with the hook that ``options`` ask for."""
    subject = ctx.subject
    kind, settings = OPTIMIZERS[name]
    ddp = subject.DistributedDataParallel(
        model, process_group=group, bucket_cap_mb=options.get("cap", 0.0001),
        find_unused_parameters=bool(options.get("unused")) and not options.get("static"),
        static_graph=bool(options.get("static")), gradient_as_bucket_view=bool(options.get("views")),
    )
    zero = subject.ZeroRedundancyOptimizer(
        groups_of(model, options), kind, process_group=group, overlap_with_ddp=True, **settings
    )
    interleaved = options.get("interleaved", False)
    factory = subject.hook_with_zero_step_interleaved if interleaved else subject.hook_with_zero_step
    more = {}
    if options.get("clip"):
        more["max_norm"] = options["clip"]
    if options.get("reduce_scatter"):
        more["reduce_scatter"] = True
    hook = options.get("hook", subject.default_hooks.allreduce_hook)
    ddp.register_comm_hook(None, factory(hook, ddp, zero, options.get("shard", False), **more))
    return ddp, zero
