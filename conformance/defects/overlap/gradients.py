"""Defects of area overlap: gradient values."""

from __future__ import annotations

from ..planting import defect, edit


@defect("DDPJ-010")
def partial_steps_leave_their_gradients() -> None:
    """After a partial step a parameter goes on showing the gradient that it was stepped with, on joined ranks too."""
    edit(
        "        with shown_gradients(list(gradients.items())), ",
        "        for parameter, gradient in gradients.items():\n            parameter.grad = gradient\n        with ",
    )


@defect("HOOK-018")
def norm_of_a_sparse_gradient_without_its_rows() -> None:
    """A sparse gradient adds nothing to the norm by which all are clipped."""
    edit("gradient = gradient.coalesce().values()", "gradient = gradient.coalesce().values()[:0]")


@defect("COMM-014")
def lists_are_taken_for_tensors_where_gradients_are_clipped() -> None:
    """Where gradients are clipped a hook may answer with a list, of which the first tensor is taken."""
    edit("        return value\n    value = value.to(dtype)", "        value = value[0]\n    value = value.to(dtype)")
