"""What has been finished so far: one small file a part, whole at every moment, so that a kill loses nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ..records.disk import sync_folder
from .results import ROW, Outcome, Row

DONE = "done.json"


def kept(folder: Path) -> Row | None:
    """The row of a part that has come to its end earlier."""
    try:
        found = json.loads((folder / DONE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(found, dict) and ROW.keys() <= found.keys()
    return found if whole and Outcome(found["outcome"]).final else None


def keep(folder: Path, row: Row) -> None:
    """Note how a part has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{DONE}.part"
    with draft.open("w", encoding="utf-8") as file:
        json.dump(row, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, folder / DONE)
    sync_folder(folder)
