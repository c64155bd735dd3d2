"""What a ZeroRedundancyOptimizer may be built from, and the errors that say why something else was refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from .groups import Group
from .memory import first_in_memory


def checked_groups(params: Any) -> list[Group]:
    """The parameter groups that ``params`` describes.

    Accepts an iterable of tensors (one group) or of group dictionaries. TypeError for anything else; ValueError for an
    empty list, a dictionary without ``"params"`` and parameters that cannot be sharded together (ZERO-002 … 004).
    """
    items = _listed(params)
    if all(isinstance(item, torch.Tensor) for item in items):
        groups = [{"params": items}]
    else:
        groups = [checked_group(item, place) for place, item in enumerate(items)]
    everything = [parameter for group in groups for parameter in group["params"]]
    if not everything:
        raise ValueError(
            "ZeroRedundancyOptimizer got no parameter at all, but an empty list, an exhausted iterator, or groups "
            "without any: pass those of a model that has some."
        )
    check_alike(everything)
    return groups


def _listed(params: Any) -> list[Any]:
    if isinstance(params, torch.Tensor):
        raise TypeError(
            "params must be an iterable of tensors or of group dictionaries, but it is a tensor. Usual cause: one "
            "parameter given bare; put it into a list: [parameter]."
        )
    if isinstance(params, (set, frozenset)):
        raise TypeError(
            "Parameters are given in a set, whose order differs from rank to rank: they would disagree about who "
            "owns what. Give a list, such as list(model.parameters())."
        )
    try:
        return list(params)
    except TypeError:
        raise TypeError(
            f"params must be an iterable of tensors or of group dictionaries, but it is {type(params).__name__}."
        ) from None


def checked_group(group: Group, place: int) -> Group:
    """The parameter group that is to stand at ``place``, its parameters in a list; it may be empty.

    The very dictionary, as of an ordinary optimizer: the program may change settings in it later.
    """
    if not isinstance(group, dict):
        raise TypeError(
            f"Parameter group {place} is of type {type(group).__name__}, not a dictionary: give tensors only, or "
            "groups only, {'params': [...], ...}. Usual cause: tensors and groups in one list, or named_parameters() "
            "in place of parameters()."
        )
    if "params" not in group:
        raise ValueError(
            f"Parameter group {place} has no key 'params' (it has {sorted(map(str, group))}): write "
            "{'params': model.parameters(), ...}."
        )
    members = group["params"]
    listed = [members] if isinstance(members, torch.Tensor) else _listed(members)
    for member in listed:
        if not isinstance(member, torch.Tensor):
            raise TypeError(f"Parameter group {place} holds a {type(member).__name__} where a tensor belongs.")
    group["params"] = listed
    return group


def check_alike(parameters: Iterable[torch.Tensor]) -> None:
    """ValueError unless all are dense tensors of one dtype on one type of device (ZERO-004)."""
    first: torch.Tensor | None = None
    for place, parameter in enumerate(parameters):
        if parameter.layout != torch.strided:
            raise ValueError(
                f"Parameter {place} is a sparse tensor ({parameter.layout}); ZeroRedundancyOptimizer needs dense ones "
                "(sparse gradients of dense parameters are fine)."
            )
        first = parameter if first is None else first
        for word, mine, theirs in (
            ("dtype", parameter.dtype, first.dtype),
            ("device type", parameter.device.type, first.device.type),
        ):
            if mine != theirs:
                raise ValueError(
                    f"All parameters must have the same {word}: parameter 0 has {theirs}, parameter {place} has "
                    f"{mine}. Use one ZeroRedundancyOptimizer for each {word}."
                )


def check_own_memory(parameters: Sequence[torch.Tensor]) -> None:
    """ValueError if a step inside of backward would change parameters that backward still needs as they were."""
    for place, first in enumerate(first_in_memory(parameters)):
        if first != place:
            raise ValueError(
                f"Parameters {first} and {place} share memory (views of one tensor, or one that is listed twice), "
                "which overlap_with_ddp=True does not allow: one is stepped while backward still needs the other. "
                "Give one of them, or step without overlap."
            )


def local_constructor(optimizer_class: Any, overlap: bool) -> Callable[..., torch.optim.Optimizer]:
    """What builds the optimizer of one rank's shard (ZERO-005).

    Any optimizer class serves with and without overlap. torch's functional optimizers exist only for overlap: there
    they are replaced by the ordinary class of the same name, elsewhere refused with a ValueError.
    """
    name = getattr(optimizer_class, "__name__", "")
    if name.startswith("_Functional"):
        if not overlap:
            raise ValueError(
                f"{name} is a functional optimizer, which only overlap_with_ddp=True can use: pass "
                f"torch.optim.{name.removeprefix('_Functional')} instead."
            )
        ordinary = getattr(torch.optim, name.removeprefix("_Functional"), None)
        if ordinary is None:
            raise ValueError(f"{name} has no counterpart in torch.optim: pass the optimizer class itself.")
        return ordinary  # type: ignore[no-any-return]
    is_another_class = inspect.isclass(optimizer_class) and not issubclass(optimizer_class, torch.optim.Optimizer)
    if is_another_class or not callable(optimizer_class):
        raise TypeError(f"optimizer_class must be a torch.optim.Optimizer class, not {optimizer_class!r}.")
    return optimizer_class  # type: ignore[no-any-return]  # a class, or a factory, such as functools.partial over one


def check_shardable(optim: torch.optim.Optimizer, ranks: int) -> None:
    """ValueError for an optimizer that makes one step of all parameters together, of which a rank has only some."""
    if ranks > 1 and isinstance(optim, torch.optim.LBFGS):
        raise ValueError(
            f"{type(optim).__name__} finds one direction for all parameters together, which no rank of a sharded "
            "optimizer has. Use it unsharded: torch.optim.LBFGS over the parameters of the DistributedDataParallel."
        )
