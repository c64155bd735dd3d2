"""What the layers of real models hold and cost: parameters and operations, and what is left of both on this machine.

The accelerator behind the times: an NVIDIA A100 that reaches 40 % of its 312 TFLOP/s (its data sheet's dense bfloat16),
on a network of 100 Gbit/s. Backward is twice forward. Of each model a *scale* says what is left: parameters divided by
it, times multiplied by 100 over it. So compute and bytes are to each other on links of 1 Gbit/s what the real ones are
on 100 Gbit/s, and eight hosts fit on two cores. The axis ``pace`` makes compute longer or shorter than that.

Sources: He et al. 2015 (ResNet-50, with the stride in the 3 × 3 convolution); Devlin et al. 2018 (BERT-base); Radford
et al. 2019 (GPT-2 small); Naumov et al. 2019 and MLPerf (DLRM; one table stands for its 26, and its gradient is dense).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

FLOPS_PER_S = 0.4 * 312e12
RATES_APART = 100  # 100 Gbit/s there, 1 Gbit/s here
ROW = 64  # elements; parameters come in whole rows


@dataclass(frozen=True)
class Layer:
    """What DDP sees of a layer: its parameters become ready when its backward has taken its time."""

    numel: int
    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class Profile:
    """The layers of a model, in the order of forward, as they are here."""

    about: str
    layers: tuple[Layer, ...]

    @property
    def seconds(self) -> float:
        """The compute of an iteration."""
        return sum(layer.forward_s + layer.backward_s for layer in self.layers)

    @property
    def parameter_bytes(self) -> int:
        return sum(4 * layer.numel for layer in self.layers)


Real = Iterator[tuple[int, float]]  # of each layer: parameters, and operations of one rank's forward


def _scaled(about: str, scale: int, layers: Real) -> Profile:
    made = []
    for numel, operations in layers:
        forward_s = operations / FLOPS_PER_S * RATES_APART / scale
        made.append(Layer(max(1, round(numel / scale / ROW)) * ROW, forward_s, 2 * forward_s))
    return Profile(f"{about}, 1/{scale} of its parameters", tuple(made))


def _resnet50(images: int) -> Real:
    def convolution(inside: int, outside: int, kernel: int, side: int) -> tuple[int, float]:
        weights = inside * outside * kernel**2
        return weights + 2 * outside, 2.0 * weights * side**2 * images  # with its BatchNorm

    yield convolution(3, 64, 7, 112)
    inside, before = 64, 56
    for blocks, width, side in ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)):
        for block in range(blocks):
            yield convolution(inside, width, 1, before)
            yield convolution(width, width, 3, side)
            yield convolution(width, 4 * width, 1, side)
            if block == 0:
                yield convolution(inside, 4 * width, 1, side)
            inside, before = 4 * width, side
    yield 2048 * 1000 + 1000, 2.0 * 2048 * 1000 * images


def _blocks(count: int, width: int, length: int, sequences: int) -> Real:
    """Attention and the wide layer of each block of a transformer."""
    tokens = length * sequences
    for _ in range(count):
        yield 4 * (width**2 + width) + 2 * width, (2.0 * 4 * width**2 + 4 * length * width) * tokens
        yield 8 * width**2 + 5 * width + 2 * width, 2.0 * 8 * width**2 * tokens


def _bert(length: int, sequences: int) -> Real:
    yield (30522 + length + 2) * 768 + 2 * 768, 0.0
    yield from _blocks(12, 768, length, sequences)
    yield 768**2 + 768, 2.0 * 768**2 * sequences


def _gpt2(length: int, sequences: int) -> Real:
    yield (50257 + length) * 768, 0.0
    yield from _blocks(12, 768, length, sequences)
    yield 2 * 768, 2.0 * 50257 * 768 * length * sequences  # the last norm; the head shares the embedding's weights


def _dlrm(samples: int) -> Real:
    yield 500_000 * 128, 0.0
    for widths in ((13, 512, 256, 128), (479, 1024, 1024, 512, 256, 1)):
        for inside, outside in itertools.pairwise(widths):
            yield inside * outside + outside, 2.0 * inside * outside * samples


def _even() -> Profile:
    return Profile("8 layers of 1 MiB, 10 ms forward and 20 ms backward each", (Layer(1 << 18, 0.01, 0.02),) * 8)


_MADE: dict[str, Callable[[], Profile]] = {
    "even": _even,
    "resnet50": lambda: _scaled("ResNet-50, 64 images", 16, _resnet50(64)),
    "bert": lambda: _scaled("BERT-base, 32 sequences of 512", 64, _bert(512, 32)),
    "gpt2": lambda: _scaled("GPT-2 small, 16 sequences of 1024", 64, _gpt2(1024, 16)),
    "dlrm": lambda: _scaled("a recommendation model with a large table, 8192 samples", 64, _dlrm(8192)),
}
PROFILES = tuple(name for name in _MADE if name != "even")


def profile(size: str) -> Profile:
    """The profile of this name; ``cpu`` and ``gpu`` are the even one."""
    return _MADE[size if size in PROFILES else "even"]()
