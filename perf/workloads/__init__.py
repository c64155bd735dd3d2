"""The training that is measured: small real models, sized for a 2-core box and for a GPU, with inputs made by seed.

All are smooth (SiLU, GELU, Tanh; no ReLU, no max-pooling), so that rounding stays rounding. At a ReLU's kink it decides
whether a unit takes part at all: one input in a few million lies that close, and a convnet has more in a turn.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .profiles import PROFILES, profile

if TYPE_CHECKING:
    import torch

#: What each workload is, without importing it. ``about_ms``: an iteration of one rank on one core, for estimates only.
KNOWN: dict[str, str] = {
    "tiny": "400 parameters of 64 elements and next to no arithmetic: what a parameter costs the host",
    "mlp": "a multilayer perceptron: few large parameters",
    "convnet": "a ResNet-style convolutional network with BatchNorm: buffers, and parameters of all sizes",
    "transformer": "a GPT-style language model",
    "embedding": "embedding tables with sparse gradients beside a small dense network",
    "light": "a few small layers: so short that what a library adds is seen well",
    "normed": "the same with BatchNorm",
    "paced": "waits where an accelerator would compute, with real gradients: ResNet-50, BERT-base and others as sizes",
}
ABOUT_MS = {
    "tiny": 5.0, "mlp": 4.0, "convnet": 25.0, "transformer": 25.0, "embedding": 4.0, "light": 2.0, "normed": 3.0,
    "paced": 10.0,  # besides its waits
}  # fmt: skip
SPARSE = frozenset({"embedding"})  # sparse gradients: plain SGD only, and nothing that shards
SIZES = ("cpu", "gpu")
COUNTS = ("25", "50", "100", "200", "400", "800", "1600")  # sizes that only tiny has: so many parameters

Size = Mapping[str, Any]


@dataclass(frozen=True)
class Workload:
    """One workload in one size: the same weights and inputs wherever and whenever they are asked for."""

    name: str
    size: Size
    room: Any  # the module that holds ``model``, ``batch`` and ``RATES``

    def model(self, pace: float = 0.0) -> torch.nn.Module:
        """A new model with its initial weights. Its forward takes a batch and returns the loss.

        A paced one takes its profile's times at ``pace`` 1, and none by default.
        """
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(20)
            made: torch.nn.Module = self.room.model({**self.size, "pace": pace})
        return made

    def optimizer(self, name: str) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
        """The class and the settings of an optimizer for this workload."""
        import torch

        rate = self.room.RATES[name]
        # a large eps, or Adam would make whole steps of what is only rounding
        return (torch.optim.SGD, {"lr": rate}) if name == "sgd" else (torch.optim.Adam, {"lr": rate, "eps": 3e-3})

    def batch(self, rank: int, iteration: int) -> Any:
        """A rank's inputs of an iteration: a pair of tensors, on the CPU."""
        import torch

        generator = torch.Generator().manual_seed(1_000_003 * (rank + 1) + iteration)
        return self.room.batch(self.size, generator)


def load(name: str, size: str) -> Workload:
    """The workload of this name in this size."""
    room = import_module(f"{__name__}.{name}")
    return Workload(name, room.SIZES[size], room)


def fingerprint(name: str, size: str) -> str:
    """Changes when the workload does: a hash over its source, this file's, and the size's name."""
    here = Path(__file__)
    digest = hashlib.sha256(json.dumps([name, size]).encode())
    more = [here.with_name("profiles.py")] if name == "paced" else []
    for file in (here, here.with_name(f"{name}.py"), *more):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


__all__ = ["ABOUT_MS", "COUNTS", "KNOWN", "PROFILES", "SIZES", "SPARSE", "Size", "Workload", "fingerprint", "load",
           "profile"]  # fmt: skip
