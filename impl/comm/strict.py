"""Strict mode: before data move, the ranks of a group agree on what comes next, and after it on its result.

``JOINERY_STRICT=1`` turns it on, on all ranks alike. Ranks whose collectives do not match would mix their data, wait
for each other, or be aborted by Gloo. Each collective of this package is therefore preceded by a message that holds its
fingerprint: kind, label, dtype, size and source; and followed by one that holds what the rank has given and got. The
second tells of a collective that was left out, repeated, swapped or damaged below this package, before its result is
used. They go over a second group of the same ranks, which carries nothing else and so is always in step. To that end
each collective is waited for as soon as it has started. What the user's own code starts is not seen.

    row after a collective    [ result | sent | found | collectives | given: sum, magnitudes | got: sum ]

``result`` is a digest of what must be equal on all ranks. ``sent`` is a digest of what this rank has sent, and
``found`` of the place in its result where that must be. ``collectives`` is how many the group itself has counted
meanwhile. What all ranks have given to a sum or an exchange must add up to what they have got, but for rounding.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from ..errors import CollectivesDiffer
from .guard import REMEDY
from .local_groups import global_ranks_of, new_local_group
from .pending import Pending, Watch, watch_of
from .ranks import Team

_LONGEST_VIEW = 256
_DEVICE = re.compile(r" on \w+(:\d+)?$")
_ROUNDINGS = 64  # of adding up a buffer in double precision, in its own last places


@dataclass(frozen=True)
class Expected:
    """A collective as its ranks compare it. The tensors are looked at before it begins, or once it has ended."""

    kind: str
    buffer: torch.Tensor  # its dtype and size are equal on all ranks
    more: object = ""  # and so is this
    alike: bool = True  # whether all ranks get the same result
    sent: torch.Tensor | None = None  # by this rank
    found: torch.Tensor | None = None  # where in its result that is to be
    given: torch.Tensor | None = None  # by this rank: what all have given adds up to what all have got
    got: torch.Tensor | None = None  # this rank's part of that


#: by the group that is watched over, that over which its ranks agree
_agreements: WeakKeyDictionary[dist.ProcessGroup, Team | None] = WeakKeyDictionary()


def agree(team: Team, label: str, expected: Expected) -> Callable[[Pending], Pending] | None:
    """Go on if all ranks are about to start this collective; else ``CollectivesDiffer`` on every one of them.

    What is returned is to be handed it as soon as it has started. It waits for the end and compares:
    ``CollectivesDiffer`` on every rank if the collective did not do what it should. None where nothing is compared.
    """
    agreement = _agreement_of(team)
    if agreement is None:
        return None
    kind, buffer, more = expected.kind, expected.buffer, expected.more
    what = f"{team.tally.place_of(label)} ({kind} of {buffer.numel()} x {buffer.dtype}{more})"
    alike = f"{kind}|{_without_role(label)}|{buffer.dtype}|{buffer.numel()}|{more}"
    number = torch.tensor([_digest(alike.encode())], dtype=torch.int64, device="cpu")
    numbers = _gathered(agreement, number, f"the other ranks' agreement on {what}", watch_of(team))
    if len(numbers.unique()) > 1:
        raise _differing(team, _complaint(team, agreement, what))
    counted, given, sent = _counted(team.group), _sums(expected.given), _digest_of(expected.sent)

    def confirm(pending: Pending) -> Pending:
        result = pending.wait()
        collectives = _counted(team.group) - counted
        digest, found = _digest_of(result) if expected.alike else 0, _digest_of(expected.found)
        marks = torch.tensor([digest, sent, found, collectives], dtype=torch.int64, device="cpu")
        sums = torch.tensor([*given, _sums(expected.got)[0]], dtype=torch.float64, device="cpu")
        row = torch.cat((marks, sums.view(torch.int64)))
        rows = _gathered(agreement, row, f"the other ranks' results of {label}", watch_of(team))
        if _differ(rows, result.dtype):
            damage = "" if sent == found else ", and what this rank sent is not in it"
            gave = f"{team.tally.place_of(label)} gave {digest:x} in {collectives} collectives of the group{damage}"
            raise _differing(team, _other_results(team, agreement, gave))
        return pending

    return confirm


def _differ(rows: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the ranks' rows tell of a collective that did something else than it should."""
    results, sent, found, collectives = rows[:, :4].unbind(dim=1)
    if len(results.unique()) > 1 or len(collectives.unique()) > 1 or not torch.equal(sent, found):
        return True
    given, magnitude, got = rows[:, 4:].contiguous().view(torch.float64).sum(dim=0).tolist()
    if not all(map(math.isfinite, (given, magnitude, got))):
        return False  # it has overflowed on the way
    return bool(abs(got - given) > (len(rows) + _ROUNDINGS) * _last_place(dtype) * magnitude)


def addable(buffer: torch.Tensor, op: Any) -> torch.Tensor | None:
    """What is given to a reduction, if the ranks' numbers add up to its result: narrow integers may wrap around."""
    wide = buffer.is_floating_point() or buffer.is_complex() or buffer.dtype == torch.int64
    return buffer if wide and op == dist.ReduceOp.SUM else None


def _sums(buffer: torch.Tensor | None) -> tuple[float, float]:
    """The elements of a buffer added up, and their magnitudes."""
    if buffer is None:
        return 0.0, 0.0
    exact = _numbers(buffer).double()
    return exact.sum().item(), exact.abs().sum().item()


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements, one after the other, two numbers for each that is complex."""
    flat = tensor.cpu().reshape(-1)
    return torch.view_as_real(flat).view(-1) if flat.is_complex() else flat


def _last_place(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else torch.finfo(torch.float64).eps


def _counted(group: dist.ProcessGroup) -> int:
    """How many collectives the group itself has counted; 0 where its backend does not."""
    with suppress(AttributeError, RuntimeError):
        return int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]
    return 0


def _digest_of(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else _digest(_numbers(tensor).view(torch.uint8).numpy())


def _digest(content: Any) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=7).digest(), "big")


def _without_role(label: str) -> str:
    """The part of a label that is equal on all ranks: not the device, nor whether it is a live or a joined rank."""
    return "Join: message" if label.startswith("Join: ") else _DEVICE.sub("", label)


def _agreement_of(team: Team) -> Team | None:
    if team.size == 1:
        return None
    if team.group not in _agreements:
        _agreements[team.group] = _new_agreement(team)
    return _agreements[team.group]


def _new_agreement(team: Team) -> Team | None:
    """Made by all members with their first collective; None for a group that torch.distributed was never told of."""
    members = global_ranks_of(team.group)
    if not members:
        return None
    return Team.of(new_local_group(members, backend="gloo", group_desc="joinery: strict mode"))


def _differing(team: Team, text: str) -> CollectivesDiffer:
    error = CollectivesDiffer(text)
    error.among = frozenset(global_ranks_of(team.group))
    return error


def _complaint(team: Team, agreement: Team, what: str) -> str:
    return (
        f"The ranks are about to start different collectives (rank {team.rank} of {team.size}). "
        f"{_all_views(agreement, what)}. No data were mixed. Usual cause: a branch that not all ranks take (an "
        "evaluation, a skipped step), options or hooks that differ between ranks, or another order of models. "
        f"{REMEDY}"
    )


def _other_results(team: Team, agreement: Team, what: str) -> str:
    return (
        "The ranks have agreed on a collective, and it did not do what it should: its result differs between ranks, "
        f"or does not follow from what they gave to it (rank {team.rank} of {team.size}). "
        f"{_all_views(agreement, what)}. No rank has used the result. Usual cause: a process group, a hook or a "
        "library below this package that leaves out, repeats, swaps or changes what it is given, a collective of the "
        f"program's own on the same group, or faulty memory or network. {REMEDY}"
    )


def _all_views(agreement: Team, what: str) -> str:
    by_view: dict[str, list[int]] = {}
    for rank, view in enumerate(_views(agreement, what)):
        by_view.setdefault(view, []).append(rank)
    return "; ".join(f"{_named(ranks)}: {view}" for view, ranks in by_view.items())


def _named(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _views(agreement: Team, what: str) -> list[str]:
    """What each rank is about to start, in rank order."""
    text = what.encode()[:_LONGEST_VIEW]
    row = torch.zeros(_LONGEST_VIEW, dtype=torch.uint8, device="cpu")
    row[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    rows = _gathered(agreement, row, "the other ranks' views")
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows.tolist()]


def _gathered(team: Team, row: torch.Tensor, label: str, watch: Watch | None = None) -> torch.Tensor:
    """The rows of all ranks, in rank order: a sum to which each gives zeros but for its own."""
    rows = row.new_zeros(team.size, len(row))
    rows[team.rank] = row
    return Pending(label, rows, team.group.allreduce([rows]), team).wait(watch)
