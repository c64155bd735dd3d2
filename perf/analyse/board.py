"""What charts are made from: the groups of one or more records, and where those come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from reports.records import RecordFile

from ..measure.rows import NOT_RUN, OK, Row
from ..plan.cells import Cell
from ..wording import counted
from .noise import figure, of_group
from .table import by_group

_SHORT = {"oversubscribed": "ranks share cores", "other work": "other work on the machine"}


@dataclass(frozen=True)
class Measured:
    """The rows of one group, all measured together."""

    rows: list[Row]

    @property
    def axes(self) -> dict[str, Any]:
        """Of the first cell; what is shared within a group is the same in all."""
        found: dict[str, Any] = self.rows[0]["axes"]
        return found

    @property
    def noise(self) -> float | None:
        return figure(of_group(self.rows))

    def find(self, **axes: Any) -> Iterator[Row]:
        """The rows with these axes, those of copies apart."""
        wanted = {"copy": 1, **axes}
        return (row for row in self.rows if all(row["axes"][name] == value for name, value in wanted.items()))

    def one(self, **axes: Any) -> Row | None:
        return next(self.find(**axes), None)


@dataclass(frozen=True)
class Board:
    """Everything that may be drawn, and the headers of the records that it is from.

    ``beside`` is what was measured besides cells (``perf.measure.extras``).
    """

    groups: list[Measured]
    headers: list[dict[str, Any]]
    beside: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group.rows]

    @property
    def subjects(self) -> list[str]:
        """Who was measured, in the order in which they were asked for."""
        asked = [name for header in self.headers for name in header.get("asked", {}).get("subjects", {})]
        found = {row["subject"] for row in self.rows} - {"none"}
        return [*dict.fromkeys(name for name in asked if name in found), *sorted(found - set(asked))]

    def caption(self, said: str, rows: Sequence[Row] | None = None) -> str:
        """What the chart shows, how it was measured, and where."""
        turns = [len(set(row["block"])) for row in (self.rows if rows is None else rows) if row["status"] == OK]
        counts = f"{min(turns)} to {max(turns)} rounds" if turns and min(turns) != max(turns) else ""
        counts = counts or (counted(turns[0], "round") if turns else "")
        parts = [
            self._each(_place), self._networks(), self._backends(),
            self._each(lambda header: f"torch {header['versions']['torch']}, Python {header['versions']['python']}"),
            f"commit {self._each(lambda header: short(header['commit']), ', ')}",
            self._each(lambda header: str(header["time"])[:10], ", "), counts, *self._warnings(),
        ]  # fmt: skip
        return f"{said}\n{' · '.join(part for part in parts if part)}"

    def _each(self, said: Callable[[dict[str, Any]], str], between: str = "; ") -> str:
        """What the headers of the records say, each thing once."""
        return between.join(dict.fromkeys(map(said, self.headers)))

    def _backends(self) -> str:
        return ", ".join(dict.fromkeys(backend(row["axes"]["backend"]) for row in self.rows))

    def _networks(self) -> str:
        """The networks between hosts of this machine, if there are any."""
        return ", ".join(dict.fromkeys(row["axes"]["network"] for row in self.rows if row["axes"]["network"]))

    def _warnings(self) -> list[str]:
        """The reasons not to trust the times, in a few words each."""
        said = dict.fromkeys(sentence for header in self.headers for sentence in header.get("warnings", []))
        found = dict.fromkeys(_SHORT[word] for word in (sentence.split(":")[0] for sentence in said) if word in _SHORT)
        return list(found)


def _place(header: dict[str, Any]) -> str:
    machine = header["machine"]
    gpus = [gpu["name"] for gpu in machine.get("gpus", [])]
    return f"{machine['processor']}, {machine['cores']} cores" + (f", {len(gpus)} × {gpus[0]}" if gpus else "")


def backend(name: str) -> str:
    """As its makers write it."""
    return {"gloo": "Gloo", "nccl": "NCCL"}.get(name, name)


def short(commit: str) -> str:
    """A commit as a caption says it; a plus stands for changes since."""
    return (commit[:9] + "+" * commit.endswith("+")) if commit else "unknown"


def board(records: Sequence[RecordFile]) -> Board:
    """All groups of the records, without what was never run.

    A group that several of them have is taken from the last in which something is sound.
    """
    groups: dict[str, Measured] = {}
    beside: dict[str, dict[str, list[int]]] = {}
    for record in records:
        beside |= (record.footer or {}).get("beside") or {}
        for name, rows in by_group([row for row in record.rows if row["status"] != NOT_RUN]).items():
            if name not in groups or any(row["status"] == OK for row in rows):
                groups[name] = Measured(rows)
    return Board(list(groups.values()), [record.header for record in records], beside)


def label(cell: Cell) -> str:
    """A variant without its subject."""
    return " · ".join(cell.variant.split(" · ")[1:]) or "DDP"
