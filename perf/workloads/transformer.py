"""A language model in the manner of GPT: attention, a wide layer and a norm in each block."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from . import Size

SIZES: dict[str, Size] = {
    "cpu": {"blocks": 4, "width": 128, "heads": 4, "tokens": 512, "length": 32, "rows": 4},
    "gpu": {"blocks": 12, "width": 1024, "heads": 16, "tokens": 32768, "length": 512, "rows": 2},
}
RATES = {"sgd": 0.5, "adam": 0.01}


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_wide = nn.LayerNorm(width), nn.LayerNorm(width)
        # no bias: that of the keys has no effect, and so a gradient that is nothing but rounding
        self.looks, self.joins = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.looks(self.before_attention(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.joins(seen.transpose(1, 2).reshape(rows, length, width))
        wide: torch.Tensor = self.wide(self.before_wide(x))
        return x + wide


class Language(nn.Module):
    def __init__(self, blocks: int, width: int, heads: int, tokens: int, length: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        tokens, following = batch
        logits = self.head(self.norm(self.blocks(self.token(tokens) + self.place.weight)))
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def model(size: Size) -> nn.Module:
    return Language(size["blocks"], size["width"], size["heads"], size["tokens"], size["length"])


def batch(size: Size, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    text = torch.randint(size["tokens"], (size["rows"], size["length"] + 1), generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()
