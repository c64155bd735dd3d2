"""Who wrote a record: machine, versions, commit, the environment that matters, and the command."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from .gpus import gpus
from .schema import SCHEMA_VERSION

# Only variables that change what is measured: the rest of an environment is nobody's business and may hold secrets.
_PREFIXES = ("TORCH_", "NCCL_", "GLOO_", "CUDA_", "OMP_", "MKL_", "KMP_", "PYTORCH_", "JOINERY_", "TP_SOCKET_")
_NAMES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_NNODES", "SLURM_NTASKS", "PYTHONHASHSEED")


def identity(kind: str, command: list[str] | None = None, *, home: Path | None = None) -> dict[str, Any]:
    """The header of a record file of this kind. ``home`` is a folder of the repository whose commit is noted."""
    return {
        "schema": SCHEMA_VERSION,
        "of": kind,
        "time": now(),
        "machine": machine(),
        "versions": {"python": platform.python_version(), "torch": version("torch"), "numpy": version("numpy")},
        "commit": commit(home or Path.cwd()),
        "environment": environment(),
        "command": command if command is not None else list(sys.argv),
    }


def now() -> str:
    """The present moment in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def machine() -> dict[str, Any]:
    """Host, kernel, processor, cores, memory, GPUs with driver and NCCL, as far as the platform tells."""
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "kernel": platform.release(),
        "processor": _processor(),
        "cores": _cores(),
        "memory_mib": _memory_mib(),
        **gpus(),
    }


def version(package: str) -> str:
    """The installed version of a package, without importing it; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def commit(folder: Path) -> str:
    """The commit that ``folder`` stands at, with ``+`` if files were changed since; empty outside a repository."""
    head = _git(folder, "rev-parse", "HEAD")
    if not head:
        return ""
    return head + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")


def environment() -> dict[str, str]:
    """The variables that can change a result."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(_PREFIXES) or name in _NAMES}


def spoken(command: list[str]) -> str:
    """A command as one would type it."""
    return shlex.join(command)


def _git(folder: Path, *words: str) -> str:
    try:
        command = ["git", "-C", str(folder), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_mib() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    except (ValueError, OSError, AttributeError):
        return 0
