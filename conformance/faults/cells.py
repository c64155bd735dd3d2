"""A cell of the matrix, fault × point × role × what runs, and the rules that say which of them are legal."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from itertools import product

LIVE, ABOUT, SHADOWING, ALONE = "live", "about to join", "shadowing", "alone"
ROLES = (LIVE, ABOUT, SHADOWING, ALONE)

DDP, JOIN, ZERO = "DDP", "Join", "Join with ZeRO"
OVERLAPPED = ("overlap", "interleaved", "reduce-scatter")
#: the survivors go on without the lost rank, by ``regroup``; the second has a sharded optimizer with copies
REGROUPED, MIRRORED = "Join, regrouped", "Join with a mirror, regrouped"
REGROUPING = (REGROUPED, MIRRORED)
SHARDED = (ZERO, MIRRORED)
WITHOUT_OVERLAP = (DDP, JOIN, ZERO, *REGROUPING)
PROGRAMS = (*WITHOUT_OVERLAP, *OVERLAPPED)

#: the rank ends by them, or never comes back
ENDING = ("raise", "exit", "SIGKILL", "stopped for ever", "memory exhausted")
#: everybody lives on
PASSING = ("stopped for 1 s", "store gone")
#: what is done to one collective
OF_A_COLLECTIVE = ("corrupted", "skipped", "repeated", "swapped", "another size", "another dtype")
#: what needs a network
OF_A_HOST = ("link cut", "link cut and healed", "link slowed", "host gone")
KINDS = (*ENDING, *PASSING, *OF_A_COLLECTIVE, *OF_A_HOST)
#: after these the failing side can say what has happened; one whose collective was changed does not know it
SPEAKING = ("raise", "memory exhausted")

_FLOAT, _INT = "float", "int"
_SENT = "broadcast|all_gather.*|all_to_all.*"
_SUMMED = "all_reduce|reduce|reduce_scatter.*|all_to_all.*"


@dataclass(frozen=True)
class Point:
    """Where a fault happens: at a collective that is known by its phase, kind and number, or in the user's own code."""

    name: str
    phase: str  # of the program: what the rank is doing (``training``); or several, separated by |
    ops: str = ""  # a pattern for the collective's name; empty: the user's own code
    dtype: str = ""  # what its dtype begins with
    number: int = 1  # which of these in the phase, from 1
    numel: int = 0  # how many elements it has; 0: any number
    iteration: int = 2  # in which iteration of the program, where there are any
    programs: tuple[str, ...] = PROGRAMS
    roles: tuple[str, ...] = ROLES

    @property
    def is_collective(self) -> bool:
        return bool(self.ops)

    def meets(self, op: str, dtype: str, numel: int) -> bool:
        """Whether a collective is of the kind in question."""
        wanted = re.fullmatch(self.ops, op) is not None and dtype.startswith(self.dtype)
        return wanted and (not self.numel or numel == self.numel)


#: a parameter of its own size, which is reduced apart from all others
LATE_NUMEL = 9
_CONTEXTS = tuple(program for program in PROGRAMS if program != DDP)
_BUCKETS = (LIVE, ABOUT, SHADOWING)  # a rank that is alone may reduce nothing

#: the stages of ``impl/ddp/stages.py``, then those of ZeRO, then the user's own code
POINTS = (
    Point("construction", "construction", ".*", iteration=0, roles=(LIVE,)),
    Point("roll call", "forward|backward", "all_reduce", _INT, roles=_BUCKETS, programs=_CONTEXTS),
    Point("bucket order", "forward", _SENT, iteration=1, roles=_BUCKETS),
    Point("buffers", "forward", _SENT, roles=_BUCKETS),
    # by a hook of the user's, which knows one group
    Point("buffers after forward", "forward", _SENT, roles=_BUCKETS, programs=(DDP, JOIN, ZERO)),
    Point("first bucket", "backward", _SUMMED, _FLOAT, roles=_BUCKETS),
    Point("second bucket", "backward", _SUMMED, _FLOAT, number=2, roles=_BUCKETS),
    Point("agreement on use", "backward", "all_reduce", _INT, roles=_BUCKETS, programs=WITHOUT_OVERLAP),
    Point("delayed gradients", "backward", "all_reduce", _FLOAT, numel=LATE_NUMEL, roles=_BUCKETS,
          programs=WITHOUT_OVERLAP),
    Point("single parameter", "backward", "all_reduce", _FLOAT, programs=(DDP,)),
    Point("published shard", "step", _SENT, programs=SHARDED),
    Point("sizes of copies", "step", "all_reduce", _INT, programs=(MIRRORED,)),
    Point("copied shard", "step", "all_to_all.*", programs=(MIRRORED,)),
    Point("published in backward", "backward", _SENT, programs=OVERLAPPED),
    Point("final synchronisation", "joined", _SENT, roles=(LIVE, ABOUT), programs=_CONTEXTS),
    Point("consolidation", "consolidation", ".*", roles=(LIVE,), programs=(ZERO,)),
    Point("forward hook", "forward", roles=(LIVE, ABOUT, ALONE)),
    Point("gradient hook", "backward", roles=(LIVE, ABOUT, ALONE)),
    Point("comm hook", "backward", programs=(*WITHOUT_OVERLAP, "overlap", "interleaved"), roles=_BUCKETS),
    Point("between iterations", "between", roles=(LIVE, ABOUT, ALONE)),
    Point("at the end of the block", "joined", roles=(LIVE, ABOUT, ALONE), programs=_CONTEXTS),
    Point("at exit", "exit", roles=(LIVE,)),
)  # fmt: skip
_POINTS = {point.name: point for point in POINTS}

#: points at which the next collective starts before this one is waited for, so that the two can be swapped
_FOLLOWED_AT_ONCE = ("first bucket",)
#: for going on without a rank: before the model is built, and once ranks have come to the end, which leave
_TOO_EARLY_OR_LATE = ("construction", "final synchronisation", "at the end of the block", "at exit")
#: where faults of links and hosts happen: a network costs seconds, so a few points stand for all
_ON_HOSTS = ("construction", "roll call", "first bucket", "published shard", "between iterations")


@dataclass(frozen=True)
class Cell:
    """One cell. Its name says it all; world and rank follow from the name, so that all of them come about."""

    kind: str
    point: str
    role: str
    program: str

    @property
    def id(self) -> str:
        return f"{self.kind}/{self.point}/{self.role}/{self.program}"

    @staticmethod
    def of(text: str) -> Cell:
        """The cell of an id; ValueError if there is none such."""
        parts = text.split("/")
        if len(parts) != 4 or (cell := Cell(*parts)) not in legal():
            raise ValueError(f"no legal cell is called {text!r}; see --list")
        return cell

    @property
    def where(self) -> Point:
        return _POINTS[self.point]

    @property
    def on_hosts(self) -> bool:
        return self.kind in OF_A_HOST

    @property
    def world(self) -> int:
        """Four ranks on two hosts; elsewhere two or three, and three where one shadows: of two the other is alone."""
        if self.on_hosts:
            return 4
        return 3 if self.role == SHADOWING else 2 + zlib.crc32(self.id.encode()) % 2

    @property
    def rank(self) -> int:
        """The rank in which the fault happens, or the first on the host that it happens to."""
        return 2 if self.on_hosts else zlib.crc32(self.id.encode()) // 2 % self.world

    @property
    def failing(self) -> tuple[int, ...]:
        """The ranks that may be named."""
        return (2, 3) if self.on_hosts else (self.rank,)

    @property
    def schedule(self) -> tuple[int, ...]:
        """Iterations of each rank: so many that the rank in question has its role when the fault is due."""
        at, others = self.where.iteration, [rank for rank in range(self.world) if rank not in self.failing]
        mine, theirs = {
            LIVE: (at + 2, at + 2), ABOUT: (at + 1, at + 3), SHADOWING: (1, at + 3), ALONE: (at + 2, 1),
        }[self.role]  # fmt: skip
        counts = [mine if rank in self.failing else theirs for rank in range(self.world)]
        if self.role == LIVE and self.program != DDP and len(others) > 1 and self.point != "final synchronisation":
            counts[others[-1]] = 1  # somebody shadows meanwhile
        if self.role == LIVE and self.point == "final synchronisation":
            counts[self.rank] += 1  # the last to leave: all have its weights from it
        return tuple(counts)


def rules(cell: Cell) -> Iterator[str]:
    """Why a cell is not legal, rule by rule."""
    point = cell.where
    if cell.program not in point.programs:
        yield "what runs does not come to this point"
    if cell.role not in point.roles:
        yield "a rank in this role does not come to this point"
    if cell.program == DDP and cell.role != LIVE:
        yield "roles are of a context"
    if cell.program in REGROUPING and cell.kind not in (*ENDING, *PASSING):
        yield "going on without a rank is for faults that end one"
    if cell.program in REGROUPING and point.name in _TOO_EARLY_OR_LATE:
        yield "there is nothing to go on with yet, or nobody who still would"
    if cell.kind in OF_A_COLLECTIVE and not point.is_collective:
        yield "there is no collective to change"
    if cell.kind == "swapped" and (point.name not in _FOLLOWED_AT_ONCE or cell.role == SHADOWING):
        yield "a rank waits for this collective before it starts another"
    if cell.kind == "another size" and point.name in ("consolidation", "construction"):
        yield "sizes are agreed on first, so the collective itself is never of another"
    if cell.on_hosts and (point.name not in _ON_HOSTS or cell.role == ABOUT or cell.program in OVERLAPPED):
        yield "a network costs seconds: few points stand for all"


@cache
def legal() -> dict[Cell, None]:
    """Every legal cell, in a fixed order."""
    everything = (Cell(*each) for each in product(KINDS, _POINTS, ROLES, PROGRAMS))
    return dict.fromkeys(cell for cell in everything if not any(rules(cell)))


@cache
def matrix() -> tuple[Cell, ...]:
    """So many legal cells that each fault meets each point in each role, and each program in each role.

    Each point meets each program in each role, too. All four together would be more than twice as many.
    """
    cells = list(legal())
    random.Random(19).shuffle(cells)
    seen: set[tuple[str, ...]] = set()
    chosen = []
    for cell in cells:
        told = {
            (cell.kind, cell.point, cell.role), (cell.kind, cell.role, cell.program),
            (cell.point, cell.role, cell.program),
        }  # fmt: skip
        if not told <= seen:
            chosen.append(cell)
            seen |= told
    order = {cell: place for place, cell in enumerate(legal())}
    return tuple(sorted(chosen, key=order.__getitem__))


def patterns(text: str) -> list[str]:
    """Patterns of ids, separated by commas; one within a program's name separates nothing."""
    within = "|".join(name.partition(", ")[2] for name in PROGRAMS if ", " in name)
    return [part.strip() for part in re.split(rf",(?! (?:{within})\b)", text)]


def selected(pattern: str) -> list[Cell]:
    """Cells of the matrix whose ids meet a pattern; of all legal ones for a pattern that meets none of the matrix."""
    found = [cell for cell in matrix() if fnmatchcase(cell.id, pattern)]
    return found or [cell for cell in legal() if fnmatchcase(cell.id, pattern)]


def sample(cells: Sequence[Cell], count: int, seed: int) -> list[Cell]:
    """So many of the cells; the same seed draws the same ones."""
    drawn = random.Random(seed).sample(list(cells), min(count, len(cells)))
    return [cell for cell in cells if cell in drawn]
