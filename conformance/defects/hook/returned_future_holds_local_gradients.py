"""The returned future holds what the bucket was before its reduction."""

from impl.overlap.session import OverlapSession

from ..planting import swap

CLAUSES = ("HOOK-033", "HOOK-035")


def plant() -> None:
    def on_bucket(self: OverlapSession, state: object, bucket: object) -> object:
        local = bucket.buffer().clone()
        future = right(self, state, bucket)
        return future.then(lambda done: local)

    right = swap(OverlapSession, "on_bucket", on_bucket)
