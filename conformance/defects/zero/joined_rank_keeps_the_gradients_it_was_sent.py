"""A joined rank's own gradients are replaced by those with which it stepped its shard."""

from impl.zero import joining

from ..planting import edit

CLAUSES = ("DDPJ-010",)


def plant() -> None:
    edit(
        joining,
        "shown_gradients",
        "before, strict=True):\n            parameter.grad = gradient",
        "before, strict=True):\n            continue",
    )
