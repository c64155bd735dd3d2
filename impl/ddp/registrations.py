"""How often modules have been given something: a model is looked through again only where that has changed."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)


class Registrations:
    """Counts the new tensors and modules that this process puts into modules."""

    def __init__(self) -> None:
        self.count = 0
        register_module_parameter_registration_hook(self._given)
        register_module_module_registration_hook(self._given)
        register_module_buffer_registration_hook(self._given_buffer)

    def _given(self, _module: nn.Module, _name: str, value: object) -> None:
        self.count += value is not None

    def _given_buffer(self, module: nn.Module, name: str, value: Tensor | None) -> None:
        """One in the place of another is nothing new: some modules do that in every forward."""
        if module._buffers.get(name) is None:
            self._given(module, name, value)


registrations = Registrations()
