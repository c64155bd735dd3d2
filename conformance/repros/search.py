"""Runs scripts of reproductions, and finds the smallest schedule whose script shows the break."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..child import end_with_parent
from ..ranks.backends import LOOPBACK
from . import Case
from .script import schedule, write

LONGEST_S = 300  # for one script; its ranks have their own, much shorter deadline, but torch may load slowly


class ScriptFailed(RuntimeError):
    """A script ended in neither of its two ways; the text says how."""


@dataclass(frozen=True)
class Shown:
    """A script that has been run."""

    text: str
    output: str
    broken: bool


@dataclass(frozen=True)
class Found:
    """The smallest script that shows the break, or the last one that was tried."""

    shown: Shown
    inputs: tuple[int, ...] | None  # None: the case depends on no schedule
    without: tuple[tuple[int, ...], ...]  # smaller schedules that do not show it


def run(script: Path, python: Path | None = None) -> Shown:
    """Run a script as its reader would, with plain Python; whatever happens, none of its processes is left."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # nothing of ours
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [python or sys.executable, script.name], cwd=script.parent, env={**LOOPBACK, **environment}, text=True,
            stdout=subprocess.PIPE, stderr=errors, start_new_session=True, preexec_fn=end_with_parent,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired as error:
            raise ScriptFailed(f"{script.name} did not end within {LONGEST_S} s") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        errors.seek(0)
        verdict = output.splitlines()[-1].partition(" ")[0] if output.strip() else ""
        if (process.returncode, verdict) not in ((1, "BROKEN"), (0, "KEPT")):
            raise ScriptFailed(f"{script.name} ended with status {process.returncode}: {errors.read()[-2000:]}")
    return Shown(script.read_text(encoding="utf-8"), output, process.returncode == 1)


def smaller(inputs: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All schedules of as many ranks that come before this one: fewer inputs in all, then smaller numbers first.

    No rank gets fewer inputs than the rank that has fewest here: to have none at all, say, may be another fault.
    """
    for total in range(sum(inputs) + 1):
        for counts in itertools.product(range(min(inputs), total + 1), repeat=len(inputs)):
            if sum(counts) == total and (total < sum(inputs) or counts < inputs):
                yield counts


def smallest(
    case: Case, clause: str, say: Callable[[str], None] = lambda _: None, needs: Sequence[str] = (),
    python: Path | None = None,
) -> Found:  # fmt: skip
    """Try the schedules of a case from the smallest on, up to the one that the case names.

    ``needs`` are the releases that the case needs beside torch, ``python`` is an interpreter that has them.
    """
    known = schedule(case.path)
    without: list[tuple[int, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / f"{case.name}.py"
        for inputs in [None] if known is None else [*smaller(known), known]:
            script.write_text(write(case.path, clause, inputs, needs), encoding="utf-8")
            shown = run(script, python)
            if inputs is not None:
                say(f"{case.name}: inputs {inputs}: {'broken' if shown.broken else 'kept'}")
            if shown.broken or inputs == known:
                return Found(shown, inputs, tuple(without))
            without += [inputs] if inputs is not None else []
    raise AssertionError("a case has at least one script")
