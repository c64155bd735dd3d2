"""A stranger in a manual partition is let in if it equals a parameter of the optimizer."""

from impl.zero.compat import CompatibleNames

from ..planting import edit

CLAUSES = ("ZERO-029",)


def plant() -> None:
    edit(
        CompatibleNames, "_verify_params_per_rank",
        "if id(parameter) not in known:",
        "if not any(torch.equal(parameter, own) for own in self._parameters()):",
    )
