"""Defects of area overlap: gradient values."""

from __future__ import annotations

from ..planting import defect, edit


@defect("DDPJ-010")
def partial_steps_leave_their_gradients() -> None:
    """After a partial step a parameter goes on showing the gradient that it was stepped with, on joined ranks too."""
    edit("            parameter.grad = before", "            pass")
