"""Stepping many small parameters at once: the foreach loops of torch's own optimizers, on the CPU too.

By default torch's optimizers take their parameters one by one on the CPU, at some 23 µs each for Adam, however small
they are. Their foreach loops do the same arithmetic, bit for bit, in 0.6 of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from .memory import PLAIN

#: Optimizers whose two loops give the same bits (``test_zero_at_once`` compares them).
_SAME_BITS = frozenset(
    {
        torch.optim.Adadelta,
        torch.optim.Adagrad,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adamax,
        torch.optim.RMSprop,
        torch.optim.Rprop,
        torch.optim.SGD,
    }
)

#: The dtypes in which they do; lower ones are rounded elsewhere.
_SAME_IN = frozenset({torch.float32, torch.float64})

#: Below this mean number of elements the foreach loops are faster; above it parameters do not stay in the cache between
#: one operation and the next.
_SMALL_NUMEL = 4096


@contextmanager
def small_ones_at_once(optim: torch.optim.Optimizer) -> Iterator[None]:
    """Let a step of ``optim`` inside this context take its small parameters at once, unless the user has chosen."""
    may = type(optim) in _SAME_BITS
    groups = [group for group in optim.param_groups if may and _is_worthwhile(group, optim.state)]
    for group in groups:
        group["foreach"] = True
    try:
        yield
    finally:
        for group in groups:
            group["foreach"] = None


def _is_worthwhile(group: dict[str, Any], state: Mapping[Any, Any]) -> bool:
    """Whether a group leaves the choice to the optimizer, which the optimizer would make for the slower loop."""
    parameters = group["params"]
    if len(parameters) < 2 or parameters[0].device.type != "cpu":
        return False  # on accelerators foreach is torch's own choice
    if group.get("foreach") is not None or group.get("fused") is not None or group.get("differentiable"):
        return False
    if group.get("nesterov"):
        return False  # there the step adds the momentum to the gradients in place
    if any(_holds_a_tensor(value) for name, value in group.items() if name != "params"):
        return False  # a tensor as learning rate or among the betas is refused there
    if not PLAIN.issuperset(map(type, parameters)):
        return False
    if sum(map(torch.Tensor.numel, parameters)) >= _SMALL_NUMEL * len(parameters):
        return False
    # gradients and states may be of another dtype than their parameters, which a program may have cast: then the two
    # loops round at other places
    return all(
        (tensor.dtype == parameter.dtype or tensor.shape != parameter.shape)
        and tensor.dtype in _SAME_IN for parameter in parameters
        for tensor in (parameter, parameter.grad, *state.get(parameter, {}).values())
        if isinstance(tensor, torch.Tensor)
    )  # fmt: skip


def _holds_a_tensor(setting: Any) -> bool:
    if type(setting) in (list, tuple):
        return any(map(_holds_a_tensor, setting))
    return isinstance(setting, torch.Tensor)
