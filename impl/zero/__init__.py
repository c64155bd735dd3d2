"""ZeroRedundancyOptimizer: any optimizer with its state sharded over the ranks, also on uneven inputs."""

from .join_hook import _ZeROJoinHook
from .optimizer import ZeroRedundancyOptimizer

__all__ = ["ZeroRedundancyOptimizer", "_ZeROJoinHook"]
