"""An environment for one column: a virtual one that sees this one's packages and has the column's own besides.

A column that names a release of torch has one that sees nothing of this one's: that torch, and what the suite needs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import distributions
from pathlib import Path

from .columns import Column

INSTALL_S = 900.0
_SUITE = ("numpy", "pytest", "rich", "jinja2", "hypothesis")  # what judging imports beside torch


class NotInstalled(Exception):
    """A column that cannot be installed here; the text is pip's last word."""


def folder_of(column: Column, out: Path) -> Path:
    """Where the column's environment is: one for each release of torch, else one for each column."""
    return out / f"with-torch-{column.torch}" if column.torch else out / column.name / "environment"


def interpreter(column: Column, folder: Path) -> Path:
    """The one that runs this column: in its environment, if it needs one."""
    return folder / "bin" / "python" if column.requires or column.torch else Path(sys.executable)


def ensure(column: Column, folder: Path) -> Path:
    """The interpreter of this column; made anew when what it requires has changed."""
    python, ready = interpreter(column, folder), folder / "ready"
    if not column.requires and not column.torch:
        return python
    seen = "" if column.torch else sysconfig.get_path("purelib")
    wanted = "\n".join([column.torch, seen, str(column.dependencies), *column.requires])
    if ready.is_file() and ready.read_text() == wanted:
        return python
    if folder.is_symlink():
        folder.unlink()  # to an environment that is gone, or that serves others as it is
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder)
    own = next(folder.glob("lib/python*/site-packages"))
    (own / "judged-with.pth").write_text(f"{seen}\n")
    _install(column, python)
    ready.write_text(wanted)
    return python


def _install(column: Column, python: Path) -> None:
    """With pip, keeping every release that is there: no other torch can come in, but the one that is asked for."""
    free = ("torch", "setuptools") if column.torch else ()  # each torch has its own limit on setuptools
    kept = {each.name: each.version for each in reversed([*distributions()]) if each.name not in free}
    constraints = python.parent.parent / "kept.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in sorted(kept.items())))
    wanted = [f"torch=={column.torch}", *_SUITE] if column.torch else []
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    command += ["--disable-pip-version-check", "--constraint", str(constraints)]
    command += [] if column.dependencies else ["--no-deps"]
    _run([*command, *wanted, *column.requires])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"pip took more than {INSTALL_S:.0f} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotInstalled((errors or done.stderr.splitlines() or ["pip failed without a word"])[-1])
