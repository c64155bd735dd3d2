"""The plain hooks: all-reduce, and all-reduce in half precision, as hooks and as wrappers around other hooks.

Annotations in the hook modules are real objects rather than strings: a hook must also pass the validation of torch's
DDP, which compares them with the classes themselves.
"""

import torch
import torch.distributed as dist

from .reduction import GradBucket, Hook, TensorFuture, call_hook, mean


def allreduce_hook(process_group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket over ``process_group`` (None: the DDP's own). Changes nothing in DDP's results (COMM-019)."""
    return mean(process_group, bucket, bucket.buffer(), "all-reduce")


def fp16_compress_hook(process_group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket in float16: cast, divide, reduce, and cast back in place (COMM-020)."""
    return _compressed_mean(torch.float16, process_group, bucket)


def bf16_compress_hook(process_group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket in bfloat16: cast, divide, reduce, and cast back in place (COMM-006, COMM-020)."""
    return _compressed_mean(torch.bfloat16, process_group, bucket)


def fp16_compress_wrapper(hook: Hook) -> Hook:
    """``hook`` on the bucket in float16; its result is cast back to the bucket's dtype (COMM-021)."""

    def fp16_compress_wrapper_hook(hook_state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return _call_compressed(torch.float16, hook, hook_state, bucket)

    return fp16_compress_wrapper_hook


def bf16_compress_wrapper(hook: Hook) -> Hook:
    """``hook`` on the bucket in bfloat16; its result is cast back to the bucket's dtype (COMM-006, COMM-021)."""

    # the validation knows the hook that needs bfloat16 support by this name
    def bf16_compress_wrapper_hook(hook_state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return _call_compressed(torch.bfloat16, hook, hook_state, bucket)

    return bf16_compress_wrapper_hook


def _compressed_mean(dtype: torch.dtype, group: dist.ProcessGroup | None, bucket: GradBucket) -> TensorFuture:
    buffer = bucket.buffer()
    return mean(group, bucket, buffer.to(dtype), f"{dtype} all-reduce").then(lambda done: _restore(buffer, done))


def _call_compressed(dtype: torch.dtype, hook: Hook, hook_state: object, bucket: GradBucket) -> TensorFuture:
    """``set_buffer`` also moves the bucket's gradient views to the cast copy, so that any hook can be wrapped."""
    buffer = bucket.buffer()
    bucket.set_buffer(buffer.to(dtype))
    return call_hook(hook, hook_state, bucket).then(lambda done: _restore(buffer, done))


def _restore(buffer: torch.Tensor, done: TensorFuture) -> torch.Tensor:
    """Bring a reduced cast copy back into the buffer (a sparse one cannot be filled and is replaced)."""
    reduced = done.value()
    return reduced.to(buffer.dtype) if buffer.is_sparse else buffer.copy_(reduced.reshape(buffer.shape))
