"""What can be said of the graphics processors and their libraries without loading torch, and without a GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

_QUERY = ("name", "memory.total", "driver_version")
_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
_DRIVER = Path("/proc/driver/nvidia/version")


@cache
def gpus() -> dict[str, Any]:
    """``gpus`` (a name and MiB of memory for each), ``driver`` and ``nccl``; empty where there are none."""
    rows = _asked_driver()
    driver = rows[0][2] if rows else _driver_on_file()
    return {"gpus": [{"name": name, "memory": memory} for name, memory, _ in rows], "driver": driver, "nccl": nccl()}


def nccl() -> str:
    """The version of NCCL: of the package that torch brings along, or of the torch that is loaded already."""
    for name in _NCCL:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    torch = sys.modules.get("torch")  # never loaded for this: it takes seconds
    if torch is None or getattr(torch.version, "cuda", None) is None:
        return ""
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError):
        return ""


def _asked_driver() -> list[list[str]]:
    """Name, memory and driver of each GPU, as the driver's own tool tells; nothing if it does not answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == len(_QUERY)]


def _driver_on_file() -> str:
    """The driver's version where the kernel module is loaded but its tool is not installed (containers)."""
    try:
        words = _DRIVER.read_text(encoding="utf-8").split("\n")[0].split()
    except (OSError, UnicodeDecodeError):
        return ""
    return next((word for word in words if word[0].isdigit() and "." in word), "")
