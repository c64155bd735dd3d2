"""Which backend and device a world of a given size gets here."""

from __future__ import annotations

from collections.abc import Callable

from conformance.bad_input import BadInput

from .axes import MOST_RANKS, nearest
from .planning import Place

KNOWN = ("auto", "gloo", "nccl")


def place_of(backend: str, world: int) -> Callable[[int], Place]:
    """Where each world up to ``world`` is measured. auto: on GPUs while there is one per rank, else on the CPU.

    ``BadInput`` where that many ranks cannot have the backend that was asked for.
    """
    if backend not in KNOWN:
        raise BadInput(f"unknown backend {backend!r}; {nearest(backend, KNOWN)}")
    if world > MOST_RANKS:
        raise BadInput(f"WORLD={world} is more than the {MOST_RANKS} ranks that one machine is asked to hold")
    gpus = 0 if backend == "gloo" else _gpus()
    if backend == "nccl" and world > gpus:
        have = "are no GPUs" if not gpus else "is 1 GPU" if gpus == 1 else f"are {gpus} GPUs"
        raise BadInput(
            f"NCCL needs one GPU per rank: WORLD={world} was asked for and there {have} here; lower WORLD, or let "
            "BACKEND=auto measure the larger worlds on the CPU with Gloo"
        )
    return lambda size: Place("nccl", "cuda") if size <= gpus else Place("gloo", "cpu")


def place_of_job(backend: str, local_world: int) -> Callable[[int], Place]:
    """Where a launcher's ranks are measured, so many of them on this node."""
    if backend not in KNOWN:
        raise BadInput(f"unknown backend {backend!r}; {nearest(backend, KNOWN)}")
    gpus = 0 if backend == "gloo" else _gpus()
    if backend == "nccl" and local_world > gpus:
        raise BadInput(f"NCCL needs one GPU per rank: this node has {local_world} ranks and {gpus} GPUs")
    place = Place("nccl", "cuda") if local_world <= gpus else Place("gloo", "cpu")
    return lambda _world: place


def _gpus() -> int:
    import torch
    import torch.distributed as dist

    return torch.cuda.device_count() if torch.cuda.is_available() and dist.is_nccl_available() else 0
