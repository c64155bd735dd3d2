"""A click predictor: large tables with sparse gradients beside a small dense network."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from . import Size

SIZES: dict[str, Size] = {
    "cpu": {"tables": 4, "entries": 5000, "width": 16, "hidden": 64, "rows": 64, "looks": 4},
    "gpu": {"tables": 16, "entries": 200_000, "width": 64, "hidden": 1024, "rows": 2048, "looks": 16},
}
RATES = {"sgd": 1.0, "adam": 0.01}


class Clicks(nn.Module):
    def __init__(self, tables: int, entries: int, width: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            [nn.EmbeddingBag(entries, width, mode="mean", sparse=True) for _ in range(tables)]
        )
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.02)  # type: ignore[arg-type]
        self.dense = nn.Sequential(nn.Linear(tables * width, hidden), nn.SiLU(), nn.Linear(hidden, 1))

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        rows, clicked = batch  # rows: table, sample, look
        found = torch.cat([table(row) for table, row in zip(self.tables, rows, strict=True)], dim=1)
        return functional.binary_cross_entropy_with_logits(self.dense(found).squeeze(1), clicked)


def model(size: Size) -> nn.Module:
    return Clicks(size["tables"], size["entries"], size["width"], size["hidden"])


def batch(size: Size, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.randint(size["entries"], (size["tables"], size["rows"], size["looks"]), generator=generator)
    return rows, torch.randint(2, (size["rows"],), generator=generator).float()
