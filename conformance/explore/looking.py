"""Notes what a program leaves on a rank, moment by moment, so that two runs of it can be compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch


class Look:
    """What was noted: a value by moment and name. A gradient that is None is noted as None."""

    def __init__(self) -> None:
        self.noted: dict[tuple[str, str], Any] = {}

    def __call__(self, moment: str, module: Any, outputs: Any = None, other: Any = None) -> None:
        """Gradients, weights and buffers of the model (and of another one), and the outputs of its last forward."""
        for label, each in (("", module), ("other ", other)):
            if each is None:
                continue
            for name, parameter in each.named_parameters():
                self.noted[moment, f"gradient {label}{name}"] = _copied(parameter.grad)
            self.weights(moment, label, each)
            for name, buffer in each.named_buffers():
                self.noted[moment, f"buffer {label}{name}"] = _copied(buffer)
        if outputs is not None:
            self.outputs(moment, outputs)

    def weights(self, moment: str, label: str, module: Any) -> None:
        """The weights of a module alone."""
        for name, parameter in module.named_parameters():
            self.noted[moment, f"weight {label}{name}"] = _copied(parameter)

    def number(self, moment: str, name: str, value: int) -> None:
        """How often something has happened."""
        self.noted[moment, name] = value

    def outputs(self, moment: str, outputs: Any) -> None:
        """Every tensor of the outputs, and of what they hold."""
        for place, tensor in enumerate(tensors(outputs)):
            self.noted[moment, f"output {place}"] = _copied(tensor)

    def state(self, moment: str, optimizer: Any, consolidated: int | None = None) -> None:
        """The optimizer's state; of a sharded one, the whole of it on one rank of its group."""
        if consolidated is not None:
            optimizer.consolidate_state_dict(consolidated)
            if optimizer.join_process_group.rank() != consolidated:
                return
        for place, state in optimizer.state_dict()["state"].items():
            for name, value in state.items():
                self.noted[moment, f"state {place} {name}"] = _copied(value)

    def raised(self, moment: str, error: BaseException) -> None:
        """What a block raised, by its kind."""
        self.noted[moment, "raised"] = "RuntimeError" if isinstance(error, RuntimeError) else type(error).__name__


def as_literals(value: Any) -> Any:
    """A tensor as nested lists, after the name of its dtype if that is not float32; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.tolist() if value.dtype == torch.float32 else (str(value.dtype), value.tolist())


def _copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to_dense().clone() if value.is_sparse else value.detach().clone().contiguous()


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in a value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name))
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)
