"""The accelerators of this machine, and the versions of what drives them."""

from __future__ import annotations

import os
import shutil
from typing import Any


def facts() -> dict[str, Any]:
    """GPUs by name and memory, CUDA, NCCL, and where ``compute-sanitizer`` is; ``why`` says why there is no GPU."""
    import torch

    found: dict[str, Any] = {
        "torch": torch.__version__, "cuda": torch.version.cuda or "", "nccl": "", "gpus": [], "why": "",
        "sanitizer": _sanitizer(),
    }  # fmt: skip
    if torch.version.cuda is None:
        return {**found, "why": f"torch {torch.__version__} is built without CUDA"}
    if not torch.cuda.is_available():
        return {**found, "why": f"torch {torch.__version__} finds no CUDA device (no driver, or none is visible)"}
    found["gpus"] = [_gpu(number) for number in range(torch.cuda.device_count())]
    if torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def _gpu(number: int) -> dict[str, Any]:
    import torch

    about = torch.cuda.get_device_properties(number)
    return {"name": about.name, "memory_mib": about.total_memory // 2**20, "capability": f"{about.major}.{about.minor}"}


def _sanitizer() -> str:
    """Where NVIDIA's tool lies: on the path, or with a CUDA toolkit."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=f"{home}/bin") or ""
