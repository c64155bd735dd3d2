"""The record once more as pytest-benchmark's JSON, written by pytest-benchmark itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RECORD = "JOINERY_PERF_RECORD"  # an environment variable: the record that test_bench.py replays
_LIMIT_S = 120


def beside(record: Path) -> Path | None:
    """Write the JSON beside a record that has times; None, and a word on standard error, if that cannot be done."""
    record = record.resolve()  # pytest runs in another folder
    path = record.with_name(record.name.removesuffix(".jsonl") + ".benchmark.json")
    tests = Path(__file__).parents[1] / "tests" / "test_bench.py"
    command = [
        sys.executable, "-m", "pytest", str(tests), "--benchmark-only", f"--benchmark-json={path}", "-q", "-p",
        "no:cacheprovider", "-o", "addopts=", "--benchmark-quiet", "--rootdir", str(tests.parent.parent),
    ]  # fmt: skip
    environment = {**os.environ, RECORD: str(record)}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):  # of a test that runs us
        environment.pop(name, None)
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, cwd=tests.parent.parent
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"perf: pytest-benchmark's JSON was not written: {error}", file=sys.stderr)
        return None
    if done.returncode == 0 and path.exists():
        return path
    said = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    print(f"perf: pytest-benchmark's JSON was not written (status {done.returncode}):\n{said}", file=sys.stderr)
    return None
