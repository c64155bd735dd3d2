"""What an iteration knows of the ranks that take part in it, and how it goes through its stages with them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

import torch

from ..comm.futures import wait_for_future
from ..comm.losses import text_of
from ..comm.pending import Watch
from ..comm.ranks import GlobalRank, GroupRank, Team
from ..comm.tally import Place
from ..join import Joinable
from ..join.hooks import BrokenOff
from ..join.session import Session


class Stage(IntEnum):
    """The groups of collectives of a DDP model, in the table of ``stages``. The value is the act's number in a join."""

    REPLAN = 0
    BUFFERS = 1
    BUFFERS_AFTER = 2
    BUCKETS = 3
    BUCKET = 4
    FINISH = 5
    DELAYED = 6
    PARAMETER = 7  # comes last: it is no act, because nobody can shadow it


class Moment(Enum):
    """When it is asked whether a stage is due."""

    BEFORE_FORWARD = "before the wrapped forward"
    AFTER_FORWARD = "after the wrapped forward"
    IN_BACKWARD = "when autograd says that gradients are ready, or that a backward is over"


@dataclass(frozen=True)
class Row:
    """A stage: when it is due, and what a live and a joined rank do in it, the same collectives each."""

    moment: Moment
    due: Callable[[], bool]
    live: Callable[..., None]
    shadow: Callable[[], object] | None


class Order(dict[Stage, Row]):
    """The stages of a model, in their order."""


_models = itertools.count()


class Iteration:
    """A model's iterations, one after the other, seen from the ranks. Outside a join it gives the ordinary answers.

    The model and its order are held weakly, because both hold the iteration: a model goes with its last reference.
    """

    #: the ranks that gradients are averaged over
    team: Team
    #: the stages in their order; see ``follow``
    order: Mapping[Stage, Row]
    #: the join block that the model is in, if any; the context sets it through the model
    session: Session | None = None
    #: what the latest join hook was asked for (DDPJ-012), which torch's attribute tells; averages follow the rule of
    #: the block that the model is in: ``_keeps_initial_world_size``
    divides_by_initial_world_size = True
    #: whether only buckets are sent in a backward. Else other stages come between the roll call and the reduction
    buckets_only = True
    #: whether the user wants backwards to be synchronised now; not so under ``no_sync``
    wants_reductions = True
    #: whether a grad-enabled forward is running
    records = False
    #: whether parameters have been cast, moved or thawed since the last roll call of this join block
    recast = False
    #: whether the last forward was one of a synchronised iteration, and no backward has begun since then
    awaits_backward = False
    #: what an exception has ended in this join block while others go on with it
    broken: BrokenOff | None = None

    def __init__(self, joinable: Joinable) -> None:
        """``joinable`` is the model as its join contexts list it."""
        #: gives the model
        self.model: Callable[[], Any] = weakref.ref(joinable)
        #: where this model stands, for people
        self.place = Place(next(_models))
        #: futures of buffer hooks, to be awaited before backward returns (DDP-095)
        self.futures: list[torch.futures.Future[Any]] = []
        #: called when a backward has raised: to end what hooks have begun beside its reductions
        self.if_raised: list[Callable[[], None]] = []

    def follow(self, order: Order) -> None:
        """Go by this order, made by ``stages.order_of`` once all that takes part in it is there."""
        self.order = weakref.proxy(order)

    # -- the ranks

    def divisor(self) -> int:
        """What an average divides by now (DDPJ-007, DDPJ-008); may wait for the roll call."""
        if self.session is None or self._keeps_initial_world_size(self.session):
            return self.team.size
        return self.session.active

    def uncounted_ranks(self) -> list[GlobalRank]:
        """The ranks that averages of this iteration do not count; may wait for the roll call."""
        if self.session is None or self._keeps_initial_world_size(self.session):
            return []
        active = self.session.active_ranks
        return [self.team.global_rank(GroupRank(rank)) for rank in self.team.members if rank not in active]

    def _keeps_initial_world_size(self, session: Session) -> bool:
        """Whether averages divide by the team's size even after ranks have run out, by the rule of the block that the
        model is in; another context, built since then, may have brought its own."""
        return bool(getattr(session.hook_of(self.model()), "divides_by_initial_world_size", True))

    def known_divisor(self) -> int | None:
        """The same, if no roll call has to be waited for; else None. All ranks get a number, or all get None."""
        waits = self.session is not None and not self._keeps_initial_world_size(self.session)
        return None if waits else self.team.size

    def source(self) -> GroupRank:
        """The rank whose buffers and model count: group rank 0, or inside a join the highest active rank (DDPJ-024)."""
        return GroupRank(0) if self.session is None else self.session.source

    def likely_source(self) -> GroupRank:
        """The same as far as is known without waiting: wrong only in the iteration in which that rank has run out."""
        return GroupRank(0) if self.session is None else self.session.likely_source

    def watch(self) -> Watch | None:
        """What looks out for failed peers while a wait lasts: the join block's watch, or the failure guard, if any."""
        if self.session is not None:
            return self.session.watch
        blocks = self.team.tally.blocks  # which do not list this model; watch_of, written out for every iteration
        return blocks[-1].watch if blocks else self.team.guard

    def await_futures(self) -> None:
        """Wait for what buffer hooks have started."""
        futures, self.futures = self.futures, []
        for future in futures:
            wait_for_future(future, self.watch(), self.team, "the buffer hook's futures")

    # -- its stages

    def before_forward(self, *, needed: bool, likely: bool) -> None:
        """Go through the stages that this forward begins with; inside a join, call the roll with the first of them.

        ``needed``: the roll is to be called even if none is due. ``likely``: a backward's reduction will follow that
        every rank may shadow, should it not come.
        """
        if self.futures:  # those of a forward whose backward is still to come: this one writes to the same buffers
            self.await_futures()
        self.begin()
        due = self.due(Moment.BEFORE_FORWARD)
        if self.session is not None and (due or needed):
            early = likely and self.buckets_only and not self.session.several_leaders
            self.session.begin(self.model(), due[0] if due else None, likely=Stage.BUCKETS if early else None)
            self.broken = None  # else it would have refused: nobody was in what is broken off
            if torch.is_grad_enabled():
                self.awaits_backward = self.wants_reductions  # what is waited for from here on is not the backward's
            if self.recast:
                self._refuse_recast(self.session)
        elif self.session is not None:
            self.session.forward_begins()
        for place, stage in enumerate(due):
            self.go_through(stage, silent=place == 0)

    def _refuse_recast(self, session: Session) -> None:
        """RuntimeError if some rank has run out of inputs, and so of the chance to cast its parameters as well."""
        self.recast = False
        if not session.everyone_active:
            raise RuntimeError(
                "This model was cast, moved or thawed in a join block after some rank had run out of inputs: only "
                f"group ranks {list(map(int, session.active_ranks))} have done it. A rank that shadows goes on with "
                "the parameters that it has. Change the model before the block, or while all ranks have inputs."
            )

    def begin(self, iterations: int = 1) -> None:
        """So many more, for people who read where a rank waits."""
        self.place.iteration += iterations
        self.team.tally.where = self.place

    def due(self, moment: Moment) -> list[Stage]:
        """The stages that are due at a moment; the same on all live ranks."""
        return [stage for stage, row in self.order.items() if row.moment is moment and row.due()]

    def go_through(self, stage: Stage, *what: Any, silent: bool = False) -> None:
        """Announce a stage to joined ranks and do the live side; ``silent``: they know of it, or take no part."""
        if self.session is not None and not silent:
            self._announce(self.session, stage)
        row = self.order[stage]
        try:
            row.live(*what)
        except BaseException as error:  # of a hook of the user's, say: the others are in this stage
            self.break_off("backward" if row.moment is Moment.IN_BACKWARD else "forward", error, shadowed=True)
            raise

    def break_off(self, what: str, error: BaseException, *, shadowed: bool) -> None:
        """An exception ends this iteration here; ``shadowed``: joined ranks are in it, too."""
        if self.session is not None:
            self.broken = BrokenOff(f"{what} ended with {type(error).__name__}: {text_of(error)}", shadowed)

    def shadow(self, stage: Stage) -> None:
        """Do a joined rank's side of a stage that live ranks have announced."""
        shadow = self.order[stage].shadow
        assert shadow is not None, f"{stage.name} cannot be shadowed"
        shadow()

    def _announce(self, session: Session, stage: Stage) -> None:
        """Called before a stage's first collective. Joined ranks are told of each bucket by itself only where another
        model's may come in between; otherwise all buckets are announced at once, and at the end it is made sure that
        the ranks agree."""
        if session.several_leaders:
            session.announce(self.model(), Stage.BUCKET if stage is Stage.BUCKETS else stage)
        elif stage is Stage.FINISH:
            session.confirm()
        elif stage is not Stage.BUCKET:
            session.announce(self.model(), stage)

    def announce_early(self, session: Session) -> None:
        """A backward begins: let joined ranks start its reduction while this one still computes, without waiting.

        Only for a reduction that every rank may shadow, should it not come.
        """
        if not (session.alone or session.several_leaders) and self.buckets_only:
            session.announce_early(self.model(), Stage.BUCKETS)
