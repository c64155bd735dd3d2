"""THE order of an iteration: which collectives it makes, in which order, for live and for joined ranks alike.

    stage          when                                 a live rank                       a joined rank
    -------------  -----------------------------------  --------------------------------  -------------------------
    (roll call)    inside a join, at every forward      adds itself; asynchronous         adds nothing
    REPLAN         bucket order has just become known   agrees on the source's order      receives it
    BUFFERS        before forward, if they are synced   takes the source's buffers        takes them too
    BUFFERS_AFTER  after forward, if a hook says so     calls the buffer hook             calls it with its buffers
    BUCKETS        a synchronised backward              its gradients, bucket by bucket   zeros, bucket by bucket;
                                                        then who used what                used nothing
    BUCKET, FINISH the same in single steps, when several models train in one context
    DELAYED        after backward, if the trigger came  its delayed gradients             zeros

A joined rank never works out which stage is next: live ranks announce it (``Session.announce``). The source is group
rank 0, or inside a join the highest rank that is still active.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..comm import collectives
from .iteration import Stage

if TYPE_CHECKING:
    from .wrapper import DistributedDataParallel


def due_before_forward(ddp: DistributedDataParallel, *, sync: bool) -> list[Stage]:
    """The stages that this forward begins with; the same on all live ranks."""
    stages = []
    if sync and ddp.reducer.facts.rebuild_due:
        stages.append(Stage.REPLAN)
    if ddp._check_sync_bufs_pre_fwd() and not ddp._keeps_buffers():
        stages.append(Stage.BUFFERS)
    return stages


def perform(ddp: DistributedDataParallel, stage: Stage) -> None:
    """Go through a stage that live and joined ranks go through in the same way."""
    if stage is Stage.REPLAN:
        _replan(ddp)
    elif stage in (Stage.BUFFERS, Stage.BUFFERS_AFTER):
        ddp._sync_module_buffers()
    else:
        raise AssertionError(f"{stage.name} differs between live and joined ranks")


def shadow(ddp: DistributedDataParallel, stage: Stage) -> None:
    """Go through a stage on a joined rank."""
    reducer = ddp.reducer
    match stage:
        case Stage.BUCKETS:
            while reducer.shadow_bucket():
                pass
            reducer.shadow_finish()
        case Stage.BUCKET:
            reducer.shadow_bucket()
        case Stage.FINISH:
            reducer.shadow_finish()
        case Stage.DELAYED:
            ddp._shadow_delayed()
        case _:
            perform(ddp, stage)


def _replan(ddp: DistributedDataParallel) -> None:
    reducer = ddp.reducer
    device = reducer.team.control_device(reducer.buckets[0].spec.device)
    order = torch.tensor(reducer.proposed_order(), dtype=torch.int64, device=device)
    iteration = reducer.iteration
    agreed = collectives.broadcast(reducer.team, order, iteration.source(), "bucket order").wait(iteration.watch())
    reducer.rebuild(agreed.tolist())
    ddp._note_rebuilt()
