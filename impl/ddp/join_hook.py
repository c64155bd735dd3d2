"""DDP's side of a join context: what a joined rank does, and how the ranks leave with the same model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..join.hooks import BrokenOff, FollowingHook
from . import stages
from .iteration import Stage

if TYPE_CHECKING:
    from .wrapper import DistributedDataParallel


class _DDPJoinHook(FollowingHook):
    """Follows the stages that live ranks announce.

    Raises AssertionError for anything but a complete DDP object (DDPJ-005). Creating it sets the model's divide rule
    (DDPJ-012) and the uneven-inputs entry of its log (DDPJ-006).
    """

    acts = tuple(stage.name for stage in Stage)
    leads = True

    def __init__(self, ddp: DistributedDataParallel, divide_by_initial_world_size: bool) -> None:
        from .wrapper import DistributedDataParallel

        assert isinstance(ddp, DistributedDataParallel), (
            f"DDP join hook requires a DistributedDataParallel, not {type(ddp).__name__}"
        )
        assert ddp.logger is not None, "DDP join hook requires a model with a logger; this one has lost it"
        ddp.logger._set_uneven_input_join()
        self.ddp = ddp
        ddp._divide_by_initial_world_size = divide_by_initial_world_size
        super().__init__()

    def follow(self, act: int) -> None:
        """Joined rank: go through the announced stage with nothing to contribute."""
        stages.shadow(self.ddp, Stage(act))

    def entered(self) -> None:
        """RuntimeError where gradients are averaged parameter by parameter, which nobody can shadow."""
        self.ddp._enter_uneven_inputs()

    def broken_off(self) -> BrokenOff | None:
        """What of this model's last iteration here an exception has ended."""
        return self.ddp._broken_iteration()

    def post_hook(self, is_last_joiner: bool) -> None:
        """All ranks take over the model of the highest rank among the last joiners (DDPJ-016 … DDPJ-020)."""
        self.ddp._sync_final_model(is_last_joiner)
