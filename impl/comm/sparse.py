"""Summing sparse tensors over a team, on any backend, by gathering their indices and values."""

from __future__ import annotations

import torch

from .collectives import all_gather
from .pending import Watch
from .ranks import Team


def sum_sparse(team: Team, part: torch.Tensor, label: str, watch: Watch | None = None) -> torch.Tensor:
    """The coalesced sum of every rank's sparse ``part``: (rows, …) with one sparse dimension, same shape everywhere.

    Three collectives: the counts, then the indices and the values, padded to the longest. Blocks, because the lengths
    are needed on the host. Summed in rank order, so all ranks get the same bits.
    """
    part = part.coalesce()
    indices, values = part.indices(), part.values()
    count = torch.tensor([indices.shape[1]], dtype=torch.int64, device=part.device)
    counts = all_gather(team, count.new_empty(team.size), count, f"{label}: counts").wait(watch).tolist()
    longest = max(counts)
    if longest == 0:
        return part
    all_indices = _gather_rows(team, indices.t().contiguous(), longest, f"{label}: indices", watch)
    all_values = _gather_rows(team, values.contiguous(), longest, f"{label}: values", watch)
    kept = torch.cat([torch.arange(n, device=part.device) + r * longest for r, n in enumerate(counts)])
    total = torch.sparse_coo_tensor(all_indices[kept].t(), all_values[kept], part.shape)
    return total.coalesce()


def _gather_rows(team: Team, rows: torch.Tensor, longest: int, label: str, watch: Watch | None) -> torch.Tensor:
    padded = rows.new_zeros((longest, *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    whole = rows.new_empty((team.size * longest, *rows.shape[1:]))
    return all_gather(team, whole, padded, label).wait(watch)
