"""What the last run of all planted defects found, kept for whoever shows it beside another figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reports.records import identity

FILE = Path("out/defects/defects.json")


def keep(killed: int, of: int, file: Path = FILE) -> None:
    """Write down how a run of all planted defects ended."""
    header = identity("defects", home=Path(__file__).parent)
    file.parent.mkdir(parents=True, exist_ok=True)
    known = {"killed": killed, "of": of, "time": header["time"], "commit": header["commit"]}
    file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def kept(file: Path = FILE) -> dict[str, Any]:
    """What was written; empty if not all of them were run here."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) and {"killed", "of"} <= set(known) else {}
