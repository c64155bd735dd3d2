"""Communication hooks that step a ZeroRedundancyOptimizer inside DDP's backward pass."""

from .hooks import hook_with_zero_step, hook_with_zero_step_interleaved

__all__ = ["hook_with_zero_step", "hook_with_zero_step_interleaved"]
