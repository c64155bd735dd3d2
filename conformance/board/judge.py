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
from .environment import NotInstalled, ensure, folder_of

LIMIT_S = 1800.0  # for one column
END_S = 60.0  # for its record, once it was told to end
_HOME = Path(__file__).parents[2]
_DECIDES = ("api", "checks", "clauses", "deviations", "engine", "explore", "faults", "fixtures", "ranks", "subjects")


def judge(column: Column, folder: Path, jobs: int, limit_s: float = LIMIT_S) -> tuple[Source | None, str]:
    """The column's record, and a sentence on what is wrong with it, if anything. An old answer outlives a failure."""
    said = _judge(column, folder, jobs, limit_s)
    source, fault = last(folder)
    return source, said or fault


def last(folder: Path) -> tuple[Source | None, str]:
    """The answer that there is, whatever has changed since, and a sentence if there is none."""
    if not (folder / RECORD).is_file():
        return None, "has not been judged here yet"
    try:
        return read_source(folder / RECORD), ""
    except RecordError as error:
        return None, str(error)


def _judge(column: Column, folder: Path, jobs: int, limit_s: float) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        python = ensure(column, folder_of(column, folder.parent))
    except NotInstalled as error:
        return f"could not be installed: {error}"
    noted, now = folder / "judged.json", _fingerprint(column, python)
    if noted.is_file() and _said(noted) == now:
        return ""
    noted.unlink(missing_ok=True)
    before = _stamp(folder / RECORD)
    status = _run(column, python, folder, jobs, limit_s)
    if status is None:
        return f"was not finished in {limit_s / 60:g} minutes; the next run goes on where this one stopped"
    if status not in (0, 1, 3) or _stamp(folder / RECORD) == before:
        return f"could not be judged: the suite ended with status {status}; see {folder / 'log.txt'}"
    noted.write_text(json.dumps(now))
    return ""


def _said(noted: Path) -> object:
    """What a file says; nothing, if it was cut off: then the column is judged again."""
    try:
        return loads(noted.read_bytes())
    except (OSError, ValueError):
        return None


def _run(column: Column, python: Path, folder: Path, jobs: int, limit_s: float) -> int | None:
    """The suite's exit status; None if it was interrupted at its deadline, with its record kept."""
    command = [str(python), "-m", "conformance", "run", "--subject", column.subject, "--select", column.select]
    command += ["--tier", "quick", "--jobs", str(jobs), "--out", str(folder), "--resume", "possible"]
    print(f"board: judging {column.name}", file=sys.stderr)
    paths = [str(_HOME), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with open(folder / "log.txt", "w") as log:
        suite = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, preexec_fn=end_with_parent
        )  # fmt: skip
        try:
            return suite.wait(limit_s)
        except subprocess.TimeoutExpired:
            _end(suite)
            return None
        except BaseException:
            _end(suite)
            raise


def _stamp(record: Path) -> int:
    return record.stat().st_mtime_ns if record.is_file() else 0


def _end(suite: subprocess.Popen[bytes]) -> None:
    """Ask it to end, which writes the record of what was judged; make it end if it does not."""
    suite.terminate()
    try:
        suite.wait(END_S)
    except subprocess.TimeoutExpired:
        suite.kill()
        suite.wait()


def _fingerprint(column: Column, python: Path) -> dict[str, object]:
    """Everything that decides the answer: the suite's files, the column's own, its packages and their releases."""
    asked = [str(python), "-c", "import torch, sys; print(torch.__version__, sys.version)"]
    versions = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    files = [
        path
        for name in _DECIDES
        for path in (_HOME / "conformance" / name).rglob("*")
        if path.suffix in (".py", ".toml", ".json", ".jsonl")
    ]
    files += (_HOME / "impl").rglob("*.py") if column.subject == "impl" else []
    others = {
        path for path in files if "foreign" in path.parts and path.stem != module_of(column.subject).rpartition(".")[2]
    }
    digest = hashlib.sha256()
    for path in sorted(set(files) - others):
        digest.update(str(path.relative_to(_HOME)).encode() + path.read_bytes())
    return {"versions": versions, "files": digest.hexdigest(), "column": json.loads(json.dumps(asdict(column)))}
