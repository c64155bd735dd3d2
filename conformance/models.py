"""Small models whose arithmetic floats represent exactly, and the data that feeds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def scalar(weight: float = 1.0) -> nn.Linear:
    """Linear(1, 1) without bias: fed ``r + 1`` on rank r, its local gradient under a summed loss is ``r + 1``."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, weight)
    return model


def chain(layers: int = 4, width: int = 4) -> nn.Sequential:
    """A stack of square linear layers with small integer weights: several buckets under a tiny cap."""
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    for index, parameter in enumerate(model.parameters()):
        values = torch.arange(parameter.numel()).remainder(3).sub(1).add(index % 2)
        parameter.data.copy_(values.view_as(parameter).to(parameter.dtype))
    return model


def integers(*shape: int, seed: int = 0, low: int = -2, high: int = 3) -> torch.Tensor:
    """Reproducible small integers as floats, on the default device; drawn on the CPU, so equal on every device."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(low, high, shape, generator=generator, device="cpu").float()
    return drawn.to(torch.empty(0).device)


class Sum(nn.Module):
    """``layers`` linear layers side by side, their outputs added: no gradient depends on any weight.

    So every iteration's gradients are known from the data alone, and a tiny cap splits them over several buckets.
    """

    def __init__(self, layers: int = 4, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        for index, parameter in enumerate(self.parameters()):
            nn.init.constant_(parameter, float(index))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weighted = [(index + 1) * layer(x) for index, layer in enumerate(self.layers)]
        return torch.stack(weighted).sum(dim=0)


class SumBackwards(Sum):
    """Uses its layers from the last to the first, so gradients arrive in an order that nobody expects beforehand."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weighted = [(index + 1) * layer(x) for index, layer in reversed(list(enumerate(self.layers)))]
        return torch.stack(weighted).sum(dim=0)


class Branches(nn.Module):
    """Two scalar layers: ``a`` takes part in every forward, ``b`` only when it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.a = scalar()
        self.b = scalar()

    def forward(self, x: torch.Tensor, with_b: bool = False) -> torch.Tensor:
        return torch.as_tensor(self.a(x) + self.b(x) if with_b else self.a(x))


class Parts(nn.Module):
    """Square layers side by side, by name; each forward runs those in ``use`` and returns ``shape`` of their outputs.

    By default that is their sum, and no gradient depends on any weight. Which parts are in ``use`` may differ between
    ranks and change between iterations.
    """

    def __init__(self, names: str = "abc", width: int = 4) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Linear(width, width) for name in names})
        for index, parameter in enumerate(self.parameters()):
            nn.init.constant_(parameter, float(index))
        self.use = names
        self.shape: Callable[[dict[str, torch.Tensor]], Any] | None = None

    def forward(self, x: torch.Tensor) -> Any:
        outputs = {name: part(x) for name, part in self.parts.items() if name in self.use}
        return torch.stack(list(outputs.values())).sum(dim=0) if self.shape is None else self.shape(outputs)


class Counting(nn.Module):
    """A scalar layer beside a float buffer ``count``, which every forward first notes in ``seen``, then increases."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.a = scalar()
        self.step = step
        self.seen: list[float] = []
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(self.count.item())
        self.count += self.step
        return torch.as_tensor(self.a(x))


class ManyTypes(nn.Module):
    """Two parameters of each floating-point type; every local gradient is the input itself."""

    TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.ParameterList([nn.Parameter(torch.ones(3, dtype=kind)) for kind in self.TYPES * 2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        products = [(parameter * x.to(parameter.dtype)).sum().double() for parameter in self.each]
        return torch.stack(products)


class Looking(nn.Module):
    """Two sparse tables of six rows beside a dense layer; fed row numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 2, sparse=True)
        self.bag = nn.EmbeddingBag(6, 2, mode="sum", sparse=True)
        self.a = scalar()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        looked_up = self.table(rows).sum() + self.bag(rows.view(1, -1)).sum()
        return torch.as_tensor(12 * (looked_up + self.a(rows.float().view(-1, 1)).sum()))


def drawn(model: nn.Module, seed: int = 0) -> Any:
    """The model with parameters and buffers drawn by a generator of its own, in the range of torch's layers.

    The global one, which their constructors use, will not do: where the suite judges, several checks compute one
    process's answers at a time.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            bound = parameter.shape[-1] ** -0.5
            parameter.uniform_(-bound, bound, generator=generator)
        for buffer in model.buffers():
            buffer.normal_(generator=generator)
    return model


def divisible(rank: int, iteration: int, width: int = 4) -> torch.Tensor:
    """Twelve rows of small multiples of 12, different on every rank and in every iteration.

    A gradient that is linear in it, and one that counts its rows, can be divided by 1, 2, 3 or 4 ranks without
    rounding, so sums are exact in any order and equality is bitwise.
    """
    return 12 * integers(12, width, seed=1000 * rank + iteration)


def place(rank: int, _iteration: int) -> torch.Tensor:
    """``rank + 1``: the one-element batch with which ``scalar`` has the local gradient ``rank + 1``."""
    return torch.full((1, 1), float(rank + 1))


def divisible_scalar(rank: int, iteration: int) -> torch.Tensor:
    """A one-element batch, a positive multiple of 12 that is different on every rank and in every iteration."""
    return torch.full((1, 1), 12.0 * (1 + rank + 5 * iteration))


def three(rank: int, _iteration: int) -> torch.Tensor:
    """12, 24 and 36 times ``rank + 1``: for ``ManyTypes``, small enough for eight bits of mantissa."""
    return 12.0 * (rank + 1) * torch.arange(1.0, 4.0)


def rows(rank: int, iteration: int) -> torch.Tensor:
    """Two row numbers for ``Looking``: one of the rank's own, and one that all share."""
    return torch.tensor([rank, 4 + iteration % 2])


def constant(_rank: int, _iteration: int) -> torch.Tensor:
    """Twelve, everywhere and always: the local gradient of ``scalar`` is then 12 on every rank."""
    return torch.full((1, 1), 12.0)
