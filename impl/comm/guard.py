"""The failure guard of a process group: breaks waits off when a peer has been killed or frozen, and says which one.

On by default. ``JOINERY_FAILURE_DETECTION_S`` is the silence after which a rank counts as frozen, 5 s unless it is set;
0 turns the guard off. On another machine a rank that keeps the interpreter, as a large pickle does or a collection of
garbage, cannot be told from a frozen one: unless the user has said how long, it may take 30 s.
"""

from __future__ import annotations

import math
import os
import threading
import time
from weakref import WeakKeyDictionary

import torch.distributed as dist

from ..errors import CollectivesDiffer, PeerFailed, SharedError
from . import heartbeats, stalls
from . import store as stores
from .local_groups import global_ranks_of
from .losses import End, Loss, add_note, name_of
from .tally import tally_of

#: How many seconds of silence make a rank count as frozen; 0: no guard.
DETECTION = "JOINERY_FAILURE_DETECTION_S"
_DETECTION_S = 5.0
_ELSEWHERE_S = 30.0
#: who says more, or "inf", gets a day: the system's own clocks count no further than some weeks
_LONGEST_DETECTION_S = 86400.0
#: how long after a failed collective its cause may become known
_CAUSE_WITHIN_S = 2.0

#: what to do where a group cannot be used any more
REMEDY = "Start the job anew, or make a new process group on all ranks and build models, optimizers and contexts on it."
_UNWATCHED = (
    f"Which rank has failed is not known: the failure guard is off ({DETECTION}=0), or the ranks share no store "
    "through which they could find each other. Look for the first error in the ranks' logs."
)
_USUAL = {
    End.SILENT: "a stopped process, a machine that went down, or a network that failed",
    End.CLOSED: "killed by the system for want of memory or by hand, or aborted, as where collectives differ in size",
    End.RAISED: "an error in the program of that rank alone, such as a bad batch",
    End.LEFT: "fewer iterations on that rank than here; inside a Join they may differ",
}


def detection_s() -> float:
    """What the user has chosen. ValueError for anything but a number that is not negative."""
    said = os.environ.get(DETECTION, "")
    try:
        chosen = float(said) if said else _DETECTION_S
    except ValueError:
        chosen = -1.0
    if not chosen >= 0:
        raise ValueError(f"{DETECTION}={said!r} is not a number of seconds. Use 5, say, or 0 for no failure guard.")
    return min(chosen, _LONGEST_DETECTION_S)


class Guard:
    """Watches one group's waits for lost peers. A comm.pending.Watch."""

    def __init__(self, group: dist.ProcessGroup, beats: heartbeats.Heartbeats) -> None:
        self._beats = beats
        ranks = enumerate(global_ranks_of(group))
        self._name_of = {global_rank: name_of(rank, global_rank) for rank, global_rank in ranks}  # in group order
        self._members = stalls.members(self._name_of)
        self._tally = tally_of(group)
        self._stood = -math.inf  # when a wait here has been told last

    @property
    def store(self) -> dist.Store:
        """That of the world, by a connection on which no other thread of the program waits."""
        return self._beats.store

    def __call__(self, failure: Exception | None = None) -> None:
        """Raise ``PeerFailed`` if a peer is lost; if a collective has failed, look for the loss that explains it.

        Where ranks have waited for each other, and one that has noticed it has ended, it is ``CollectivesDiffer``.
        """
        if failure is not None:
            self.refuse_stall(self._beats.detection_s / 4)
        losses = self._beats.losses.interrupting(self._name_of, time.monotonic()) if failure is None else self.causes()
        if losses:
            raise self._affected(PeerFailed(self._describe(losses, failure)))
        if failure is not None:
            add_note(failure, self.unexplained())

    def stand(self, place: str, begun: float) -> None:
        """This rank has waited for this since then. ``CollectivesDiffer`` if all ranks wait for each other."""
        waited_s, half_s = time.monotonic() - begun, self._beats.detection_s / 2
        if waited_s < half_s:
            return
        self._stood = time.monotonic()
        if not self._goes_on_elsewhere():
            self._beats.stand(self._members, begun, place)
            self.refuse_stall(half_s)
        if waited_s >= self._beats.detection_s and self._beats.cut_off:
            self._refuse_cut_off()

    def _goes_on_elsewhere(self) -> bool:
        """Whether another thread, which does not wait, uses another group of the same ranks: what this one waits for
        may depend on what that one will do."""
        this, alive = threading.get_ident(), {thread.ident for thread in threading.enumerate()}
        groups = [reference() for reference in _guards.keyrefs()]  # that thread may add one meanwhile
        others = [guard for group in groups if group is not None and (guard := _guards.get(group)) is not None]
        return any(
            guard._tally.thread in alive - {this} and time.monotonic() - guard._stood > stalls.FRESH_S
            for guard in others if guard is not self and guard._members == self._members
        )  # fmt: skip

    def _refuse_cut_off(self) -> None:
        """``PeerFailed`` if this rank waits for peers that it has never met, and cannot ask for any more."""
        unmet = self._unmet()
        if unmet:
            raise self._affected(PeerFailed(
                f"This rank has waited for {self._beats.detection_s:g} s and more, and has lost the store of its "
                f"process group before it met {unmet}. Usual cause: the network or the link between their host and "
                f"this one is down, or the store's host is. {REMEDY}"
            ))  # fmt: skip

    def _unmet(self) -> str:
        """The neighbours of this group that this process has never met."""
        return " and ".join(self._name_of[rank] for rank in sorted(self._beats.missing) if rank in self._name_of)

    def refuse_stall(self, for_s: float) -> None:
        """``CollectivesDiffer`` if all ranks of the group have stood in their waits for ``for_s`` seconds."""
        waits = self._beats.waits.stalled(self._members, self._name_of, for_s, time.monotonic())
        if waits:
            self._beats.tell_stall(self._members, waits)
            error = CollectivesDiffer(
                "The ranks wait for each other: all have waited for half of the detection time and more, and nothing "
                f"moves between them. Waiting: {stalls.describe(waits, self._name_of)}. Their collectives do not "
                "match: one was left out, repeated, or of another kind or size on some rank. Usual cause: a branch "
                "that not all ranks take, a model or optimizer that the join context around it does not list, a "
                "communication hook or a collective of the program's own that differs between ranks, or a process "
                "group that changes what it is given. "
                f"JOINERY_STRICT=1 may tell more. {REMEDY}"
            )
            error.among = frozenset(self._name_of)
            raise self._affected(error)

    def mark_affected(self) -> None:
        """This rank is about to fail because another has."""
        self._beats.mark_affected()

    def _affected(self, error: SharedError) -> SharedError:
        """What this rank fails by because another has."""
        self.mark_affected()
        return error

    def causes(self) -> list[Loss]:
        """A collective has failed on this rank: the losses that explain it, if they become known in two seconds.

        Of a peer that was not met yet, in two seconds and the detection time.
        """
        self.mark_affected()
        met = self._beats.unheard.isdisjoint(self._name_of)
        return self._beats.losses.causes(self._name_of, _CAUSE_WITHIN_S + (0.0 if met else self._beats.detection_s))

    def lost(self) -> set[int]:
        """The group ranks of this group that have stopped."""
        return {place for place, rank in enumerate(self._name_of) if self._beats.losses.has(rank)}

    def begin_anew(self) -> None:
        """The survivors have formed another group."""
        self._beats.losses.begin_anew()

    def describe(self, losses: list[Loss]) -> str:
        """What has happened, for people."""
        detection = self._beats.detection_s
        return "; ".join(loss.describe(self._name_of[loss.rank], detection) for loss in losses)

    def unexplained(self) -> str:
        """What to say of a failed collective whose cause is not known."""
        missing = self._unmet()
        if missing:
            return (
                f"Which rank has failed is not known for certain. {missing} had given no sign of life "
                "at all: usual cause: it ended before it built its model. Look at the end of its log first."
            )
        return (
            "Every rank of this group still answers. Usual cause: a network that failed for a moment, or ranks whose "
            "collectives do not match (another order, size or dtype)."
        )

    def _describe(self, losses: list[Loss], failure: Exception | None) -> str:
        own = self._beats.rank
        if any(loss.rank == own for loss in losses):
            return (
                f"This rank had stood still for longer than {self._beats.detection_s:g} s, so the others have given "
                f"it up. Usual cause: a stopped process or virtual machine. Set {DETECTION} to more than such a stop "
                f"lasts. {REMEDY}"
            )
        noticed = "" if failure is None else f" On this rank a collective failed: {str(failure)[:200]}."
        return f"{self.describe(losses)}.{noticed} Usual cause: {_USUAL[losses[0].end]}. Look at its log. {REMEDY}"


def explain(group: dist.ProcessGroup) -> str:
    """A collective of the group has failed on this rank: what is known of the cause. It takes as long as
    ``Guard.causes``."""
    guard = guard_of(group)
    if guard is None:
        return _UNWATCHED
    losses = guard.causes()
    return f"Before this, {guard.describe(losses)}." if losses else guard.unexplained()


_guards: WeakKeyDictionary[dist.ProcessGroup, Guard | None] = WeakKeyDictionary()


def guard_of(group: dist.ProcessGroup) -> Guard | None:
    """The guard of this group, begun where it was not; None where it is off, or nothing is known of the group."""
    try:
        return _guards[group]
    except KeyError:
        guard = _guards[group] = _new(group)
        return guard


def _new(group: dist.ProcessGroup) -> Guard | None:
    if not global_ranks_of(group) or group.size() == 1:
        return None
    detection = detection_s()
    elsewhere = detection if os.environ.get(DETECTION) else _ELSEWHERE_S
    beats = heartbeats.heartbeats_of_world(detection, elsewhere)
    return None if beats is None else Guard(group, beats)


def store_with_deadline(group: dist.ProcessGroup) -> stores.StoreWithDeadline | None:
    """The store that the ranks of a group share, if any.

    One in another process counts as gone once it has not answered for the detection time; the guard says why. So it is
    asked by the guard's own connection: on the program's another thread may wait for a key, for as long as it likes.
    """
    store = stores.shared_by(group)
    if store is None:
        return None
    guard = guard_of(group)
    if guard is None or stores.port_of(store) is None:
        return stores.StoreWithDeadline(store, None)
    return stores.StoreWithDeadline(guard.store, detection_s())
