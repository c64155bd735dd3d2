"""What an optimizer holds, on its way to another owner or rank: containers stay what they are, and tensors as fine."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any, NamedTuple

import torch

from .flat import laid_out_like

_BY_KEY = (dict, OrderedDict, defaultdict, Counter)


def copied(value: Any, each: Callable[[Any], Any]) -> Any:
    """A container of the same type that holds ``each(item)`` for its items; anything else is handed back as it is."""
    kind = type(value)
    if kind in _BY_KEY:
        made = copy.copy(value)
        for key, item in value.items():
            made[key] = each(item)
        return made
    if kind is deque:
        return deque(map(each, value), value.maxlen)
    if kind in (list, tuple, set):
        return kind(map(each, value))
    return value


@dataclass(frozen=True)
class _Place:
    """Stands for one of the optimizer's parameters in settings that leave their process, or that are copied."""

    index: int


def by_place(settings: Iterable[Mapping[str, Any]], parameters: Iterable[torch.Tensor]) -> list[dict[str, Any]]:
    """The settings with places in ``parameters`` for what is one of them, also inside containers."""
    places = {id(parameter): _Place(index) for index, parameter in enumerate(parameters)}

    def placed(value: Any) -> Any:
        return places.get(id(value)) or copied(value, placed)

    return [{key: placed(value) for key, value in group.items()} for group in settings]


def found_here(settings: Iterable[Mapping[str, Any]], parameters: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
    """Settings of ``by_place``, of another process perhaps, with these parameters."""

    def found(value: Any) -> Any:
        return parameters[value.index] if isinstance(value, _Place) else copied(value, found)

    return [{key: found(value) for key, value in group.items()} for group in settings]


def loadable(value: Any) -> Any:
    """``value`` with None for what an optimizer would fail to make anew of its items: a named tuple, a range."""
    if isinstance(value, dict):
        return {key: loadable(item) for key, item in value.items()}
    made = copied(value, loadable)
    unusual = made is value and isinstance(value, Iterable) and not isinstance(value, (torch.Tensor, str))
    return None if unusual else made


def as_it_was(value: Any, loaded: Any) -> Any:
    """``value`` with its tensors on the devices of those in ``loaded``, which an optimizer has made of it.

    To load a state is to cast its tensors to the parameter's dtype and to rewrite its strings and containers. That is
    for files: what only changes its owner stays as it is.
    """
    if isinstance(value, torch.Tensor):
        return value.to(loaded.device)
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, item in value.items():
            made[key] = as_it_was(item, loaded[key])
        return made
    if type(value) in (list, tuple, deque):
        counterparts = iter(loaded)
        return copied(value, lambda item: as_it_was(item, next(counterparts)))
    return value


def lie_like_parameters(states: Mapping[Any, Any]) -> None:
    """Let tensors of a parameter's shape lie in memory as it does, in states by parameter: a fused optimizer goes
    through all of them from end to end."""
    for parameter, state in states.items():
        if not isinstance(parameter, torch.Tensor) or not isinstance(state, dict):
            continue
        for name, value in state.items():
            strided = type(value) is torch.Tensor and value.layout == torch.strided
            if strided and value.shape == parameter.shape:
                state[name] = laid_out_like(value, parameter)


class Counters(NamedTuple):
    """What an optimizer counts beside its groups and its per-parameter state, at some moment."""

    #: the values of the attributes that may count
    values: dict[str, Any]
    #: entries of the state that belong to no parameter
    shared: dict[Any, Any]
    #: its random generators, by attribute: their devices and states
    generators: dict[str, tuple[torch.device, torch.Tensor]]
    #: what a sharded one's local optimizer adds to its ``state_dict``
    further: dict[str, Any] | None = None


#: the attributes of every optimizer, which do not count; its hooks have names that begin alike
_OWN, _HOOKS = ("defaults", "param_groups", "state"), "_optimizer_"
_STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def counters_of(optim: torch.optim.Optimizer) -> Counters:
    """What an optimizer counts beside its per-parameter state, as it is now."""
    own = {name: value for name, value in vars(optim).items() if name not in _OWN and not name.startswith(_HOOKS)}
    values = {name: value for name, value in own.items() if _may_count(value)}
    shared = {key: value for key, value in optim.state.items() if not isinstance(key, torch.Tensor)}
    drawing = {name: value for name, value in own.items() if isinstance(value, torch.Generator)}
    generators = {name: (generator.device, generator.get_state()) for name, generator in drawing.items()}
    return Counters(*copy.deepcopy((values, shared)), generators)


def take_over(counters: Counters, optim: torch.optim.Optimizer) -> None:
    """Let the optimizer count as another does whose counts these are."""
    values, shared = copy.deepcopy((counters.values, counters.shared))
    vars(optim).update(values)
    optim.state.update(shared)
    for name, (device, state) in counters.generators.items():
        if not isinstance(getattr(optim, name, None), torch.Generator):  # it makes one when it first steps
            setattr(optim, name, torch.Generator(device.type))
        getattr(optim, name).set_state(state)


def keep_hooks(
    former: torch.optim.Optimizer | None, made: torch.optim.Optimizer, own: frozenset[int]
) -> frozenset[int]:
    """Let an optimizer call the step's hooks that a program has given to the one that it replaces; handles still work.

    ``own``: the ids of those that the former one has given itself, as it was made; the new one's are returned.
    """
    registries = {name: registry for name, registry in vars(made).items() if name in _STEP_HOOKS}
    made_own = frozenset(key for registry in registries.values() for key in registry)
    if former is not None:
        for name, registry in registries.items():
            kept = vars(former)[name]
            of_the_program = {key: hook for key, hook in kept.items() if key not in own}
            kept.clear()
            kept.update({key: _while_it_is_there(registry, key) for key in registry} | of_the_program)
            setattr(made, name, kept)
    return made_own


def _while_it_is_there(registry: Mapping[int, Callable[..., Any]], key: int) -> Callable[..., Any]:
    """A hook that calls another until that one's handle removes it."""
    return lambda *args: registry[key](*args) if key in registry else None


def _may_count(value: Any) -> bool:
    """Whether it is made of numbers, flags, strings and tensors only; parameters are none of these."""
    if isinstance(value, torch.Tensor):
        return not value.requires_grad
    if type(value) in (list, tuple, set, frozenset, deque):
        return all(map(_may_count, value))
    if type(value) in _BY_KEY:
        return all(map(_may_count, (*value.keys(), *value.values())))
    return value is None or isinstance(value, (Number, str))
