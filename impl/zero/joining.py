"""A ZeRO step and a consolidation inside a join context: what live ranks do, and its shadow on ranks that have joined.

    live rank                                   joined rank (told that hooks follow, then that a step does)
    hooks before the step, if it has any        likewise
    step its own shard
    source: settings, gradients ───────────▶    take the settings; step its own shard with those gradients
    publish                     ◀──────────▶    publish
    copies, if there is a mirror ◀─────────▶    copies

The settings go out only while somebody has joined; otherwise a step sends what it sends outside.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Number
from typing import Any, cast

import torch

from ..comm.collectives import broadcast_object
from ..comm.losses import text_of
from ..comm.optimizer_states import by_place, found_here
from ..comm.ranks import GroupRank
from ..join.hooks import BrokenOff, Joinable
from ..join.session import Session
from .checkpoint import snapshot
from .group_settings import GroupSettings, SettingsChannel, dense_gradients, exchange_gradients, sparse_gradients
from .groups import Group, settings_of
from .publisher import Publisher, forms_of
from .shard import Shard, is_of_torch

#: The acts that live ranks announce and joined ranks follow; the hook's ``acts`` names them in the same order.
STEP, CONSOLIDATE, HOOKS = range(3)
ACTS = ("step", "consolidate_state_dict", "hooks before a step")

#: Gradients by place, of parameters that nobody has used; None where there is none.
Kept = dict[int, torch.Tensor | None]


class Joining:
    """What one ZeRO optimizer does differently inside a join context."""

    def __init__(self, shard: Shard, publisher: Publisher) -> None:
        self._shard = shard
        self._publisher = publisher
        # the context that we are in or were in last; held weakly, it must not outlive its block
        self._session: weakref.ref[Session] | None = None
        # carries settings in that context
        self._channel: SettingsChannel
        #: the step in the present block that an exception has ended here, before this rank sent anything of it
        self.broken: BrokenOff | None = None
        # the parameters of the beginning of the block, later of the last step with inputs everywhere, and their forms;
        # all ranks know each by its place here, whatever group the program moves it to
        self._known: list[torch.Tensor] = []
        self._forms: list[Any] = []

    @property
    def _zero(self) -> Joinable:
        """The optimizer; known to the session by its identity."""
        return cast("Joinable", self._shard.exposed)

    def enter(self) -> None:
        """A block begins: all ranks stand at one place."""
        self.broken = None
        self._note_parameters()

    def _note_parameters(self) -> None:
        self._known = self._shard.parameters()
        self._forms = forms_of(self._known)

    def step(self, session: Session, closure: Callable[[], Any] | None, arguments: dict[str, Any]) -> Any:
        """A step on a live rank, which has begun with the hooks before it."""
        zero = self._zero
        begun = self._settings()
        heard: tuple[Any, ...] = ()  # what the closure has returned
        if closure is None:
            session.announce(zero, STEP)
            with self._noting_failure(shadowed=True):
                loss = self._shard.step(**arguments)
        else:
            # the closure may run a whole iteration of other joinables, so our act begins after it
            sent = self._publisher.between_evaluations(closure, lambda moved: self._all_live(session, moved))
            heard = (None,)

            def evaluate(*args: Any, **kwargs: Any) -> Any:
                nonlocal begun, heard
                value = sent(*args, **kwargs)
                begun = self._settings()  # the closure may have changed them
                heard = (value,)
                return value

            with self._noting_failure(shadowed=False):
                loss = self._shard.step(closure=evaluate, **arguments)
            session.announce(zero, STEP)
        absent = self._absent_ranks(session)
        with self._noting_failure(shadowed=True):
            self._look_at_forms(session, absent)
            if absent:
                parameters, (settings, to_follow) = self._shard.parameters(), begun
                settings = by_place(settings, parameters)
                (given,) = by_place([arguments], parameters)
                dense = dense_gradients(self._shard.owned_by(*absent))
                # as far as it can travel; those of torch step alike with a closure and without one
                heard = () if is_of_torch(self._shard.optim) else heard
                known = tuple(snapshot(each) if isinstance(each, (torch.Tensor, Number)) else None for each in heard)
                told = GroupSettings(settings, self._shard.sent, to_follow, given, self._members(), dense, known)
                self._pass_on(told, absent, session)
            self._publisher.publish()
            self._shard.keep_copy()
        return loss

    @contextmanager
    def _noting_failure(self, *, shadowed: bool) -> Iterator[None]:
        """An exception ends the step here, while peers go on to send what they own."""
        try:
            yield
        except BaseException as error:
            self.broken = BrokenOff(f"step ended with {type(error).__name__}: {text_of(error)}", shadowed)
            raise

    def _look_at_forms(self, session: Session, absent: Sequence[GroupRank]) -> None:
        if not absent:
            self._note_parameters()
        elif set(self._shard.parameters()) != set(self._known) or forms_of(self._known) != self._forms:
            raise RuntimeError(
                "Parameters of this optimizer were cast, reshaped, replaced, added or taken out in a join block after "
                f"some rank had run out of inputs: only group ranks {list(map(int, session.active_ranks))} have done "
                "it. A rank that shadows goes on with the parameters that it has. Change them before the block, or "
                "while all ranks have inputs."
            )

    def _members(self) -> list[list[int]]:
        """By group, which parameters it has."""
        number_of = {parameter: number for number, parameter in enumerate(self._known)}
        return [[number_of[parameter] for parameter in group["params"]] for group in self._shard.exposed.param_groups]

    def _arrange(self, members: list[list[int]]) -> None:
        """On a joined rank: let each parameter stand where live ranks have it."""
        for group, numbers in zip(self._shard.exposed.param_groups, members, strict=True):
            group["params"] = [self._known[number] for number in numbers]
        self._shard.look_at_parameters()

    def _all_live(self, session: Session, moved: bool) -> bool:
        """Whether all ranks are there. RuntimeError if not, though parameters have moved within the step."""
        absent = self._absent_ranks(session)
        if absent and moved:
            raise RuntimeError(
                "The optimizer evaluates its closure several times in a step, or moves parameters before that, inside "
                "a join context in which a rank has run out of inputs: that rank steps its shard without the closure, "
                "so the result would be wrong. Train on even inputs, or with an optimizer that evaluates it once, and "
                "first."
            )
        return not absent

    def shadow_step(self, session: Session) -> None:
        """The same step on a rank that has joined."""
        received, gradients = self._pass_on(None, self._absent_ranks(session), session)
        # also where they are the last ones: the local optimizer may have changed its own since
        self._shard.take_settings(received.settings, received.sent, received.to_follow)
        # what the closure would do has been done: the gradients are those that it has left on the source
        closure = functools.partial(_loss_here, received.loss, self._shard.device) if received.loss else None
        (arguments,) = found_here([received.arguments], self._shard.parameters())
        with shown_gradients(gradients):
            self._shard.step(closure, **arguments)
        self._publisher.publish()
        self._shard.keep_copy()

    def consolidate(self, session: Session, to: int | None) -> None:
        """Consolidation, on live and joined ranks alike; joined ranks learn from the source to whom."""
        if to is not None:
            # not only announced: since the last roll call another rank may have run out. One that begins for the
            # second time since then calls the roll, whoever leads the context.
            session.begin(self._zero)
            session.begin(self._zero, CONSOLIDATE)
        target, absent = to, self._absent_ranks(session)
        if to is not None:
            with self._noting_failure(shadowed=True):
                self._look_at_forms(session, absent)
        if absent:
            told = None if to is None else (to, self._members())
            team, label = self._shard.team, "zero: target of the consolidation"
            target, members = broadcast_object(team, told, session.source, self._shard.device, label)
            if session.shadowing:
                self._arrange(members)
        assert target is not None  # who follows has joined
        self._shard.consolidate(GroupRank(target))

    @property
    def inside_unlisted(self) -> bool:
        """Whether the model is inside a join context that does not list the optimizer (overlapped steps only)."""
        session = None if self._session is None else self._session()
        return session is not None and session.live and self._zero._join_session is None

    def _settings(self) -> tuple[list[Group], list[list[str]]]:
        """The settings as they are now, and in which of them joined ranks follow this one in any case."""
        shown = self._shard.exposed.param_groups
        return settings_of(shown), self._shard.counts.to_follow(shown)

    def share_settings(self, session: Session) -> None:
        """Bring the live ranks' settings to those that have joined; for steps whose gradients arrive by themselves."""
        if not self._absent_ranks(session):
            return
        settings, to_follow = self._settings()
        told = GroupSettings(by_place(settings, self._shard.parameters()), self._shard.sent, to_follow)
        received, _ = self._channel.exchange(told, {}, session.source)
        if session.shadowing:
            self._shard.take_settings(received.settings, received.sent, received.to_follow)

    def share_kept(self, kept: Kept, device: torch.device, session: Session) -> Kept:
        """Bring the source's gradients that no backward has renewed to ranks that have joined, whose own are older."""
        if not self._absent_ranks(session):
            return kept
        source, label = session.source, "overlap: gradients that joined ranks lack"
        sent = snapshot(kept) if session.team.rank == source else None  # a view travels with all of its storage
        received: Kept = broadcast_object(session.team, sent, source, device, label)
        if not session.shadowing:
            return kept
        return {place: None if held is None else held.to(device) for place, held in received.items()}

    def _absent_ranks(self, session: Session) -> tuple[GroupRank, ...]:
        if self._session is None or self._session() is not session:
            self._session = weakref.ref(session)
            self._channel = SettingsChannel(session.team, self._shard.device)
        active = set(session.active_ranks)
        return tuple(GroupRank(rank) for rank in session.team.members if rank not in active)

    def _pass_on(
        self, settings: GroupSettings | None, absent: Sequence[GroupRank], session: Session
    ) -> tuple[GroupSettings, list[tuple[torch.Tensor, torch.Tensor | None]]]:
        """Send (source) or receive (everybody) settings and the gradients of the absent ranks' shards."""
        team = self._shard.team
        sparse = sparse_gradients(self._shard.owned_by(*absent)) if team.rank == session.source else {}
        received, sparse = self._channel.exchange(settings, sparse, session.source)
        if session.shadowing:  # the program may have changed groups before the block, too
            self._arrange(received.members)
        parameters = self._shard.owned_by(*absent)
        gradients = exchange_gradients(team, parameters, received.dense, sparse, session.source)
        mine = {id(parameter) for parameter in self._shard.owned_by(team.rank)}
        pairs = zip(parameters, gradients, strict=True)
        return received, [(parameter, gradient) for parameter, gradient in pairs if id(parameter) in mine]


def _loss_here(told: tuple[Any], device: torch.device) -> Any:
    """What the source's closure returned, on a rank without inputs."""
    (value,) = told
    return value.to(device) if isinstance(value, torch.Tensor) else value


@contextmanager
def shown_gradients(pairs: Sequence[tuple[torch.Tensor, torch.Tensor | None]]) -> Iterator[None]:
    """Let the parameters show these gradients inside the block; afterwards they hold what they held before."""
    before = [parameter.grad for parameter, _ in pairs]
    try:
        for parameter, gradient in pairs:
            parameter.grad = gradient
        yield
    finally:
        for (parameter, _), gradient in zip(pairs, before, strict=True):
            parameter.grad = gradient
