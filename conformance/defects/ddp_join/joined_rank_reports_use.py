"""A joined rank reports all parameters as used, so nobody's unused ones keep what they had."""

from impl.ddp.use import Use

from ..planting import edit

CLAUSES = ("DDPJ-030",)


def plant() -> None:
    edit(Use, "told", "tells and self.here(index)", "not live or self.here(index)")
