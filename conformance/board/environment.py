"""An environment for one column: a virtual one that sees this one's packages and has the column's own besides."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from .columns import Column

INSTALL_S = 900.0


class NotInstalled(Exception):
    """A column that cannot be installed here; the text is pip's last word."""


def ensure(column: Column, folder: Path) -> Path:
    """The interpreter of this column; made anew when what it requires has changed."""
    if not column.requires:
        return Path(sys.executable)
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = "\n".join([sysconfig.get_path("purelib"), str(column.dependencies), *column.requires])
    if ready.is_file() and ready.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder)
    own = next(folder.glob("lib/python*/site-packages"))
    (own / "judged-with.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _install(column, python)
    ready.write_text(wanted)
    return python


def _install(column: Column, python: Path) -> None:
    """With pip, keeping every release that is there: no other torch can come in."""
    kept = subprocess.run([sys.executable, "-m", "pip", "freeze"], capture_output=True, text=True, check=True).stdout
    constraints = python.parent.parent / "kept.txt"
    constraints.write_text("".join(f"{line}\n" for line in kept.splitlines() if "==" in line))
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    command += ["--constraint", str(constraints), *([] if column.dependencies else ["--no-deps"]), *column.requires]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"pip took more than {INSTALL_S:.0f} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotInstalled((errors or done.stderr.splitlines() or ["pip failed without a word"])[-1])
