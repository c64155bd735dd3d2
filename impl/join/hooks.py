"""What takes part in a join context: Joinable and JoinHook, as torch names them, and the hook of our own followers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist


class JoinHook:
    """What a joinable does on a rank that has run out of inputs. Both entry points do nothing unless overridden."""

    def main_hook(self) -> None:
        """Stand in for one iteration of the ranks that are still active: start the same collectives, add nothing.

        Runs once per iteration that this rank lacks (JOIN-025).
        """

    def post_hook(self, is_last_joiner: bool) -> None:
        """Finish, once per rank, after every rank has run out of inputs.

        Args:
            is_last_joiner: True on each rank that ran as many iterations as any other (JOIN-030).
        """


@dataclass(frozen=True)
class BrokenOff:
    """An iteration that this rank began and that an exception ended, while its peers go on with it."""

    #: what was broken off and by what, for people: "forward ended with KeyError: ..."
    what: str
    #: whether this rank had started collectives of it, so that joined ranks are in it, too
    shadowed: bool


class FollowingHook(JoinHook):
    """The hook of a *follower*: a joinable of this package whose joined ranks are told each act before it begins.

    It is ``follow`` that shadows. ``main_hook`` is called, too, once per iteration that this rank lacks, for those who
    wrap or replace it; it starts nothing. See "how joined ranks follow" in ARCHITECTURE.md.
    """

    #: Names of the follower's acts, the same on every rank; an act is known by its place in this tuple.
    acts: tuple[str, ...] = ()
    #: True if the follower's acts begin an iteration (DDP), False if they end one (ZeRO).
    leads: bool = True

    def alike(self) -> object:
        """What all ranks must list alike, such as which of several models it is; it reads the same on them."""
        return None

    def follow(self, act: int) -> None:
        """On a joined rank: perform the shadow of this act, the same collectives as on a live rank."""
        raise NotImplementedError(f"{type(self).__name__} is a FollowingHook and must define follow(act)")

    def begins(self, iterations: int) -> None:
        """On a joined rank: so many iterations of the follower begin on the others."""

    def entered(self) -> None:
        """The block begins. Raises where the follower, as it is now, cannot take part in it."""

    def leaving(self) -> None:
        """This rank has run out of inputs. Raises where others wait in what the follower has not finished."""

    def broken_off(self) -> BrokenOff | None:
        """On a live rank, between iterations: what an exception has broken off since the block began, if anything."""
        return None

    def left_open(self) -> bool:
        """On a live rank: whether its last iteration here was to be reduced, and has not come to its backward."""
        return False


class _JoinConfig(NamedTuple):
    """What a join context has told a joinable."""

    enable: bool
    throw_on_early_termination: bool
    is_first_joinable: bool

    @staticmethod
    def construct_disabled_join_config() -> _JoinConfig:
        """The config of a joinable that no context has bound: all three flags are False."""
        return _JoinConfig(enable=False, throw_on_early_termination=False, is_first_joinable=False)


class _FollowedJoinConfig(_JoinConfig):
    """That of a context whose joined ranks are told each act. A copy of a joinable is in no block: none knows of it."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return _JoinConfig.construct_disabled_join_config, ()


class Joinable(ABC):
    """Base of everything that can be listed in a join context.

    A subclass defines ``join_hook``, ``join_device`` and ``join_process_group``, and a constructor of its own that
    calls this one (JOIN-002). Each iteration it calls ``Join.notify_join_context(self)`` before its own collectives.
    """

    #: What the most recent context has told this joinable. Only bindings.py assigns it after construction.
    _join_config: _JoinConfig
    #: That context's session, of a follower always a ``Session``; None outside. Only bindings.py assigns it.
    _join_session: Any = None
    #: What the contexts around have put on this joinable, the innermost last. Only bindings.py reads and assigns it.
    _join_bindings: tuple[Any, ...] = ()

    @abstractmethod
    def __init__(self) -> None:
        super().__init__()
        self._join_config = _JoinConfig.construct_disabled_join_config()
        self._join_session = None
        self._join_bindings = ()

    @abstractmethod
    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Make the hook that serves one context.

        Args:
            kwargs: all extra keywords given to ``Join``, the same for every joinable; ignore those meant for others.
        """

    @property
    @abstractmethod
    def join_device(self) -> torch.device:
        """The device for the context's own small collectives."""

    @property
    @abstractmethod
    def join_process_group(self) -> dist.ProcessGroup:
        """The process group whose ranks join; the same for all joinables of a context."""


class Follower(Joinable):
    """A joinable of this package. Its joined ranks are told each act, which only a ``Join`` of this package does.

    Another package's ``Join`` enables a joinable by assigning its config; that is where it is refused.
    """

    #: what ``_join_config`` reads
    _followed_config: _JoinConfig
    #: what ``join_hook`` has made last; a subclass may hand out one of its own around it
    _following_hook: FollowingHook | None = None

    @property
    def _join_config(self) -> _JoinConfig:
        return self._followed_config

    @_join_config.setter
    def _join_config(self, config: _JoinConfig) -> None:
        if config.enable and not isinstance(config, _JoinConfig):
            name, home = type(self).__name__, __name__.split(".")[0]
            raise TypeError(
                f"This {name} is listed in the Join of {type(config).__module__}, which knows nothing of how its "
                "joined ranks follow the others: with uneven inputs they would wait for each other until the group's "
                f"timeout. Use the Join of its own package: from {home} import Join."
            )
        self._followed_config = _JoinConfig(*config)


def following_hook(joinable: Joinable, hook: JoinHook) -> FollowingHook | None:
    """What follows a joinable whose ``join_hook`` has just returned ``hook``; None for a plain one.

    TypeError for a follower whose subclass has a hook of its own in place of ours.
    """
    if isinstance(hook, FollowingHook) or not isinstance(joinable, Follower):
        return hook if isinstance(hook, FollowingHook) else None
    if joinable._following_hook is None:
        raise TypeError(
            f"{type(joinable).__name__}.join_hook returns a {type(hook).__name__} without having called "
            "super().join_hook(), whose hook lets ranks that have run out follow the others. Call it, and call its "
            "post_hook from that of your own."
        )
    return joinable._following_hook
