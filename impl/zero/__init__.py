"""ZeroRedundancyOptimizer: any optimizer with its state sharded over the ranks, also on uneven inputs."""

from .optimizer import ZeroRedundancyOptimizer, _ZeROJoinHook

__all__ = ["ZeroRedundancyOptimizer", "_ZeROJoinHook"]
