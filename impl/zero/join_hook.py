"""ZeRO's join hook: a joined rank goes on stepping and publishing its shard for as long as live ranks step."""

from __future__ import annotations

from typing import Any

from ..join.hooks import FollowingHook
from .joining import ACTS, CONSOLIDATE, STEP


class _ZeROJoinHook(FollowingHook):
    """Follows the steps of one ZeroRedundancyOptimizer (ZERO-019, ZERO-021)."""

    acts = ACTS
    leads = False

    def __init__(self, zero: Any) -> None:
        from .optimizer import ZeroRedundancyOptimizer

        if not isinstance(zero, ZeroRedundancyOptimizer):
            raise AssertionError(
                "ZeRO's join hook serves a ZeroRedundancyOptimizer only, but it was given a "
                f"{type(zero).__name__}: let Join build it by listing the optimizer among the joinables."
            )
        self.zero = zero
        super().__init__()

    def main_hook(self) -> None:
        """Perform an optimizer step."""
        self.zero.step()

    def follow(self, act: int) -> None:
        """Perform the shadow of an announced act."""
        session = self.zero._join_session
        if session is None:
            raise RuntimeError("ZeRO was asked to follow an act outside of a join context.")
        if act == STEP:
            self.zero._joining.shadow_step(session)
        elif act == CONSOLIDATE:
            self.zero._joining.consolidate(session, None)
        else:
            raise AssertionError(f"ZeRO has no act {act}; its acts are {ACTS}")
