"""Runs one command with a deadline; nothing that it started outlives it, whatever happens to us."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

_GRACE_S = 30.0  # for a command to write its record after it was asked to end


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int  # its exit status; negative: the signal that ended it
    seconds: float
    late: bool  # it was stopped at its deadline


def run(command: Sequence[str], log: Path, limit_s: float, folder: Path | None = None) -> Ended:
    """Run a command to its end or its deadline, in ``folder`` (by default here), with its output in a file.

    Ctrl-C ends it before it ends us.
    """
    start = time.monotonic()
    with log.open("ab") as output:
        # a session of its own, so that it and all its children can be reached by one signal
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=_die_with_parent, cwd=folder,
        )  # fmt: skip
        late = False
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _stop(process)
    return Ended(process.returncode, time.monotonic() - start, late)


def _die_with_parent() -> None:
    """Even a kill that cannot be caught must not leave the command running: the kernel tells it of our end."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the command if it has not ended: politely first, then for certain, and its whole session with it."""
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody of that session is left
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
