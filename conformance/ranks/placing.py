"""Makes what a check creates lie on its rank's accelerator, with the numbers that it would have on the CPU.

Checks write ``torch.ones(1, 1)`` and ``nn.Linear(4, 4)`` and leave open where that lies; the oracle computes with the
same words on the CPU of another process. So on an accelerator a check's tensors are made on the CPU and moved, and
random numbers are drawn on the CPU: an accelerator's own generator would draw others. (``torch.set_default_device``
draws there, and would also place what the implementation under test makes, which is to be judged as it is.)
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

#: Whose calls are placed: the suite's own and those of the modules that it builds.
_CALLERS = ("conformance.", "torch.nn.modules.", "torch.nn.init", "torch.nn.parameter")
_FACTORIES = frozenset(
    {
        torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.logspace, torch.ones, torch.rand,
        torch.randint, torch.randn, torch.randperm, torch.tensor, torch.zeros,
    }
)  # fmt: skip
_FILLERS = frozenset(
    {
        torch.Tensor.bernoulli_, torch.Tensor.cauchy_, torch.Tensor.exponential_, torch.Tensor.geometric_,
        torch.Tensor.log_normal_, torch.Tensor.normal_, torch.Tensor.random_, torch.Tensor.uniform_,
    }
)  # fmt: skip


@contextlib.contextmanager
def placed_on(device: torch.device) -> Iterator[None]:
    """Inside the block, what the suite's code creates without naming a device lies on this one."""
    if device.type == "cpu":
        yield
        return
    with _Placing(device):
        yield


def moved(value: Any, device: torch.device) -> Any:
    """A rank function's argument with the tensors in its lists, tuples and dictionaries on this device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if type(value) in (list, tuple):
        return type(value)(moved(each, device) for each in value)
    return {key: moved(each, device) for key, each in value.items()} if type(value) is dict else value


class _Placing(TorchFunctionMode):
    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES and kwargs.get("device") is None and kwargs.get("out") is None and _asked_by_us():
            return self._made(func, args, kwargs)
        if _is_init(func) or (func in _FILLERS and _asked_by_us()):
            return self._filled(func, args, kwargs)
        return func(*args, **kwargs)

    def _made(self, func: Callable[..., torch.Tensor], args: Any, kwargs: Any) -> torch.Tensor:
        wants_gradient = bool(kwargs.get("requires_grad"))  # of what is moved, which must be a leaf
        made = func(*args, **{**kwargs, "requires_grad": False}) if wants_gradient else func(*args, **kwargs)
        copied = func is torch.tensor and any(isinstance(arg, torch.Tensor) for arg in args)  # stays where that one is
        return (made if copied else made.to(self._device)).requires_grad_(wants_gradient)

    def _filled(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        target = args[0] if args else kwargs.get("tensor")
        if not isinstance(target, torch.Tensor) or target.device.type != self._device.type:
            return func(*args, **kwargs)
        on_cpu = torch.empty_like(target.detach(), device="cpu")  # every filler fills it all
        func(on_cpu, *args[1:], **{name: value for name, value in kwargs.items() if name != "tensor"})
        with torch.no_grad():
            target.copy_(on_cpu)
        return target


def _asked_by_us() -> bool:
    """Whether the call that a mode's ``__torch_function__`` looks at comes from code that is to be placed."""
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith(_CALLERS)


def _is_init(func: Any) -> bool:
    """Whether this is one of ``torch.nn.init``, which torch hands over as a whole."""
    return getattr(func, "__module__", "") == "torch.nn.init" and getattr(func, "__name__", "").endswith("_")
