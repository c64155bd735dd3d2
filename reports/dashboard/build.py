"""Writes the page's folder: everything it needs under a new name first, the page itself last."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from ..exports import export_all
from ..history import HistoryError, latest_power
from ..judging import JudgedHistory
from . import data
from .render import page, resources

_ASSETS = "page-"  # a folder of the page; the rest of its name is a hash of what is in it
_EXPORTS = "exports"
_DRAFT = ".draft-page-"


def build(judged: JudgedHistory, history: Path, out: Path, *, raw: str = "copy") -> Path:
    """Build the page of a judged history in ``out``; returns its place.

    ``raw="copy"`` brings the records along (hard links where the file system has them), ``raw="link"`` points to the
    history. An older page in ``out`` stays whole until the new one takes its place.
    """
    try:
        return _build(judged, Path(history), Path(out), raw)
    except OSError as error:
        why = error.strerror or str(error)
        raise HistoryError(f"cannot write the page into {out}: {why}; choose another folder with OUT") from error


def _build(judged: JudgedHistory, history: Path, out: Path, raw: str) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    draft = out / f"{_DRAFT}{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        (draft / "data").mkdir(parents=True)
        digest = hashlib.sha256()
        for name, text in (*resources(), *data.files(judged)):
            encoded = text.encode("utf-8", errors="replace")
            digest.update(encoded)
            (draft / name).write_bytes(encoded)
        export_all(judged, draft / _EXPORTS)
        assets = f"{_ASSETS}{digest.hexdigest()[:12]}"
        where = f"{assets}/raw" if raw == "copy" else _relative(history, out)
        if raw == "copy":
            _bring(judged, history, draft / "raw")
        text = page(judged, assets, where, latest_power(history))
        (draft / "index.html").write_text(text, encoding="utf-8", errors="replace")
        _take_place(draft, out, assets)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return out / "index.html"


def _relative(history: Path, out: Path) -> str:
    return quote(Path(os.path.relpath(history.resolve(), out.resolve())).as_posix())


def _take_place(draft: Path, out: Path, assets: str) -> None:
    """The folder first, then the page that names it, and only then away with what the page before it named.

    Exports have names that stay, so that other tools find them; each of them is replaced as one.
    """
    index = draft.with_name(f"{draft.name}.html")
    (draft / "index.html").replace(index)
    with _alone(out):
        (out / _EXPORTS).mkdir(exist_ok=True)
        for export in (draft / _EXPORTS).iterdir():
            export.replace(out / _EXPORTS / export.name)
        (draft / _EXPORTS).rmdir()
        shutil.rmtree(out / assets, ignore_errors=True)
        draft.replace(out / assets)
        index.replace(out / "index.html")
        for old in out.glob(f"{_ASSETS}*"):
            if old.name != assets and (old / "page.js").is_file():
                shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Two machines may write into one folder: the page of one must not name what the other has cleared away."""
    with (out / ".page.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # held only for the moment of the exchange, and let go with its process
        yield


def _bring(judged: JudgedHistory, history: Path, place: Path) -> None:
    """Records are never written twice, so another name for the same file is as good as a copy."""
    for path in _records(judged):
        target = place / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(history / path, target)
        except OSError:
            shutil.copyfile(history / path, target)


def _records(judged: JudgedHistory) -> Iterator[str]:
    for machine in judged.machines:
        for night in machine.nights:
            yield from (path for part in night.parts for path in part.files)
