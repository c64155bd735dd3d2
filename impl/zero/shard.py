"""One rank's shard of an optimizer: who owns which parameter, the local optimizer over one's own, and its state."""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from numbers import Number
from operator import is_
from typing import Any

import torch

from ..comm.optimizer_states import (
    Counters,
    as_it_was,
    counters_of,
    found_here,
    keep_hooks,
    lie_like_parameters,
    loadable,
    take_over,
)
from ..comm.ranks import GroupRank, Team
from . import checkpoint
from .arguments import check_shardable
from .at_once import small_ones_at_once
from .copies import Content, Copies
from .group_counts import GroupCounts, Noted, noted, take_told
from .groups import Group, copy_settings, restricted, settings_of, take_settings
from .memory import Memory
from .partition import ShardPlan

logger = logging.getLogger(__name__)

#: Groups, and the parameters that each had at some moment.
ByGroup = list[tuple[Group, list[torch.Tensor]]]


class Shard:
    """The parameters that this rank owns, the ordinary optimizer that steps them, and the state of both."""

    def __init__(
        self,
        exposed: torch.optim.Optimizer,
        team: Team,
        constructor: Callable[..., torch.optim.Optimizer],
        defaults: dict[str, Any],
    ) -> None:
        self._exposed = weakref.ref(exposed)
        #: who shares the state, and who owns what
        self.team = team
        parameters = self.parameters()
        self._memory = Memory(parameters)
        self.plan = ShardPlan.greedy(numels_of(parameters), team.size, self._memory.first)
        self.device = parameters[0].device
        #: the ordinary optimizer over this rank's own parameters; in overlap mode it comes with the owners
        self.optim: torch.optim.Optimizer
        #: what it has counted in its groups
        self.counts: GroupCounts
        # the ids of the hooks that it has given itself
        self._own_hooks: frozenset[int] = frozenset()
        #: what builds it, and from which settings beside those of the groups
        self.constructor = constructor
        self.given_defaults = defaults
        # those that the plan, the local groups and what follows are about, by group
        self._looked_at = self.by_group()
        # of all that have ever been here: what a program takes out may come back, and its state lies with its owner
        self._owner_of: dict[torch.Tensor, int] = {}
        #: requires_grad of every parameter at the last look, by global index
        self.trainable: tuple[bool, ...] = ()
        #: whether each parameter has ever required or had a gradient, here or (in a join context) on a live rank
        self.sent: tuple[bool, ...] = ()
        #: every parameter's state after consolidation on its target, else None; and how many steps ago that was
        self.consolidated: checkpoint.States | None = None
        self.steps_since_consolidation = 0
        #: copies of the shard here and on another rank; None unless they were asked for
        self.copies: Copies | None = None

    @property
    def exposed(self) -> torch.optim.Optimizer:
        """The optimizer whose groups users read and write; held weakly, so that it goes with its own last reference."""
        exposed = self._exposed()
        if exposed is None:
            raise AttributeError("the optimizer that this is a part of is gone")
        return exposed

    # --- who owns what

    def parameters(self) -> list[torch.Tensor]:
        """All parameters in global order: group after group."""
        return [parameter for group in self.exposed.param_groups for parameter in group["params"]]

    def by_group(self) -> ByGroup:
        """The groups as they are now, each with its parameters."""
        return [(group, list(group["params"])) for group in self.exposed.param_groups]

    def owned_by(self, *ranks: int) -> list[torch.Tensor]:
        """The parameters that these ranks own, in global order: one pass, however many ranks they are."""
        wanted = set(ranks)
        return [p for p, owner in zip(self.parameters(), self.plan.owners, strict=True) if owner in wanted]

    def local_groups(self, rank: int) -> list[Group]:
        """The exposed groups with the parameters of ``rank`` only."""
        return restricted(self.exposed.param_groups, self.owned_by(rank))

    # --- the local optimizer

    def build_local(self) -> None:
        """Make the local optimizer over what this rank owns now."""
        former = vars(self).get("optim")
        self.optim = self._make(self.local_groups(self.team.rank))
        self.counts = GroupCounts(self.optim, () if former is None else self.counts.written)
        self._own_hooks = keep_hooks(former, self.optim, self._own_hooks)
        self._show_settings_of(self.optim)
        self.exposed.state = self.optim.state

    def show_defaults(self) -> None:
        """Show the settings that a local optimizer will have; bad ones raise here."""
        self._show_settings_of(self._make(restricted(self.exposed.param_groups, [])))

    def _make(self, groups: list[Group]) -> torch.optim.Optimizer:
        made = self.constructor(groups, **self.given_defaults)
        check_shardable(made, self.team.size)
        return made

    def _show_settings_of(self, local: torch.optim.Optimizer) -> None:
        """The local optimizer fills in its own defaults; schedulers read them here, in groups and in ``defaults``."""
        made, given = len(local.param_groups), len(self.exposed.param_groups)
        if made != given:
            raise ValueError(
                f"{type(local).__name__} makes {made} parameter groups of the {given} that it is given, so that no "
                "settings can be told from one to the other: give the groups as it would make them."
            )
        copy_settings(local.param_groups, self.exposed.param_groups)
        self.exposed.defaults = {**self.given_defaults, **local.defaults}

    def extend(self, added: Group) -> None:
        """Take in a group that has been added to the exposed ones; where that is refused, all is as it was."""
        parameters = self.parameters()
        owners = [*self.plan.owners, *map(self._owner_of.get, added["params"])]
        memory = Memory(parameters, owners)
        plan = ShardPlan.greedy(numels_of(parameters), self.team.size, memory.first, owners)
        (mine,) = restricted([added], [parameters[index] for index in plan.owned_by(self.team.rank)])
        self.optim.add_param_group(mine)
        self.plan, self._memory, self._looked_at = plan, memory, self.by_group()
        copy_settings(self.optim.param_groups[-1:], self.exposed.param_groups[-1:])
        self.forget()
        self.look_at_trainability()

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Step what this rank owns; nothing is sent."""
        if self.copies is not None:
            self.copies.begin(settings_of(self.exposed.param_groups))
        self.look_at_changes()
        self.look_at_trainability()
        before = noted(self.optim.param_groups)
        given = {} if closure is None else {"closure": self._heard(closure, before)}
        try:
            # of two with one memory the first is stepped to the end before the second; a closure may change settings
            with nullcontext() if given or self._memory.shared else small_ones_at_once(self.optim):
                loss = step_of(self.optim, **given, **kwargs)
        finally:
            self.counts.look(before)
            self.show_changes()
        if closure is not None:
            self.look_at_trainability()
        self.steps_since_consolidation += 1
        return loss

    def _heard(self, closure: Callable[..., Any], begun: Sequence[Noted]) -> Callable[..., Any]:
        """``closure``; parameters and settings that it changes in groups hold for the rest of the step already.

        The settings come into ``begun``, too: what differs from that in the end, the local optimizer has written.
        """

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            before = [dict(group) for group in self.exposed.param_groups]
            try:
                return closure(*args, **kwargs)
            finally:
                self.look_at_parameters()
                for was, shown, local, first in zip(
                    before, self.exposed.param_groups, self.optim.param_groups, begun, strict=False
                ):
                    changed = {key: value for key, value in shown.items() if value is not was.get(key, was)}
                    local.update({**changed, "params": local["params"]})
                    first.update(*noted([changed]))
                    for key in was.keys() - shown.keys():
                        local.pop(key, None)

        return evaluate

    def look_at_changes(self) -> None:
        """Notice what a user has changed or replaced in the exposed optimizer: parameters, settings, the state."""
        self.look_at_parameters()
        self.take_changes()

    def take_changes(self) -> None:
        """Let the local optimizer have the settings and the state of the exposed one."""
        copy_settings(self.exposed.param_groups, self.optim.param_groups)
        self.optim.state = self.exposed.state

    def show_changes(self) -> None:
        """Let the exposed optimizer have the settings and the state of the local one."""
        copy_settings(self.optim.param_groups, self.exposed.param_groups)
        self.exposed.state = self.optim.state

    def look_at_parameters(self) -> None:
        """Notice that a user has replaced, moved, added or removed parameters in the groups, on all ranks alike.

        A parameter that is still there or comes back keeps its owner. One in the place of another, in a group of as
        many as before, gets that one's. All others go where the load is least.
        """
        present, looked_at = self.by_group(), self._looked_at
        now, before = self.parameters(), [parameter for _, members in looked_at for parameter in members]
        if ids_by_group(present) == ids_by_group(looked_at):
            self._looked_at = present
            if self._memory.stale:
                self._memory = Memory(now, self.plan.owners)
            return
        here, sent, owner_of = set(now), dict(zip(before, self.sent, strict=True)), self._owner_of
        owner_of.update(zip(before, self.plan.owners, strict=True))
        same = [(former, group) for former in looked_at for group in present if group[0] is former[0]]
        for (_, listed), (_, members) in same or zip(looked_at, present, strict=False):  # or: made anew
            for old, new in zip(listed, members, strict=True) if len(listed) == len(members) else ():
                if old not in here and new not in owner_of:
                    owner_of[new] = owner_of[old]
        owners = list(map(owner_of.get, now))
        self._memory = Memory(now, owners)
        self.plan = ShardPlan.greedy(numels_of(now), self.team.size, self._memory.first, owners)
        self.sent = tuple([sent.get(parameter, False) for parameter in now])
        self.trainable, self._looked_at = (), present
        self.optim.param_groups[:] = self.local_groups(self.team.rank)
        self.forget()

    def forget(self) -> None:
        """What was consolidated or copied before is not what the ranks have any more."""
        self.consolidated = None
        if self.copies is not None:
            self.copies.forget()

    # --- which parameters are sent: those that have ever required a gradient, or had one

    def look_at_trainability(self) -> None:
        """Notice a change of ``requires_grad`` since the last look (ZERO-013)."""
        parameters = self.parameters()
        now = tuple([parameter.requires_grad for parameter in parameters])
        if now != self.trainable:
            if self.trainable and len(now) == len(self.trainable):
                changed = _places_that_differ(now, self.trainable)
                logger.warning("requires_grad of parameter(s) %s has changed; the transfers are made anew.", changed)
            self.trainable = now
            self._also_send(now)
        if not all(self.sent):  # one that is frozen here may have been trained since the last look
            any_may_move = not is_of_torch(self.optim)  # also what has no gradient
            self._also_send([any_may_move or parameter.grad is not None for parameter in parameters])

    def _also_send(self, more: Sequence[bool]) -> None:
        before = [*self.sent, *([False] * (len(more) - len(self.sent)))]
        sent = tuple(old or new for old, new in zip(before, more, strict=True))
        if sent != self.sent:
            self.sent = sent

    def check_trainability_unchanged(self) -> None:
        """RuntimeError if ``requires_grad`` has changed since the owners were fixed (ZERO-027)."""
        now = tuple([parameter.requires_grad for parameter in self.parameters()])
        if now != self.trainable:
            raise RuntimeError(
                f"requires_grad of parameter(s) {_places_that_differ(now, self.trainable)} has changed, which "
                "overlap_with_ddp=True does not allow: DDP's buckets and the owners are fixed. Freeze parameters "
                "before you construct DDP and the optimizer."
            )

    def take_settings(
        self, settings: Sequence[Group], sent: Sequence[bool], to_follow: Sequence[Sequence[str]]
    ) -> None:
        """On a joined rank: take over what live ranks have changed. ``to_follow``: what the source's counts say."""
        received = found_here(settings, self.parameters())
        self.counts.keep(self.exposed.param_groups, received, to_follow)
        take_settings(received, self.exposed.param_groups)
        self._also_send(sent)

    # --- the state

    def consolidate(self, to: GroupRank) -> None:
        """Gather all states on rank ``to``, and what is counted in groups of which it owns nothing."""
        self.consolidated = None  # frees the last one before the next is gathered
        mine = self.states() | self.counts.to_tell()
        gathered = checkpoint.gather_states(self.team, mine, to, self.device)
        if gathered is not None:
            take_told(gathered, self.exposed.param_groups, self.counts.owned)
        self.consolidated = gathered
        self.steps_since_consolidation = 0

    def states(self) -> checkpoint.States:
        """The states that this rank holds, by global index, after what the program has changed.

        Of its own parameters only: who asks for the state of another is given an empty one, which is then there.
        """
        self.look_at_changes()
        parameters, held = self.parameters(), self.optim.state
        owned = self.plan.owned_by(self.team.rank)
        return {index: held[parameters[index]] for index in owned if parameters[index] in held}

    def whole_state(self) -> dict[Any, Any]:
        """All states by parameter, as of the last consolidation; RuntimeError if this rank does not hold them."""
        if self.consolidated is None:
            raise RuntimeError(
                f"The optimizer state is sharded and rank {self.team.rank} does not hold all of it: call "
                f"consolidate_state_dict(to={self.team.rank}) on every rank first."
            )
        if self.steps_since_consolidation:
            logger.warning(
                "state_dict() returns the state of the last consolidation, which is %d step(s) old: call "
                "consolidate_state_dict() again to get the present one.",
                self.steps_since_consolidation,
            )
        # of the parameters of then: the program may have changed the groups since
        then = [parameter for _, members in self._looked_at for parameter in members]
        states = {then[index]: state for index, state in self.consolidated.items()}
        shared = {key: state for key, state in self.optim.state.items() if not isinstance(key, torch.Tensor)}
        return {**{parameter: states[parameter] for parameter in self.parameters() if parameter in states}, **shared}

    def further_entries(self) -> dict[str, Any]:
        """What the local optimizer's own ``state_dict`` adds to the entries that every optimizer has."""
        optim, held = self.optim, self.optim.state
        own = {parameter for group in optim.param_groups for parameter in group["params"]}
        # without those of others' parameters that somebody has asked for: they are in no group here
        shown: Any = {key: held[key] for key in held if not isinstance(key, torch.Tensor) or key in own}
        optim.state = shown
        try:
            return checkpoint.further_entries(optim.state_dict())
        finally:
            optim.state = held

    def load_local(self, states: Mapping[Any, Any], further: Mapping[str, Any] | None) -> None:
        """Let the local optimizer take these states (by parameter) and the exposed settings.

        ``further``: what else its state is to hold; None: what it holds now.
        """
        members = [group["params"] for group in self.optim.param_groups]  # in the optimizer's own order
        place_of = {id(p): place for place, p in enumerate(p for params in members for p in params)}
        packed = {place_of[id(key)] if isinstance(key, torch.Tensor) else key: state for key, state in states.items()}
        packed_groups = [
            {**group, "params": [place_of[id(p)] for p in params]}
            for group, params in zip(self.exposed.param_groups, members, strict=True)
        ]
        further = self.further_entries() if further is None else further
        self.optim.load_state_dict({**further, "state": packed, "param_groups": packed_groups})
        lie_like_parameters(self.optim.state)
        self.show_changes()  # what is loaded may be older and lack some settings

    # --- owners that come late or change

    def fix_owners(self, team: Team, plan: ShardPlan) -> None:
        """Build the local optimizer over the owners of this plan; overlap mode, once."""
        self.team, self.plan = team, plan
        self._looked_at, self._memory = self.by_group(), Memory(self.parameters())  # since then no group may change
        self.build_local()
        self.look_at_trainability()

    def move_to(self, team: Team, plan: ShardPlan) -> None:
        """Share the state over a group from now on, with these owners; call it on every rank of that group.

        Each state goes from its old owner to its new one, and what is counted in groups to all. States that only ranks
        outside the new group held are lost, with a warning on the new owner.
        """
        mine, settings = self.states(), settings_of(self.exposed.param_groups)
        held = checkpoint.handed_over(team, mine | self.counts.to_tell(), plan.owners, self.device)
        take_told(held, settings, self.counts.owned)
        lost = [index for index in plan.owned_by(team.rank) if index not in held]
        if lost and (mine or held) and team is not self.team:  # within one group nothing is lost: those have none yet
            logger.warning("Nobody in the new process group holds the state of parameter(s) %s: they start anew.", lost)
        self._go_on_with(team, plan, held, settings, self._counters())

    def _counters(self) -> Counters:
        """What the local optimizer keeps beside groups and per-parameter state."""
        saves_more = type(self.optim).state_dict is not torch.optim.Optimizer.state_dict
        return counters_of(self.optim)._replace(further=self.further_entries() if saves_more else None)

    def _go_on_with(
        self, team: Team, plan: ShardPlan, held: checkpoint.States, settings: Sequence[Group], counters: Counters
    ) -> None:
        """Go on with these states of what this rank owns now."""
        before = self.owned_by(self.team.rank)
        self.team, self.plan, self._owner_of = team, plan, {}
        self.build_local()  # whose constructor begins with settings and counts of its own
        optim = self.optim
        take_settings(settings, self.exposed.param_groups)
        parameters, begun = self.parameters(), dict(optim.state)
        states = {parameters[index]: held[index] for index in plan.owned_by(team.rank) if index in held}
        further = counters.further
        owned = self.owned_by(team.rank)
        if further and not (len(owned) == len(before) and all(map(is_, owned, before))):
            # what is kept by place belongs to parameters of other owners
            further = self.further_entries() | {key: value for key, value in further.items() if _is_single(value)}
        self.load_local(loadable(states), further)
        take_settings(settings, self.exposed.param_groups)  # to load is to copy them, with what they hold
        for parameter, state in states.items():
            optim.state[parameter] = as_it_was(state, optim.state[parameter])
        lie_like_parameters(optim.state)
        for key in begun.keys() - optim.state.keys():  # what is lost begins as the constructor makes it
            optim.state[key] = begun[key]
        take_over(counters, optim)

    def become(self, other: Shard, memo: dict[int, Any]) -> None:
        """Go on from where that one is, which is over the parameters that ours are copies of; nothing is shared."""
        held = copy.deepcopy(other.states(), memo)
        self._go_on_with(other.team, other.plan, held, settings_of(self.exposed.param_groups), other._counters())
        self.counts.written = other.counts.written

    # --- copies of the shard on another rank

    def keep_copy(self) -> None:
        """A step has ended on all ranks: copy what this one owns, if that was asked for. All ranks make this call."""
        if self.copies is not None:
            self.copy_into(self.copies, self.copies.steps + 1)

    def copy_into(self, copies: Copies, step: int) -> None:
        """Copy what this rank owns, as it is after the step of this number. All ranks make this call."""
        states, parameters = self.states(), self.parameters()
        owned = self.plan.owned_by(self.team.rank)
        content: Content = {index: (parameters[index], states.get(index)) for index in owned}
        content |= self.counts.to_tell()
        copies.exchange(content, self._counters(), step, self.device)

    def restore(
        self, team: Team, kept: Content, settings: Sequence[Group], owned: Sequence[bool], counters: Counters
    ) -> None:
        """Share what the ranks of this team have kept, all of it together, as a state of before; call it on each.

        ``settings``: those of a rank that ``owned`` something of some groups; the counts of the others come into them.
        Afterwards every owner has its parameters and their states; the parameters are still to be sent.
        """
        parameters = self.parameters()
        plan = ShardPlan.greedy(numels_of(parameters), team.size, self._memory.first)
        held = checkpoint.handed_over(team, kept, plan.owners, self.device)
        take_told(held, settings, owned)
        with torch.no_grad():
            for index, (value, _) in held.items():
                parameters[index].copy_(value)
        states = {index: state for index, (_, state) in held.items() if state is not None}
        self._go_on_with(team, plan, states, found_here(settings, parameters), counters)
        self.consolidated = None


def numels_of(parameters: Sequence[torch.Tensor]) -> list[int]:
    """Their numbers of elements."""
    return [parameter.numel() for parameter in parameters]


def _is_single(value: Any) -> bool:
    """Whether it is no tensor and no container."""
    return isinstance(value, Number | str | None)


def is_of_torch(optim: torch.optim.Optimizer) -> bool:
    """Whether it is one of torch's own, and of no class made from one: all that it keeps belongs to a parameter, and
    nothing moves before its closure has been evaluated."""
    return type(optim).__module__.startswith(f"{torch.optim.__name__}.")


def step_of(optim: torch.optim.Optimizer, **arguments: Any) -> Any:
    """Step a local optimizer, with its own hooks, past those that a program registers for the steps of all optimizers.

    They are called for the optimizer that the program knows.
    """
    step: Any = optim.step
    if not getattr(step, "hooked", False):
        return step(**arguments)
    positional: tuple[Any, ...] = (optim,)
    for hook in list(optim._optimizer_step_pre_hooks.values()):
        positional, arguments = hook(optim, positional, arguments) or (positional, arguments)
    result = step.__wrapped__(*positional, **arguments)
    for hook in list(optim._optimizer_step_post_hooks.values()):
        hook(optim, positional, arguments)
    return result


def ids_by_group(groups: ByGroup) -> list[list[int]]:
    """The ids of the parameters: equal where these are the same in the same places."""
    return [list(map(id, members)) for _, members in groups]


def _places_that_differ(now: Sequence[bool], before: Sequence[bool]) -> list[int]:
    return [place for place, (new, old) in enumerate(zip(now, before, strict=True)) if new != old]
