"""Planning: from a sweep and what was asked to groups of cells, with an estimate of the time. Starts nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from conformance.bad_input import BadInput
from conformance.hosts import Network

from ..workloads import ABOUT_MS, COUNTS, profile
from .axes import ALONE, UNEVEN, known_trouble, pointless
from .cells import Cell, Group
from .sweep import Sweep

MOST_VARIANTS = 12  # in one group: each has a model of its own in memory on every rank
LEAST_ROUNDS = 3  # below these there is nothing to compare
MOST_ROUNDS = 100  # where a budget leaves room for more
WARM_BLOCKS = 3  # what warm-up usually takes
_START_S, _START_PER_RANK_S, _BUILD_S = 1.0, 0.3, 0.1
_TURN_S = 0.015  # what a turn takes besides its iterations
_BROADCAST_S = 0.00014  # one parameter's, by the number of ranks
_HOSTS_S, _HOST_S = 10.0, 3.0  # to set up hosts, and what each of them takes to load torch, on a core of its own


@dataclass(frozen=True)
class Place:
    """Where a world of this size is measured here."""

    backend: str
    device: str


@dataclass(frozen=True)
class Plan:
    """Groups, in order of measurement, and what was left out, counted by reason."""

    sweep: Sweep
    groups: tuple[Group, ...]
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def cells(self) -> int:
        return len(self.all_cells())

    @property
    def hosts(self) -> dict[str, int]:
        """How many hosts each network needs."""
        found: dict[str, int] = {}
        for group in self.groups:
            if group.network:
                found[group.network] = max(group.world, found.get(group.network, 0))
        return found

    def all_cells(self) -> list[Cell]:
        return [cell for group in self.groups for cell in group]


def plan(
    sweep: Sweep, subjects: Sequence[str], world: int, place: Callable[[int], Place], exactly: bool = False
) -> Plan:
    """The groups of a sweep for these subjects and up to ``world`` ranks. ``place`` says where each world runs.

    With ``exactly`` no smaller world is planned: a launcher's ranks are all there is.
    """
    left_out: Counter[str] = Counter()
    found: dict[str, list[Cell]] = {}
    for axes in sweep.combinations():
        for size in _worlds(axes["world"], world):
            if size > world:
                left_out[f"more than {world} ranks"] += len(subjects)
                continue
            if exactly and size < world:
                left_out["fewer ranks than the launcher has started"] += len(subjects)
                continue
            where = place(size)
            for subject in subjects:
                whole = _worked_out({**axes, "world": size, "subject": subject}, where)
                why = pointless(whole)
                if why:
                    left_out[why] += 1
                    continue
                cell = Cell(**whole)
                group = found.setdefault(cell.shared, [])
                if cell not in group:
                    group.append(cell)
    groups = [piece for shared, cells in found.items() for piece in _cut(shared, cells)]
    groups.sort(key=_hosts_order)
    if not groups:
        reasons = "; ".join(left_out) or "it lists none"
        raise BadInput(f"sweep {sweep.name!r} has no cell to measure at WORLD={world}: {reasons}")
    return Plan(sweep, tuple(groups), left_out)


def _hosts_order(group: Group) -> tuple[bool, bool, str]:
    """Groups of one network stand together, for its hosts are set up once; delayed ones first, for they may not run."""
    return bool(group.network), " " not in group.network, group.network


def _worlds(wanted: Any, most: int) -> list[int]:
    if wanted == "max":
        return [most]
    if wanted == "all":
        powers = [1 << power for power in range(most.bit_length()) if 1 << power < most]
        return [*powers, most]
    return [int(wanted)]


def _worked_out(axes: dict[str, Any], where: Place) -> dict[str, Any]:
    """The axes with every "auto" decided, and those that mean nothing here at one value."""
    whole = {**axes, "backend": where.backend, "device": where.device}
    if whole["network"]:  # between hosts that have no accelerators
        whole |= {"backend": "gloo", "device": "cpu"}
    if whole["size"] == "auto":
        whole["size"] = "gpu" if where.device == "cuda" else "cpu"
    if whole["unit"] == "auto":
        whole["unit"] = "epoch" if whole["skew"] in UNEVEN else "step"
    if whole["skew"] in ("even", "zero_input"):
        whole["skew_fraction"] = 0.0 if whole["skew"] == "even" else 1.0
    if whole["hook"] == "local":
        whole["subject"] = "none"
    return {each.name: whole[each.name] for each in fields(Cell) if each.name in whole}


def _cut(shared: str, cells: list[Cell]) -> list[Group]:
    """Groups of bearable size, each with one cell twice, and with the cells that may hang tried first.

    What is compared must have been measured together: subjects stay side by side, and so do the steps of one bucket cap
    where they are not too many.
    """
    pieces: list[list[Cell]] = [[]]
    for of_one_cap in _alike(cells, lambda cell: cell.cap_mib):
        fits = len(of_one_cap) <= MOST_VARIANTS
        for together in [of_one_cap] if fits else _alike(of_one_cap, _without_subject):
            if pieces[-1] and len(pieces[-1]) + len(together) > MOST_VARIANTS:
                pieces.append([])
            pieces[-1] += together
    groups = []
    for number, piece in enumerate(pieces, 1):
        name = shared if len(pieces) == 1 else f"{shared} · part {number}"
        sound = [cell for cell in piece if not known_trouble(cell.axes()) and cell.hook != "local"]
        twice = [(sound or piece)[0].again()]
        groups.append(Group(name, (*piece, *twice)))
    return groups


def _alike(cells: Iterable[Cell], key: Callable[[Cell], Hashable]) -> list[list[Cell]]:
    """The cells by their key, in the order in which the keys come first."""
    found: dict[Hashable, list[Cell]] = {}
    for cell in cells:
        found.setdefault(key(cell), []).append(cell)
    return list(found.values())


def _without_subject(cell: Cell) -> tuple[Any, ...]:
    return tuple(value for name, value in cell.axes().items() if name not in ("subject", "copy"))


# -- time


def seconds(group: Group, sweep: Sweep, cores: int, rounds: int | None = None) -> float:
    """About how long a group takes with so many rounds (by default the sweep's own)."""
    rounds = sweep.rounds if rounds is None else rounds
    crowd = max(1.0, group.world / cores) if group.cells[0].device == "cpu" else 1.0
    turns = sum(_TURN_S + _iteration_s(cell, crowd) * turn_iterations(group, sweep) for cell in group)
    longest = max(sweep.block_of(group.cells[0].workload), sweep.epoch)
    alone = ABOUT_MS[group.cells[0].workload] / 1e3 * group.world * longest
    starting = _START_S + group.world * (_START_PER_RANK_S + _BUILD_S * len(group.cells)) * crowd
    return starting + alone + turns * (rounds + WARM_BLOCKS)


def _iteration_s(cell: Cell, crowd: float) -> float:
    """An iteration of ranks that share cores. torch's ZeRO sends every parameter by itself unless it has views."""
    share = int(cell.size) / 400 if cell.size in COUNTS else 1.0
    alone = cell.subject == "torch" and cell.zero == "on" and cell.hook == "none" and cell.workload == "tiny"
    work_s = share * (ABOUT_MS[cell.workload] / 1e3 + (_BROADCAST_S * 400 * cell.world if alone else 0.0))
    return work_s * crowd + (_paced_s(cell) if cell.workload == "paced" else 0.0)


def _paced_s(cell: Cell) -> float:
    """What a paced iteration waits for, where half of what could overlap does."""
    made = profile(cell.size)
    compute_s = cell.pace * made.seconds
    if cell.hook in ALONE or not cell.network:
        return compute_s
    reduced, published = 2.0, 1.0 if cell.zero != "off" else 0.0
    sent_bytes = made.parameter_bytes * (reduced + published) * (cell.world - 1) / cell.world
    sending_s = 8 * sent_bytes / Network.of(1, cell.network).rate_bps
    return max(compute_s, sending_s) + min(compute_s, sending_s) / 2


def turn_iterations(group: Group, sweep: Sweep) -> int:
    """Iterations in one turn of one variant."""
    cell = group.cells[0]
    return 2 * sweep.epoch if cell.unit == "epoch" else sweep.block_of(cell.workload) + 1


def estimate(planned: Plan, cores: int, rounds: int | None = None) -> float:
    starting = sum(_HOSTS_S + _HOST_S * hosts / cores for hosts in planned.hosts.values())
    return starting + sum(seconds(group, planned.sweep, cores, rounds) for group in planned.groups)

