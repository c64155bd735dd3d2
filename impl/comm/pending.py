"""A collective in flight: its label, the buffer it fills, and the handle to wait for."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn, Protocol

import torch

from ..errors import PeerFailed
from . import streams
from .losses import add_note
from .ranks import Team
from .tally import Tally


class Watch(Protocol):
    """Called again and again while a wait lasts; raises when waiting on makes no sense any more (a peer has failed)."""

    def __call__(self, failure: Exception | None = None, /) -> None:
        """``failure`` is that of the collective, where it has failed: it may raise one that says whose fault it is."""


_WATCH_EVERY_S = 0.05
_WATCH_AT_LEAST_EVERY_S = 1.0
_WATCHES_A_SECOND = 2000  # of all ranks of a team together
_FIRST_NAP_S = 0.00001
_LONGEST_NAP_S = 0.0005
#: what torch's C++ code says to a Work, always: no other limit than the group's own
_NO_LIMIT = timedelta(0)


def until_next_look(waited_s: float, ranks: int) -> float:
    """Seconds from one look of a watch to the next.

    A watch asks the store that all ranks share. So a wait that has lasted long looks more seldom, and so does each of
    many ranks: a failure is noticed after 50 ms, or 10 % of what the wait has lasted, or 0.5 ms for each rank of the
    team, whichever is longest, and after one second at the latest.
    """
    return min(max(_WATCH_EVERY_S, waited_s / 10, ranks / _WATCHES_A_SECOND), _WATCH_AT_LEAST_EVERY_S)


class Pending:
    """A started collective. The buffer must not be touched between start and ``wait``.

    Exactly one ``Pending`` owns the reference that keeps ``buffer`` alive while the backend works on it.
    """

    __slots__ = ("_result_in_future", "_team", "buffer", "label", "work")

    def __init__(
        self,
        label: str,
        buffer: torch.Tensor,
        work: Any,
        team: Team,
        *,
        result_in_future: bool = False,
    ) -> None:
        """``result_in_future``: the backend may leave the result in its future only (see ``take``)."""
        if work is not None:
            tally = Tally.latest = team.tally
            tally.started += 1
            tally.label = label
            tally.thread = threading.get_ident()
        self._result_in_future = result_in_future
        self._team = team
        self.label = label
        self.buffer = buffer
        self.work = work  # a torch.distributed.Work; None where nobody else takes part and all is done

    def wait(self, watch: Watch | None = None) -> torch.Tensor:
        """Wait for the end and return the buffer.

        With ``watch`` the wait can be cut short: the watch is called now and then (``until_next_look``) and may raise.
        Without one it is what the team has: the watch of a join block, or the failure guard, where there is one.
        On an accelerator the wait orders the current stream behind the collective, as torch's own handles do; as a
        rule it does not block the host, so there is nothing to watch.
        """
        if self.work is None:
            return self.buffer
        watch = watch or watch_of(self._team)
        if watch is not None and not streams.is_accelerated(self.buffer.device):
            self._wait_in_slices(watch)
        else:
            if watch is not None and self._team.blocks_host:
                self._poll(self.work.is_completed, watch)
            self._end(watch)  # a failed work counts as completed: it is this wait that tells
        if self._result_in_future:
            self._take_from_future(watch)
        return self.buffer

    def read(self, watch: Watch | None = None) -> list[Any]:
        """Wait until the host knows the result, watched like ``wait``; returns the buffer's elements.

        On an accelerator the copy to the host runs on a stream of its own, so that the host waits for this collective
        only and not for the computation queued after it.
        """
        watch = watch or watch_of(self._team)
        if not streams.is_accelerated(self.buffer.device):
            return self.wait(watch).tolist()  # type: ignore[no-any-return]
        if watch is not None:
            self._poll(self.work.is_completed, watch)
        with streams.reading(self.buffer.device):
            return self.wait(watch).tolist()  # type: ignore[no-any-return]

    def future(self) -> torch.futures.Future:
        """The backend's future of a list holding the buffer. Its value is to be handed to ``take``."""
        return self.work.get_future()  # type: ignore[no-any-return]

    def take(self, value: Any) -> None:
        """Bring the value of the backend's future into the buffer, if the result is there and not here.

        The all-reduces of a process group written in Python may leave the tensors that they were given as they are:
        torch's reducer reads the future.
        """
        found = value[0] if isinstance(value, (list, tuple)) and value else value
        if not self._result_in_future or found is self.buffer or not isinstance(found, torch.Tensor):
            return
        target = self.buffer
        if target.is_complex() and not found.is_complex():
            target = torch.view_as_real(target)  # as torch.distributed shows it to a backend
        if found.numel() != target.numel():
            raise RuntimeError(
                f"The process group's future of an all-reduce holds a tensor of {found.numel()} elements where "
                f"{target.numel()} were to be reduced ({self.label}). A Work's future must hold its result."
            )
        target.copy_(found.view_as(target))

    def _take_from_future(self, watch: Watch | None) -> None:
        try:
            future = self.future()
        except (AttributeError, NotImplementedError, RuntimeError):  # it offers none: the result is in the buffer
            return
        if watch is not None:
            self._poll(future.done, watch)
        self.take(future.wait())

    def _wait_in_slices(self, watch: Watch) -> None:
        """A backend for CPU tensors keeps the collective going when a slice of the wait runs out."""
        begun = started = time.monotonic()
        try:
            while True:
                slice_s = until_next_look(started - begun, self._team.size)
                try:
                    self.work.wait(timedelta(seconds=slice_s))
                    return
                except Exception as error:
                    if _is_of_a_handler(error, self.work):
                        raise
                    # one that ran out lasted about its full time and left the work unfinished; all else is a failure
                    if time.monotonic() - started < slice_s / 2:
                        fail(error, watch, self._place, self._team)
                if self.work.is_completed():  # perhaps just after its slice ran out, which is no failure
                    self._end(watch)
                    return
                look(watch, self._place, self._team, begun)
                started = time.monotonic()
        except BaseException:
            if not self.work.is_completed():  # Ctrl-C, say: the program is to end, and may not wait for it then
                self._team.abandon()
            raise

    def _end(self, watch: Watch | None) -> None:
        try:
            self.work.wait(_NO_LIMIT)
        except Exception as error:
            fail(error, watch, self._place, self._team)

    def _poll(self, is_over: Callable[[], bool], watch: Watch) -> None:
        poll_on_host(is_over, watch, self._place, self._team)

    @property
    def _place(self) -> str:
        return self._team.tally.place_of(self.label)


def watch_of(team: Team) -> Watch | None:
    """What looks out for failed peers now: the watch of the innermost join block over the team, or its guard."""
    blocks = team.tally.blocks
    return blocks[-1].watch if blocks else team.guard


def poll_on_host(
    is_over: Callable[[], bool], watch: Watch, place: str, team: Team, *, on_peers: bool = True
) -> None:
    """Wait without a timed wait, which ends in an abort of the communicator on NCCL.

    ``on_peers``: it is others of the team that this waits for.
    """
    nap = _FIRST_NAP_S
    begun = time.monotonic()
    next_look = begun + until_next_look(0, team.size)
    while not is_over():
        if time.monotonic() >= next_look:
            look(watch, place, team, begun, on_peers=on_peers)
            next_look = time.monotonic() + until_next_look(time.monotonic() - begun, team.size)
        time.sleep(nap)
        nap = min(nap * 1.3, _LONGEST_NAP_S)


def look(watch: Watch, place: str, team: Team, begun: float, *, on_peers: bool = True) -> None:
    """Call the watch of a wait that has gone on since then, and see whether all ranks wait for each other."""
    with _placed(place, team):
        watch()
        if on_peers and team.guard is not None:
            team.guard.stand(place, begun)


def fail(error: Exception, watch: Watch | None, place: str, team: Team, *, elsewhere: bool = False) -> NoReturn:
    """Raise for a collective that failed: what the watch knows of a peer says more than a lost connection.

    ``elsewhere``: perhaps one on another group, of which the team's peers have learned nothing.
    """
    if watch is None:
        raise error
    team.tally.failed |= not elsewhere
    try:
        with _placed(place, team):
            watch(*([error] if isinstance(error, RuntimeError) else []))
    except Exception as known:
        raise known from error
    add_note(error, f"The collective that failed: {place}.")
    raise error


@contextmanager
def _placed(place: str, team: Team) -> Iterator[None]:
    """What a watch raises says what was waited for, and the team is given up."""
    try:
        yield
    except BaseException as error:  # Ctrl-C as well
        where = f"This rank was waiting for: {place}."
        if isinstance(error, PeerFailed):
            error.args = (f"{error} {where}",)
        else:
            add_note(error, where)
        team.abandon()
        raise


def _is_of_a_handler(error: Exception, work: Any) -> bool:
    """Whether a signal handler of the program's has raised what came out of the call of ``work.wait``.

    Python runs it when the call returns, after the time limit as a rule: the error looks like that of the limit.
    """
    assert error.__traceback__ is not None
    below = error.__traceback__.tb_next  # none of what C++ code raises
    return below is not None and below.tb_frame.f_code is not getattr(work.wait, "__code__", None)


_LAST_NAPS, _LAST_NAP_S = 5, 0.01


@atexit.register
def _let_go() -> None:
    """Let the backend's threads let go of the last collectives' tensors before the interpreter is taken down.

    To drop a tensor that Python knows, a thread of Gloo's has to have the interpreter. One that still waits for it at
    the end is ended by force, and the program with it: "terminate called without an active exception", signal 6, after
    all has gone well. Napping hands the interpreter over; more than once, should the machine be busy.
    """
    if Tally.latest is not None:
        for _ in range(_LAST_NAPS):
            time.sleep(_LAST_NAP_S)
