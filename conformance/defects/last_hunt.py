"""What the last whole hunt of the planted defects found, kept for whoever shows it beside another figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reports.records import identity

FILE = Path("out/defects/defects.json")


def keep(killed: int, of: int, file: Path = FILE) -> None:
    """Write down how a hunt of all planted defects ended."""
    header = identity("defects", home=Path(__file__).parent)
    file.parent.mkdir(parents=True, exist_ok=True)
    told = {"killed": killed, "of": of, "time": header["time"], "commit": header["commit"]}
    file.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def kept(file: Path = FILE) -> dict[str, Any]:
    """What was written; empty if there was no whole hunt here."""
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) and {"killed", "of"} <= set(told) else {}
