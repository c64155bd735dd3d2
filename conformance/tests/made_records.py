"""Records made up for tests of the pages: one row for every way in which a clause can stand."""

from reports.records import Writer, identity

CATALOGUE = {
    "JOIN-001": {"title": "Public names", "level": "MUST", "error": "", "area": "A"},
    "JOIN-002": {"title": "Joinable is abstract", "level": "RAISES", "error": "TypeError", "area": "A"},
    "ZERO-001": {"title": "Shards", "level": "MUST", "error": "", "area": "D"},
    "ZERO-002": {"title": "Limits", "level": "LIMIT", "error": "", "area": "D"},
    "FAKE-001": {"title": "Cannot be known", "level": "MUST", "error": "", "area": "D", "untestable": "nobody can"},
}


def row(clause, outcome="passed", world=2, subject="torch", **more):
    level = CATALOGUE.get(clause, {}).get("level", "")
    return {
        "clause": clause, "level": level, "check": "test_something", "scenario": "", "subject": subject,
        "backend": "gloo", "world": world, "outcome": outcome, "seconds": 0.1, "witness": "", "detail": "",
        "notes": [], "deviation": "",
    } | more  # fmt: skip


ROWS = [
    row("JOIN-001", world=1), row("JOIN-001"),
    row("JOIN-002", "failed", witness="assert 1 == 2", detail="assert 1 == 2\nat test_x.py:3"),
    row("JOIN-002", "hung", 3, deviation="it is known", witness="rank 0 hung"),
    row("ZERO-001", "unsupported", witness="torch lacks it"),
    row("ZERO-002", notes=["it stops at 42"]), row("ZERO-002", "not run", 3, witness="no such device"),
]  # fmt: skip


def lay(path, rows=ROWS, *, host="here", time="2026-01-02T03:04:05+00:00", stale=(), clauses=None, part=None, **header):
    """Write a record of these rows."""
    subjects = list(dict.fromkeys(each["subject"] for each in rows)) or ["torch"]
    whole = identity("conformance", ["python", "-m", "conformance", "run"]) | {
        "time": time,
        "machine": {"host": host, "system": "Linux", "processor": "a processor", "cores": 2, "memory_mib": 2048},
        "versions": {"python": "3.11", "torch": "2.13.0"},
        "commit": "0123456789abcdef",
        "subjects": [{"name": name, "spec": f"package.{name}:subject", "version": "1.0"} for name in subjects],
        "asked": {"backend": "gloo", "worlds": [1, 2, 3], "select": ["*"]},
        "areas": {"A": "Join", "D": "Zero"},
        "catalogue": CATALOGUE,
        "deviations": {
            "torch": [{"clause": "JOIN-002", "reason": "it is known", "link": "https://example.org/7", "place": "x"}]
        },
        "checks": "",
    }
    writer = Writer(path, whole | header)
    for each in rows:
        writer.write(each)
    told = clauses or list(dict.fromkeys(each["clause"] for each in rows))
    writer.close({"stale": list(stale), "exit_status": 0, "clauses": told, "part": part or {}})
    return path
