"""What the checks of ZeroRedundancyOptimizer share: optimizers, given gradients, and the ordinary optimizer as a twin.

The twin is one process's answer: an ordinary ``torch.optim`` optimizer over copies of the parameters, stepped with the
same gradients on the same device. Its arithmetic is elementwise, so equality is bitwise for every optimizer here.
"""

from __future__ import annotations

import copy
import importlib
import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import models, oracle
from .ranks import RankContext
from .ranks.backends import load
from .subjects import Unsupported


class Drift(torch.optim.Optimizer):
    """A user's optimizer: its states hold more than tensors, it counts in its groups, takes a keyword, can be found."""

    made: list[weakref.ref[Drift]] = []  # every one that this process has built

    def __init__(self, params: Any, lr: float = 0.25, fade: float = 1.0) -> None:
        super().__init__(params, {"lr": lr, "fade": fade, "count": 0})
        Drift.made.append(weakref.ref(self))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, scale: float = 1.0) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["count"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    total = self.state[parameter].setdefault("total", torch.zeros_like(parameter))
                    total.add_(parameter.grad, alpha=scale * group["count"])
                    self.state[parameter].setdefault("scales", []).append(scale)
                    self.state[parameter]["steps"] = len(self.state[parameter]["scales"])
                    parameter.sub_(total, alpha=group["lr"])
            group["lr"] *= group["fade"]
        return ("stepped", loss, scale)


OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, float]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.125}),
    "SGD with momentum and decay": (torch.optim.SGD, {"lr": 0.125, "momentum": 0.5, "weight_decay": 0.25}),
    "Adam": (torch.optim.Adam, {"lr": 0.1}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1}),
    "ASGD": (torch.optim.ASGD, {"lr": 0.125}),
    "a user's own": (Drift, {"lr": 0.0625}),
}
WITHOUT_FUNCTIONAL = ("ASGD", "a user's own")  # torch has no functional counterpart of these
FUNCTIONAL = tuple(name for name in OPTIMIZERS if name not in WITHOUT_FUNCTIONAL)


def sharded(ctx: RankContext, parameters: Any, name: str = "SGD", **options: Any) -> Any:
    """The subject's ZeroRedundancyOptimizer over one of ``OPTIMIZERS``; ``options`` go before its settings."""
    kind, settings = OPTIMIZERS[name]
    return ctx.subject.ZeroRedundancyOptimizer(parameters, kind, **{**settings, **options})


# -- parameters and the gradients that they are given


def some_parameters(ctx: RankContext, count: int = 5) -> list[nn.Parameter]:
    """Parameters of several sizes and ranks of tensor, with small integer values."""
    shapes = [(3, 4), (5,), (2, 2, 3), (1,), (6, 2), (4, 4)][:count]
    return [nn.Parameter(models.integers(*shape, seed=place).to(ctx.device)) for place, shape in enumerate(shapes)]


def give(parameters: Iterable[torch.Tensor], iteration: int, sparsely: bool = False) -> None:
    """Give every trainable parameter the gradient of this iteration, on every rank the same.

    With ``sparsely`` now and then one has none.
    """
    for place, parameter in enumerate(parameters):
        absent = not parameter.requires_grad or (sparsely and (place + iteration) % 3 == 1)
        values = models.integers(*parameter.shape, seed=100 + 50 * iteration + place)
        parameter.grad = None if absent else values.to(parameter.device)


def in_two_groups(parameters: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
    """Every second parameter in a group of its own, with its own learning rate."""
    return [{"params": list(parameters[::2])}, {"params": list(parameters[1::2]), "lr": 0.03125}]


class Twin:
    """The ordinary optimizer over copies of ``parameters``; ``grouped`` arranges them, as for the sharded one."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        name: str = "SGD",
        grouped: Callable[[Sequence[torch.Tensor]], Any] = list,
        **options: Any,
    ) -> None:
        kind, settings = OPTIMIZERS[name]
        self.parameters: list[torch.Tensor] = [copy.deepcopy(parameter) for parameter in parameters]
        self.optimizer = kind(grouped(self.parameters), **{**settings, **options})

    def gap(self, parameters: Sequence[torch.Tensor]) -> str | None:
        """Where ``parameters`` differ from ours in a single bit; None if nowhere."""
        return first_gap(parameters, self.parameters)


def first_gap(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> str | None:
    """The first of our parameters that is not bit by bit equal to its counterpart; None if there is none."""
    named = [{f"parameter {place}": p.detach() for place, p in enumerate(side)} for side in (ours, theirs)]
    return oracle.first_difference(*named)


def owners(zero: Any, parameters: Sequence[torch.Tensor], lr: float, group_rank: int) -> list[float]:
    """The group rank that updates each parameter, found out by a step of plain SGD with gradients unlike each other's.

    Every rank shows the gradient ``group_rank + 1``, and only the owner's has an effect. ``nan`` where the elements of
    one parameter have not moved alike. Changes the parameters.
    """
    before = [parameter.detach().clone() for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, float(group_rank + 1))
    zero.step()
    moved = [((old - new.detach()) / lr).unique().tolist() for old, new in zip(before, parameters, strict=True)]
    return [by[0] - 1 if len(by) == 1 else float("nan") for by in moved]


# -- trained by DDP

WHOLE = 840  # divisible by every number of ranks up to 8


def whole(rank: int, iteration: int) -> torch.Tensor:
    """Four rows of small multiples of 840, unlike for every rank and iteration: averages are exact for 1 to 8 ranks."""
    return WHOLE * models.integers(4, 4, seed=1000 * rank + iteration, low=1, high=4)


class Alone:
    """One process that trains ``models.Sum`` on every rank's data with an ordinary optimizer."""

    def __init__(self, ctx: RankContext, model: nn.Module, name: str, schedule: Sequence[int], **options: Any) -> None:
        self.divide_by_initial = options.pop("divide_by_initial", True)
        grouped = options.pop("grouped", list)
        kind, settings = OPTIMIZERS[name]
        self.model = copy.deepcopy(model)
        self.optimizer = kind(grouped(list(self.model.parameters())), **{**settings, **options})
        self.schedule = schedule
        self._device = ctx.device

    def step(self, iteration: int) -> None:
        """One iteration of everybody who still has data."""
        self.take(iteration)
        self.optimizer.step()

    def take(self, iteration: int) -> None:
        """The averaged gradients of one iteration, without a step."""
        active = oracle.active_ranks(self.schedule, iteration)
        divisor = len(self.schedule) if self.divide_by_initial else len(active)
        batches = [whole(rank, iteration).to(self._device) for rank in active]
        averages = oracle.averaged_gradients(self.model, batches, divisor)
        for name, parameter in self.model.named_parameters():
            parameter.grad = averages[name]

    def gap(self, model: nn.Module) -> str | None:
        return first_gap(list(model.parameters()), list(self.model.parameters()))


# -- stepped inside backward

WARM_UP = 3  # so many iterations at most may pass before an overlapping optimizer begins to update (HOOK-013)


def willing_group(ctx: RankContext, seconds: float = 60) -> Any:
    """A group of all ranks that overlap hooks accept, whose waits end after ``seconds``.

    torch's hooks refuse the backend that calls itself gloo, so there the group has the same backend by another name.
    """
    timeout = timedelta(seconds=seconds)
    if load(ctx.backend) != "gloo":
        return dist.new_group(timeout=timeout)
    if "gloo_renamed" not in dist.Backend.backend_list:
        dist.Backend.register_backend("gloo_renamed", _gloo, devices=dist.Backend.backend_capability["gloo"])
    return dist.new_group(backend="gloo_renamed", timeout=timeout)


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timeout)


class Overlapped:
    """``models.Sum`` under the subject's DDP, stepped inside backward by its ZeroRedundancyOptimizer.

    Followed by one process from the first iteration on in which a parameter moves; if that is not one of the first
    ``WARM_UP``, one process goes ahead.
    """

    def __init__(
        self,
        ctx: RankContext,
        name: str = "SGD",
        *,
        cap: float = 1e-4,
        kind: Any = None,
        layers: int = 4,
        grouped: Callable[[Sequence[torch.Tensor]], Any] = list,
        frozen: Sequence[torch.Tensor] = (),
    ) -> None:
        group = willing_group(ctx)
        self._rank, self._device = ctx.rank, ctx.device
        self.model = models.Sum(layers).to(ctx.device)
        self.alone = Alone(ctx, self.model, name, [99] * ctx.world, grouped=grouped)
        self.ddp = ctx.subject.DistributedDataParallel(self.model, process_group=group, bucket_cap_mb=cap)
        usual, settings = OPTIMIZERS[name]
        everything = [*self.model.parameters(), *frozen]
        self.zero = ctx.subject.ZeroRedundancyOptimizer(
            grouped(everything), kind or usual, process_group=group, overlap_with_ddp=True, **settings
        )
        reduce = ctx.subject.default_hooks.allreduce_hook
        self.ddp.register_comm_hook(None, ctx.subject.hook_with_zero_step(reduce, self.ddp, self.zero))
        self.updating = False  # whether the first update has been seen

    def backward(self, iteration: int) -> None:
        """Forward and backward of this rank's data, which is all there is to do."""
        self.ddp.zero_grad(set_to_none=True)
        self.ddp(whole(self._rank, iteration).to(self._device)).sum().backward()

    def train(self, iteration: int) -> str | None:
        """One iteration; where the model then differs from one process's, None if nowhere."""
        before = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.backward(iteration)
        moved = first_gap(list(self.model.parameters()), before) is not None
        self.updating = self.updating or moved or iteration >= WARM_UP
        if self.updating:
            self.alone.step(iteration)
        return self.alone.gap(self.model)

    def train_many(self, iterations: Iterable[int]) -> dict[int, str]:
        """Several iterations; what differed after which of them."""
        gaps = {iteration: self.train(iteration) for iteration in iterations}
        return {iteration: gap for iteration, gap in gaps.items() if gap is not None}


# -- ears, and what only some versions of torch have


def logged(act: Callable[[], Any]) -> list[str]:
    """Call ``act``; the text of every warning that was logged meanwhile, by whatever logger."""
    heard: list[str] = []
    usual = logging.getLogRecordFactory()

    def listen(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = usual(*args, **kwargs)
        if record.levelno >= logging.WARNING:
            heard.append(record.getMessage())
        return record

    logging.setLogRecordFactory(listen)
    try:
        act()
    finally:
        logging.setLogRecordFactory(usual)
    return heard


def functional_sgd() -> Any:
    """torch's functional SGD, a class that is no ``torch.optim.Optimizer``."""
    try:
        return importlib.import_module("torch.distributed.optim.functional_sgd")._FunctionalSGD
    except (ImportError, AttributeError) as error:
        raise Unsupported(f"this torch has no functional SGD: {error}") from error
