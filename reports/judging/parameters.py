"""The numbers that decide whether a change is one: a single frozen value, printed wherever a verdict is shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameters:
    """How nights are judged. The defaults were found with ``make judge-power``; change one, and measure again."""

    window: int = 40  # nights that tonight is compared with, at most
    least: int = 10  # nights of reference without which nothing is judged
    reference: str = "torch"  # the subject whose time the others are divided by, where both ran interleaved

    def sentences(self) -> tuple[str, ...]:
        """The parameters in words, one sentence for each."""
        return (
            f"Tonight is compared with at most {self.window} nights and at least {self.least}.",
            f"Where {self.reference} was measured in the same processes, the ratio to it is judged.",
        )


DEFAULT = Parameters()
