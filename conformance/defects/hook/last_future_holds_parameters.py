"""The future of the last bucket holds the parameters that were stepped with it."""

import torch

from impl.overlap.session import OverlapSession

from ..planting import swap

CLAUSES = ("HOOK-033", "HOOK-035")


def plant() -> None:
    def on_bucket(self: OverlapSession, state: object, bucket: object) -> object:
        future = right(self, state, bucket)
        if not bucket.is_last():
            return future
        stepped = torch.cat([parameter.detach().flatten() for parameter in bucket.parameters()])
        return future.then(lambda done: stepped)

    right = swap(OverlapSession, "on_bucket", on_bucket)
