"""Small histories for the tests of the page and of the exports: an ordinary one, and one that means harm."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ..history import add_file, add_night, add_note
from ..judging import judge
from ..records import identity
from .made_rows import conformance_rows, perf_row, write

# Whatever a page, a script, a spreadsheet, XML or Markdown might take for more than text.
HOSTILE = "=1</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'`|*&amp;\u2028\x07é{{7*7}}"


def plain(folder: Path, *, nights: int = 30, cells: int = 5, now: datetime | None = None) -> Path:
    """One machine, quiet cells; the first one is slower by 12 % in the last four nights. One night is missed.

    The last night is an hour before ``now``, so at no hour of the day is another one due since.
    """
    history, draw = folder / "history", random.Random(7)
    start = (now or datetime.now(UTC)) - timedelta(days=nights - 1, hours=1)
    about = {**identity("perf", ["python", "-m", "perf", "run", "--sweep", "nightly"]), "of": "perf"}
    for night in range(nights):
        if night == 9:
            continue
        slow = 1.12 if night >= nights - 4 else 1.0
        rows = []
        for cell in range(cells):
            time_ms = (4 + cell) * draw.gauss(1, 0.01) * (1.0 if cell else slow)
            for subject, copy, factor in (("impl", 1, 1.0), ("impl", 2, 1.0), ("torch", 1, 1.1)):
                rows.append(perf_row(f"cell{cell:03}", subject, time_ms * factor, draw, copy=copy, samples=1))
                time_ms = (4 + cell) if subject == "impl" and copy == 2 else time_ms
        header = {**about, "commit": hashlib.sha1(b"%d" % night).hexdigest()}
        broken = conformance_rows(("JOIN-002",) if night in (12, 13) else ())
        files = {
            "perf.jsonl": write(folder / "perf.jsonl", "perf", rows, header),
            "conformance.jsonl": write(folder / "c.jsonl", "conformance", broken, {**header, "of": "conformance"}),
        }
        add_night(history, "builder", start + timedelta(days=night), {"parts": {}}, files)
    return history


def hostile(folder: Path) -> Path:
    """Names, notes, commits, witnesses and reasons that are HTML, script, formula and control characters."""
    history, draw = folder / "history", random.Random(1)
    start = datetime.now(UTC) - timedelta(days=3, hours=1)
    for night in range(4):
        slow = 1.3 if night == 3 else 1.0
        rows = [perf_row(HOSTILE, "impl", 10 * slow, draw), perf_row(HOSTILE, "torch", 11.0, draw)]
        header = {"commit": HOSTILE, "command": ["python", "-m", HOSTILE], "versions": {HOSTILE: f"{night}{HOSTILE}"}}
        broken = [{**row, "witness": HOSTILE, "check": HOSTILE} for row in conformance_rows(("JOIN-002",))]
        files = {
            "perf.jsonl": write(folder / "perf.jsonl", "perf", rows, header),
            "conformance.jsonl": write(folder / "conformance.jsonl", "conformance", broken, header),
        }
        manifest = {"parts": {"perf": {"status": 1, "why": HOSTILE}}}
        place = add_night(history, "box", start + timedelta(days=night), manifest, files)
        fast = [perf_row(HOSTILE, "impl", 10.0, draw), perf_row(HOSTILE, "torch", 11.0, draw)]
        for number in range(2, 6):
            again = write(folder / "again.jsonl", "perf", [dict(row) for row in rows], header)
            add_file(place, f"perf-{number}.jsonl", again)
            add_file(place, f"before-{number}.jsonl", write(folder / "before.jsonl", "perf", fast, header))
    return history


def acknowledged(history: Path, text: str) -> None:
    """A note on the first alarm of a history."""
    change = next(change for change in judge(history).changes if change.alarms)
    machine = next(one.machine for one in judge(history).series if one.key == change.series)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    note = {"machine": machine, "key": change.series, "since": change.since, "time": now, "who": text, "text": text}
    add_note(history, note)


def spoiled(history: Path) -> dict[str, str]:
    """Spoil a history in every way that a folder can be; what to expect of each place, by kind."""
    home = next(path for path in history.iterdir() if path.is_dir() and path.name != "notes")
    nights = sorted(home.iterdir())
    damaged = nights[-1] / "perf.jsonl"
    damaged.write_text(damaged.read_text()[:200] + "\nno JSON\n{}\n")
    future = home / f"{datetime.now(UTC) + timedelta(days=400):%Y-%m-%d}T000000Z-0000"
    shutil.copytree(nights[0], future)
    twin = history / "twin" / nights[1].name
    shutil.copytree(nights[1], twin)
    (home / "holiday.jpg").write_bytes(b"\xff\xd8")
    (history / f"<img src=x onerror=alert(1)>{HOSTILE[:1]}").write_text("")
    (history / "notes").mkdir(exist_ok=True)
    (history / "notes" / "bad.json").write_text(json.dumps(["not a note"]))
    return {damaged.name: "damaged", future.name: "future", twin.name: "duplicate", "holiday.jpg": "foreign"}
