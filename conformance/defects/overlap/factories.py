"""Defects of area overlap: factories: defaults and refusals."""

from __future__ import annotations

import torch.distributed as dist

import impl.overlap
import impl.overlap.hooks

from ..planting import defect, edit, swap


@defect("HOOK-005")
def backend_is_looked_at_first() -> None:
    """The backend is refused before anybody looks whether the optimizer was built for overlap."""
    def check(hook: object, ddp: object, zero: object, reduce_scatter: bool) -> None:
        if dist.get_backend(ddp.process_group) == "gloo":
            raise RuntimeError("overlapping is not supported on gloo")
        right(hook, ddp, zero, reduce_scatter)

    right = swap(impl.overlap.hooks, "_check", check)


@defect("HOOK-002")
def buckets_are_sharded_by_default() -> None:
    """The sequential factory shards buckets unless it is told not to."""
    edit("shard_buckets: bool = False", "shard_buckets: bool = True", within="hook_with_zero_step")


@defect("HOOK-007")
def factory_registers_by_itself() -> None:
    """A factory registers the hook that it makes, so the user's registration is refused."""
    edit(
        "    return hook_with_zero_fn\n",
        "    ddp.register_comm_hook(ddp.process_group, hook_with_zero_fn)\n    return hook_with_zero_fn\n",
    )


@defect("HOOK-004", "HOOK-041")
def gloo_is_refused_without_its_name() -> None:
    """The backend Gloo is refused, but the error does not say so and is of another class."""
    def check(hook: object, ddp: object, zero: object, reduce_scatter: bool) -> None:
        right(hook, ddp, zero, reduce_scatter)
        if dist.get_backend(ddp.process_group) == "gloo":
            raise ValueError("this backend cannot overlap")

    right = swap(impl.overlap.hooks, "_check", check)


@defect("HOOK-007", "HOOK-018")
def made_hook_takes_the_bucket_first() -> None:
    """The function that a factory makes takes its arguments in the wrong order."""
    edit("hook_with_zero_fn(state: Any, bucket: GradBucket)", "hook_with_zero_fn(bucket: GradBucket, state: Any)")


@defect("HOOK-008")
def model_is_kept_alive() -> None:
    """The made hook holds the model itself, not a weak reference to it."""
    edit("self._ddp = weakref.ref(ddp)", "self._ddp = lambda: ddp", within="OverlapSession.__init__")


@defect("HOOK-001", worlds=(1,))
def module_exports_its_helpers() -> None:
    """The module of the overlap hooks exports more than its two factories."""
    swap(impl.overlap, "__all__", ["OverlapSession", "hook_with_zero_step", "hook_with_zero_step_interleaved"])


@defect("HOOK-003", "HOOK-005")
def optimizer_that_steps_by_itself_is_let_in() -> None:
    """A factory does not ask whether the optimizer was built for overlap, and fails on an assertion of its own."""
    edit("if zero.overlap is None:", "if zero.shard is None:")


@defect("HOOK-006", "HOOK-039", worlds=(2, 3))
def sharding_is_not_told_to_the_optimizer() -> None:
    """The optimizer is not told that buckets are to be sharded."""
    edit("    overlap.info.shard_buckets = shard_buckets\n", "")
