"""A joined rank sums its zeros without calling the registered communication hook."""

from impl.ddp.reduction import Reduction

from ..planting import swap

CLAUSES = ("DDPJ-033",)


def plant() -> None:
    def shadow_bucket(self: Reduction) -> bool:
        hook, self.traffic.hook = self.traffic.hook, None
        try:
            return right(self)
        finally:
            self.traffic.hook = hook

    right = swap(Reduction, "shadow_bucket", shadow_bucket)
