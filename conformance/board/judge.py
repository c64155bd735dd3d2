"""Judges a column in its environment, or keeps the answer that there is when nothing that decides it has changed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from reports.records import RecordError
from reports.records.lines import loads

from ..child import end_with_parent
from ..pages.record_book import RECORD, Source, read_source
from ..subjects import module_of
from .columns import Column
from .environment import NotInstalled, ensure

_HOME = Path(__file__).parents[2]
_DECIDES = ("api", "checks", "clauses", "engine", "fixtures", "ranks", "subjects")


def judge(column: Column, folder: Path, jobs: int) -> tuple[Source | None, str]:
    """The column's record, and a sentence on what is wrong with it, if anything. An old answer outlives a failure."""
    said = _judge(column, folder, jobs)
    try:
        return read_source(folder / RECORD), said
    except RecordError as error:
        return None, said or str(error)


def _judge(column: Column, folder: Path, jobs: int) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        python = ensure(column, folder / "environment")
    except NotInstalled as error:
        return f"could not be installed: {error}"
    noted, now = folder / "judged.json", _fingerprint(column, python)
    if noted.is_file() and _said(noted) == now:
        return ""
    noted.unlink(missing_ok=True)
    status = _run(column, python, folder, jobs)
    if status not in (0, 1, 3):
        return f"could not be judged: the suite ended with status {status}; see {folder / 'log.txt'}"
    noted.write_text(json.dumps(now))
    return ""


def _said(noted: Path) -> object:
    """What a file says; nothing, if it was cut off: then the column is judged again."""
    try:
        return loads(noted.read_bytes())
    except (OSError, ValueError):
        return None


def _run(column: Column, python: Path, folder: Path, jobs: int) -> int:
    command = [str(python), "-m", "conformance", "run", "--subject", column.subject, "--select", column.select]
    command += ["--tier", "quick", "--jobs", str(jobs), "--out", str(folder)]
    command += ["--deviations", str(column.designs)] if column.designs else []
    print(f"board: judging {column.name}", file=sys.stderr)
    with open(folder / "log.txt", "w") as log:
        paths = [str(_HOME), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, preexec_fn=end_with_parent
        )  # fmt: skip
        return done.returncode


def _fingerprint(column: Column, python: Path) -> dict[str, object]:
    """Everything that decides the answer: the suite's files, the column's own, its packages and their releases."""
    asked = [str(python), "-c", "import torch, sys; print(torch.__version__, sys.version)"]
    versions = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    files = [
        path
        for name in _DECIDES
        for path in (_HOME / "conformance" / name).rglob("*")
        if path.suffix in (".py", ".toml")
    ]
    files += (_HOME / "impl").rglob("*.py") if column.subject == "impl" else []
    others = {
        path for path in files if "foreign" in path.parts and path.stem != module_of(column.subject).rpartition(".")[2]
    }
    files += [column.designs] if column.designs else []
    digest = hashlib.sha256()
    for path in sorted(set(files) - others):
        digest.update(str(path.relative_to(_HOME)).encode() + path.read_bytes())
    return {"versions": versions, "files": digest.hexdigest(), "column": json.loads(json.dumps(asdict(column)))}
