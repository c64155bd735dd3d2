"""Training with ZeroRedundancyOptimizer and by itself, with gradients that both are given: what the tests compare."""

from __future__ import annotations

import contextlib
import copy
import logging

import torch
from torch import nn

from conformance.fixtures.models import integers


class GroupCounting(torch.optim.Optimizer):
    """A user's optimizer that counts its steps per group and in itself, and moves by both counts."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "count": 0})
        self.calls = 0

    @torch.no_grad()
    def step(self):
        self.calls += 1
        for group in self.param_groups:
            group["count"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    held = self.state[parameter].setdefault("sum", torch.zeros_like(parameter))
                    held.add_(parameter.grad, alpha=group["count"])
                    parameter.sub_(held, alpha=group["lr"] * self.calls)


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.125}),
    "momentum": (torch.optim.SGD, {"lr": 0.125, "momentum": 0.5, "weight_decay": 0.25}),
    "adam": (torch.optim.Adam, {"lr": 0.1}),
    "adamw": (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1}),
    "counting": (GroupCounting, {"lr": 0.0625}),
}


def parameters(count=5):
    """Parameters of several sizes, one of them without order in memory."""
    shapes = [(3, 4), (5,), (2, 2, 3), (7,), (6, 2), (1,), (4, 4)][:count]
    made = [nn.Parameter(integers(*shape, seed=place)) for place, shape in enumerate(shapes)]
    made[0].data = made[0].data.t().contiguous().t()
    return made


def gradient(place, iteration, shape, unused=False):
    """The averaged gradient of one parameter in one iteration; None now and then if ``unused``."""
    if unused and (place + iteration) % 3 == 1:
        return None
    return integers(*shape, seed=1000 + 50 * iteration + place) / 4


def give_gradients(params, iteration, unused=False, clip=None):
    for place, parameter in enumerate(params):
        parameter.grad = gradient(place, iteration, parameter.shape, unused)
    if clip is not None:
        nn.utils.clip_grad_norm_(params, clip)


def groups_of(params, several):
    return [{"params": params[::2]}, {"params": params[1::2], "lr": 0.25}] if several else params


class Alone:
    """The oracle: one process, the ordinary optimizer."""

    def __init__(self, params, name, several=False, scheduled=False):
        kind, options = OPTIMIZERS[name]
        self.params = copy.deepcopy(params)
        self.optimizer = kind(groups_of(self.params, several), **options)
        self.scheduler = halving(self.optimizer) if scheduled else None

    def step(self, iteration, unused=False, clip=None):
        give_gradients(self.params, iteration, unused, clip)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()


def halving(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


def differences(params, alone):
    return [
        f"parameter {place}: gap {(mine - theirs).abs().max().item():g}"
        for place, (mine, theirs) in enumerate(zip(params, alone.params, strict=True))
        if not torch.equal(mine, theirs)
    ]


@contextlib.contextmanager
def logged():
    """The records of what impl.zero logs meanwhile."""
    records, handler = [], logging.Handler()
    handler.emit = records.append
    logging.getLogger("impl.zero").addHandler(handler)
    try:
        yield records
    finally:
        logging.getLogger("impl.zero").removeHandler(handler)


def what_is_logged(act):
    """The texts of what impl.zero logs meanwhile."""
    with logged() as records:
        act()
    return [record.getMessage() for record in records]
