"""Hooks that average 8-bit gradients: every rank gathers everybody's quantised bucket and averages them itself.

Each rank sends one message, which holds its bytes together with what is needed to read them, so that one all-gather
does it. A message, for a bucket cut into ``c`` channels (per tensor: one):

    | c scales, wide floats | c zero points, uint8 | c * channel quantised values, uint8 | padding to a multiple of 8 |

A value is ``(byte - zero point) * scale``. The range of a channel always includes zero, and zero is exact: parameters
without a gradient and ranks that have joined contribute nothing.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from ...comm import collectives
from .reduction import GradBucket, TensorFuture, after, divisor_of, label_of, mean, team_of

_LEVELS = 255
_ALIGNED_BYTES = 8  # so that the scales of each rank's message can be read in place


def quantization_pertensor_hook(
    process_group: dist.ProcessGroup, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average 8-bit gradients with one scale for the whole bucket (COMM-029)."""
    return _gather_and_average(process_group, bucket, bucket.buffer().numel())


def quantization_perchannel_hook(
    process_group: dist.ProcessGroup, bucket: GradBucket, bucket_size: int = 512
) -> torch.futures.Future[torch.Tensor]:
    """Average 8-bit gradients with one scale for every ``bucket_size`` elements: finer than one for all (COMM-029)."""
    if bucket_size < 1:
        raise ValueError(f"quantization_perchannel_hook: bucket_size must be at least 1, got {bucket_size}.")
    return _gather_and_average(process_group, bucket, bucket_size)


@dataclass(frozen=True)
class _Layout:
    """Where things lie in one rank's message."""

    numel: int
    channel: int  # elements per channel; the last channel is filled up with zeros
    wide: torch.dtype  # of the scales and of the arithmetic

    @property
    def channels(self) -> int:
        return -(-self.numel // self.channel)

    @property
    def scale_bytes(self) -> int:
        return self.channels * self.wide.itemsize

    @property
    def used_bytes(self) -> int:
        return self.scale_bytes + self.channels + self.channels * self.channel

    @property
    def total_bytes(self) -> int:
        return -(-self.used_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES


def _gather_and_average(group: dist.ProcessGroup | None, bucket: GradBucket, channel: int) -> TensorFuture:
    buffer = bucket.buffer()
    if buffer.is_sparse or not buffer.numel():  # as small as it gets already
        return mean(group, bucket, buffer, "plain all-reduce")
    wide = torch.float64 if buffer.dtype == torch.float64 else torch.float32
    layout = _Layout(buffer.numel(), channel, wide)
    team = team_of(group, bucket)
    divisor = divisor_of(team, bucket)
    message = _encode(buffer, layout)
    everyone = torch.empty(team.size * layout.total_bytes, dtype=torch.uint8, device=buffer.device)
    pending = collectives.all_gather(team, everyone, message, label_of("8-bit all-gather", bucket))

    def average() -> torch.Tensor:
        rows = everyone.view(team.size, layout.total_bytes)
        total = _decode(rows[0], layout)
        for row in rows[1:]:
            total += _decode(row, layout)
        return buffer.copy_(total.flatten()[: layout.numel].div_(divisor))

    return after(pending, average)


def _encode(buffer: torch.Tensor, layout: _Layout) -> torch.Tensor:
    """``buffer`` [numel] -> message [total_bytes], uint8."""
    values = buffer.to(layout.wide)
    missing = layout.channels * layout.channel - layout.numel
    values = torch.nn.functional.pad(values, (0, missing)).view(layout.channels, layout.channel)
    low = values.amin(dim=1).clamp_(max=0)
    scale = (values.amax(dim=1).clamp_(min=0) - low) / _LEVELS
    # of a channel of zeros the scale is 0, and levels are undefined; one that is not finite shows in the result
    zero_point = (-low / scale).round_()
    levels = (values / scale.unsqueeze(1)).round_().add_(zero_point.unsqueeze(1)).clamp_(0, _LEVELS)
    message = torch.zeros(layout.total_bytes, dtype=torch.uint8, device=buffer.device)
    after_scales = layout.scale_bytes + layout.channels
    message[: layout.scale_bytes] = scale.view(torch.uint8)
    message[layout.scale_bytes : after_scales] = zero_point.nan_to_num_(0).to(torch.uint8)
    message[after_scales : layout.used_bytes] = levels.nan_to_num_(0).to(torch.uint8).flatten()
    return message


def _decode(message: torch.Tensor, layout: _Layout) -> torch.Tensor:
    """Message [total_bytes] -> values [channels, channel], wide."""
    after_scales = layout.scale_bytes + layout.channels
    scale = message[: layout.scale_bytes].view(layout.wide)
    zero_point = message[layout.scale_bytes : after_scales].to(layout.wide)
    levels = message[after_scales : layout.used_bytes].view(layout.channels, layout.channel).to(layout.wide)
    return levels.sub_(zero_point.unsqueeze(1)).mul_(scale.unsqueeze(1))
