"""What an iteration knows of the ranks that take part in it, and what it says to those that have joined."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from ..comm.pending import Watch
from ..comm.ranks import GroupRank, Team
from ..join import Joinable
from ..join.session import Session


class Stage(IntEnum):
    """The acts of a DDP model inside a join; the value is the act's number."""

    REPLAN = 0
    BUFFERS = 1
    BUFFERS_AFTER = 2
    BUCKETS = 3
    BUCKET = 4
    FINISH = 5
    DELAYED = 6


class Iteration:
    """A model's iterations, one after the other, seen from the ranks. Outside a join it gives the ordinary answers."""

    #: the ranks that gradients are averaged over
    team: Team
    #: the join block that the model is in, if any; the context sets it through the model
    session: Session | None = None
    #: whether an average divides by the team's size even after ranks have run out; set by the latest join hook
    #: (DDPJ-012)
    divides_by_initial_world_size = True
    #: whether only buckets are sent in a backward. Else other stages come between the roll call and the reduction
    buckets_only = True

    def __init__(self, joinable: Joinable) -> None:
        """``joinable`` is the model as its join contexts list it."""
        self.joinable = joinable

    # -- the ranks

    @property
    def wants_reductions(self) -> bool:
        """Whether the user wants backwards to be synchronised now; not so under ``no_sync``."""
        return bool(getattr(self.joinable, "require_backward_grad_sync", True))

    @property
    def reduces_alone(self) -> bool:
        """Whether only this rank still has inputs, and this is the only model in its join block."""
        session = self.session
        return session is not None and not session.several_followers and session.alone

    def divisor(self) -> int:
        """What an average divides by now (DDPJ-007, DDPJ-008); may wait for the roll call."""
        if self.session is None or self.divides_by_initial_world_size:
            return self.team.size
        return self.session.active

    def known_divisor(self) -> int | None:
        """The same where no roll call has to be waited for; else None. Which of both, is the same on every rank."""
        waits = self.session is not None and not self.divides_by_initial_world_size
        return None if waits else self.team.size

    def source(self) -> GroupRank:
        """The rank whose word counts: group rank 0, or inside a join the highest active rank (DDPJ-024)."""
        return GroupRank(0) if self.session is None else self.session.source

    def likely_source(self) -> GroupRank:
        """The same as far as is known without waiting: right but for the iteration in which that rank has run out."""
        return GroupRank(0) if self.session is None else self.session.likely_source

    def watch(self) -> Watch | None:
        """What looks out for failed peers while a wait lasts; None outside a join."""
        return None if self.session is None else self.session.watch

    # -- what joined ranks are told

    def begin(self, due: Sequence[Stage], *, likely: bool) -> None:
        """At a forward: call the roll, with the stage that is due at once or else the reduction that will follow.

        ``likely``: that reduction is one that every rank may shadow, should it not come.
        """
        if self.session is None:
            return
        if due:
            self.session.begin(self.joinable, due[0])
        else:
            early = likely and self.buckets_only and not self.session.several_followers
            self.session.begin(self.joinable, likely=Stage.BUCKETS if early else None)

    def announce(self, stage: Stage) -> None:
        """Before a stage's first collective."""
        if self.session is not None:
            self.session.announce(self.joinable, stage)

    def announce_bucket(self, bucket: int) -> None:
        """Before a bucket's collective: the first announces them all, unless another model's may come in between."""
        session = self.session
        if session is None:
            return
        if session.several_followers:
            session.announce(self.joinable, Stage.BUCKET)
        elif bucket == 0:
            session.announce(self.joinable, Stage.BUCKETS)

    def announce_finish(self) -> None:
        """Before the results of the buckets are waited for."""
        session = self.session
        if session is None:
            return
        if session.several_followers:
            session.announce(self.joinable, Stage.FINISH)
        else:
            session.confirm()

    def announce_early(self) -> None:
        """A backward begins: let joined ranks start its reduction while this one still computes, without waiting.

        Only for a reduction that every rank may shadow, should it not come.
        """
        session = self.session
        if session is None or session.alone or session.several_followers or not self.buckets_only:
            return
        session.foretell(self.joinable, Stage.BUCKETS)
