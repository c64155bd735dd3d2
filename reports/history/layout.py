"""Where things lie in a history folder.

    HISTORY/<machine>/<night>/night.json           what was run, from when to when, and how each part ended
                             /conformance.jsonl    the records, as the commands wrote them …
                             /perf.jsonl
                             /perf-2.jsonl         … and what was measured again in the same night
                             /before-2.jsonl       … in turns with the code of an earlier night (records of perf, too)
                             /verdict.jsonl        what was said of the night then
    HISTORY/notes/<time>-<word>.json               one acknowledgement
    HISTORY/power/<time>-<seed>.jsonl              how many random mutants the suite killed: see ``make power``

Nothing is ever written twice, so folders can be copied, merged, committed and synchronised as they are: two histories
become one by copying one over the other.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

MANIFEST = "night.json"
VERDICT = "verdict.jsonl"
NOTES = "notes"
POWER = "power"
PARTS = ("conformance", "perf")
BEFORE = "before"
DRAFT = ".draft-"  # a night that is being put together; a leftover belongs to a run that was killed

_RECORD = re.compile(rf"({'|'.join((*PARTS, BEFORE))})(?:-([2-9]|[1-9][0-9]))?\.jsonl")
_NIGHT = re.compile(r"\d{4}-\d\d-\d\dT\d{6}Z-[0-9a-f]{4,}")

# What the numbers of a series depend on: other hardware starts new series. Versions do not, because a regression that
# came with a new version is exactly what somebody wants to see.
_HARDWARE = ("processor", "cores", "gpus")


def part_of(name: str) -> tuple[str, int] | None:
    """Which part a record file belongs to, and which attempt it is (1 is the first); None for any other file."""
    found = _RECORD.fullmatch(name)
    return (found[1], int(found[2] or 1)) if found else None


def is_night(name: str) -> bool:
    return _NIGHT.fullmatch(name) is not None


def night_name(moment: datetime, word: str) -> str:
    """The folder of a night that began at this moment; ``word`` (hexadecimal) keeps those of one second in order."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H%M%SZ}-{word}"


def night_time(name: str) -> str:
    """ISO 8601, UTC, of a night's name."""
    return datetime.strptime(name[:18], "%Y-%m-%dT%H%M%SZ").replace(tzinfo=UTC).isoformat(timespec="seconds")


def hardware(facts: Mapping[str, Any]) -> str:
    """A short hash of the hardware in a record's header."""
    described = repr([facts.get(name) or None for name in _HARDWARE])
    return hashlib.sha256(described.encode()).hexdigest()[:8]


def machine_name(facts: Mapping[str, Any]) -> str:
    """A name for machines of this kind, e.g. ``amd-epyc-2-cores-1a2b3c4d``.

    Not the host's name: that of a container or a rented machine is another one every night.
    """
    words = [str(facts.get("processor") or "machine"), f"{facts.get('cores', '')} cores"]
    words += [str(gpu.get("name", "")) if isinstance(gpu, Mapping) else str(gpu) for gpu in facts.get("gpus") or ()][:1]
    return f"{slug(' '.join(words))[:60].strip('-')}-{hardware(facts)}"


def slug(text: str) -> str:
    """Lower-case letters, digits and dashes, so that it can be a folder's name anywhere."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
