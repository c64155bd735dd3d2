"""Strict mode: before data move, the ranks of a group agree on which collective comes next.

``JOINERY_STRICT=1`` turns it on, on all ranks alike. Ranks whose collectives do not match would mix their data, wait
for each other, or be aborted by Gloo. Each collective of this package is then preceded by a message that holds its
fingerprint: kind, label, dtype, size, source and number. It goes over a second group of the same ranks, which carries
nothing else and so is always in step. It also holds a digest of the last result that must be equal on all ranks, which
tells of a collective that was left out, swapped or damaged below this package. To that end each collective is waited
for as soon as it has started. What the user's own code starts is not seen.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from ..errors import CollectivesDiffer
from .guard import REMEDY
from .pending import Pending
from .ranks import Team

#: "1" turns strict mode on
STRICT = "JOINERY_STRICT"
_LONGEST_VIEW = 256
_DEVICE = re.compile(r" on \w+(:\d+)?$")

#: whether it is on; read once, for every collective asks
enabled = os.environ.get(STRICT, "0").lower() not in ("", "0", "off", "false", "no")


@dataclass
class _Agreement:
    """The group over which the ranks of another one agree, and how many collectives they have agreed on."""

    team: Team
    agreed: int = 0
    #: the last result that must be equal on all ranks: its collective, and a digest that fits into an int64
    result: tuple[str, int] = ("", 0)


#: by the group that is watched over; a group is its own entry's key only while it lives
_agreements: WeakKeyDictionary[dist.ProcessGroup, _Agreement | None] = WeakKeyDictionary()


def agree(team: Team, kind: str, label: str, buffer: torch.Tensor, more: object = "") -> None:
    """Go on if all ranks are about to start this collective; else ``CollectivesDiffer`` on every one of them."""
    agreement = _agreement_of(team)
    if agreement is None:
        return
    what = f"{team.tally.place_of(label)} ({kind} of {buffer.numel()} x {buffer.dtype}{more})"
    alike = f"{kind}|{_without_role(label)}|{buffer.dtype}|{buffer.numel()}|{more}|{agreement.agreed}"
    number, (after, digest) = _digest(alike.encode()), agreement.result
    ends = torch.tensor([number, -number, digest, -digest], dtype=torch.int64, device="cpu")
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX  # type: ignore[assignment]
    waiting_for = f"the other ranks' agreement on {what}"
    work = agreement.team.group.allreduce([ends], options)
    highest, lowest, most, least = Pending(waiting_for, ends, work, agreement.team).wait().tolist()
    agreement.agreed += 1
    if most != -least:
        raise CollectivesDiffer(_other_results(team, agreement, f"{after} gave {digest:x}"))
    if highest != -lowest:
        raise CollectivesDiffer(_complaint(team, agreement, what))


def started(team: Team, pending: Pending, *, alike: bool) -> Pending:
    """Wait for a collective. ``alike``: its result must be equal on all ranks; they compare it next time."""
    agreement = _agreement_of(team)
    if agreement is not None:
        result = pending.wait()
        if alike:
            content = result.detach().cpu().reshape(-1).view(torch.uint8).numpy()
            agreement.result = (team.tally.place_of(pending.label), _digest(content))
    return pending


def _digest(content: Any) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=7).digest(), "big")


def _without_role(label: str) -> str:
    """The part of a label that is equal on all ranks: not the device, nor whether it is a live or a joined rank."""
    return "Join: message" if label.startswith("Join: ") else _DEVICE.sub("", label)


def _agreement_of(team: Team) -> _Agreement | None:
    if team.size == 1:
        return None
    if team.group not in _agreements:
        _agreements[team.group] = _new_agreement(team)
    return _agreements[team.group]


def _new_agreement(team: Team) -> _Agreement | None:
    """Made by all members with their first collective; None for a group that torch.distributed was never told of."""
    try:
        members = dist.get_process_group_ranks(team.group)
    except (ValueError, KeyError, RuntimeError):
        return None
    group = dist.new_group(members, backend="gloo", use_local_synchronization=True, group_desc="joinery: strict mode")
    return _Agreement(Team.of(group))


def _complaint(team: Team, agreement: _Agreement, what: str) -> str:
    return (
        f"The ranks are about to start different collectives (rank {team.rank} of {team.size}, collective "
        f"{agreement.agreed} since strict mode began on this group). {_all_views(agreement, what)}. No data were "
        "mixed. Usual cause: a branch that not all ranks take (an evaluation, a skipped step), options or hooks that "
        f"differ between ranks, or another order of models. {REMEDY}"
    )


def _other_results(team: Team, agreement: _Agreement, what: str) -> str:
    return (
        "The ranks have agreed on a collective whose result must be equal on all of them, and have got different ones "
        f"(rank {team.rank} of {team.size}). {_all_views(agreement, what)}. Usual cause: a process group, a hook or a "
        "library below this package that leaves out, swaps or changes what it is given, a collective of the program's "
        f"own on the same group, or faulty memory or network. {REMEDY}"
    )


def _all_views(agreement: _Agreement, what: str) -> str:
    by_view: dict[str, list[int]] = {}
    for rank, view in enumerate(_views(agreement, what)):
        by_view.setdefault(view, []).append(rank)
    return "; ".join(f"{_named(ranks)}: {view}" for view, ranks in by_view.items())


def _named(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _views(agreement: _Agreement, what: str) -> list[str]:
    """What each rank is about to start, in rank order."""
    text = what.encode()[:_LONGEST_VIEW]
    row = torch.zeros(_LONGEST_VIEW, dtype=torch.uint8, device="cpu")
    row[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    team = agreement.team
    rows = torch.zeros(team.size, _LONGEST_VIEW, dtype=torch.uint8, device="cpu")
    rows[team.rank] = row
    work = team.group.allreduce([rows])  # zeros but for one's own row: a gathering
    Pending("the other ranks' views", rows, work, team).wait()
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows.tolist()]
