"""The two factories: a communication hook that reduces as before and also steps a ZeroRedundancyOptimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..arguments import flag
from ..comm.ranks import Team
from ..ddp.buckets import GradBucket
from ..ddp.hooks.reduction import Hook, call_hook
from ..ddp.wrapper import DistributedDataParallel
from ..zero.optimizer import ZeroRedundancyOptimizer
from .bucket_reduction import BucketReduction, OwnerReduction, WrappedReduction
from .clipping import Clipping
from .layout import BucketPart
from .session import OverlapSession, Schedule

_OverlapHook = Callable[[Any, GradBucket], "torch.futures.Future[torch.Tensor]"]


def hook_with_zero_step(
    hook: Hook | None,
    ddp: DistributedDataParallel,
    zero: ZeroRedundancyOptimizer,
    shard_buckets: bool = False,
    *,
    reduce_scatter: bool = False,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    warm_up_iterations: int = 0,
) -> _OverlapHook:
    """A communication hook that runs ``hook`` and steps ``zero`` once all buckets' reductions have been started.

    Register it with ``ddp.register_comm_hook(state, ...)`` and do not call ``zero.step()``: when ``backward`` returns,
    all parameters are updated and equal on all ranks, from the first iteration on, on any backend. The optimizer's
    settings are read in every iteration. Suits communication that is slow beside the computation.

    Args:
        hook: the communication hook to extend, for example ``allreduce_hook``. Its future's value is what is stepped,
            and what ``.grad`` holds afterwards; the returned futures are its own.
        ddp: the model; held weakly.
        zero: the optimizer, built with ``overlap_with_ddp=True``, over the model's parameters or some of them.
        shard_buckets: cut each bucket into pieces of all owners, for an even load of ranks and links; otherwise bucket
            k belongs to rank k modulo the number of ranks.
        reduce_scatter: sum each gradient on its owner only, and nowhere else: two thirds of the bytes of all-reduce and
            broadcast. After ``backward`` ``.grad`` then holds the average on the rank that owns the parameter and zeros
            on the others, so clear gradients before each backward: kept ones would count once, and not on all ranks.
            ``hook`` is not called; it must be None or an ``allreduce_hook``.
        max_norm: clip the gradients of ``zero``'s parameters together to this norm before the step, as
            ``clip_grad_norm_`` would (also in ``.grad``, unless this hook is wrapped by another that copies what it
            returns, such as ``fp16_compress_wrapper``: wrap ``hook`` instead); those of others stay as they are. The
            norm before clipping is ``zero.overlap.info.total_norm``.
        norm_type: which norm.
        warm_up_iterations: how many iterations, from the first on, only reduce the gradients by ``hook`` and step
            nothing. A script that spends iterations on the warm-up of torch's hooks gives torch's number: 2, or 3 for a
            static graph (HOOK-011, HOOK-012).

    Raises:
        ValueError: ``zero`` does not overlap, some of its parameters are not reduced by ``ddp``, or the keywords do not
            go together. TypeError: ``ddp`` or ``zero`` is not of this package.
    """
    clipping = None if max_norm is None else Clipping(max_norm, norm_type)
    return _make(hook, ddp, zero, shard_buckets, Schedule.SEQUENTIAL, reduce_scatter, warm_up_iterations, clipping)


def hook_with_zero_step_interleaved(
    hook: Hook | None,
    ddp: DistributedDataParallel,
    zero: ZeroRedundancyOptimizer,
    shard_buckets: bool = False,
    *,
    reduce_scatter: bool = False,
    warm_up_iterations: int = 0,
) -> _OverlapHook:
    """Like ``hook_with_zero_step``, but each bucket is stepped and sent while later ones are still being computed.

    Suits communication that is fast beside the computation. The results are the same. The gradients cannot be clipped
    together, because the first step happens before the last gradient is known.
    """
    return _make(hook, ddp, zero, shard_buckets, Schedule.INTERLEAVED, reduce_scatter, warm_up_iterations, None)


def _make(
    hook: Hook | None,
    ddp: DistributedDataParallel,
    zero: ZeroRedundancyOptimizer,
    shard_buckets: bool,
    schedule: Schedule,
    reduce_scatter: bool,
    warm_up_iterations: int,
    clipping: Clipping | None,
) -> _OverlapHook:
    if warm_up_iterations < 0:
        raise ValueError(f"warm_up_iterations must be 0 or more, not {warm_up_iterations}.")
    shard_buckets, reduce_scatter = flag("shard_buckets", shard_buckets), flag("reduce_scatter", reduce_scatter)
    _check(hook, ddp, zero, reduce_scatter)
    if warm_up_iterations and hook is None:
        raise ValueError("warm_up_iterations needs a hook that reduces meanwhile: give an allreduce_hook, not None.")
    overlap = zero.overlap
    assert overlap is not None

    def reducing(state: Any, bucket: GradBucket, part: BucketPart, team: Team) -> BucketReduction:
        if reduce_scatter:
            return OwnerReduction(bucket, part, team)
        assert hook is not None
        return WrappedReduction(hook, state, bucket, part, team, changed=clipping is not None)

    session = OverlapSession(ddp, zero, overlap, schedule, reducing, clipping)
    overlap.info.shard_buckets = shard_buckets
    overlap.info.total_size = 0 if shard_buckets else None
    begun = 0  # iterations, lived or shadowed, so that the warm-up ends alike on every rank

    def hook_with_zero_fn(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal begun
        begun += bucket.index() == 0
        if begun <= warm_up_iterations:
            assert hook is not None
            return call_hook(hook, state, bucket)
        return session.on_bucket(state, bucket)

    return hook_with_zero_fn


def _check(hook: Hook | None, ddp: object, zero: object, reduce_scatter: bool) -> None:
    if not isinstance(zero, ZeroRedundancyOptimizer) or not isinstance(ddp, DistributedDataParallel):
        raise TypeError(
            "the overlap hooks need a DistributedDataParallel and a ZeroRedundancyOptimizer of this package, not "
            f"{type(ddp).__module__}.{type(ddp).__name__} and {type(zero).__module__}.{type(zero).__name__}."
        )
    if zero.overlap is None:
        raise ValueError(
            "The ZeroRedundancyOptimizer steps by itself, so it cannot be stepped inside backward: construct it with "
            "overlap_with_ddp=True."
        )
    if ddp.mixed_precision is not None:
        raise ValueError(
            "The overlap hooks step full parameters with full gradients, which a DistributedDataParallel with "
            "mixed_precision does not reduce. Use torch.autocast, or an optimizer that steps by itself."
        )
    managed = {id(parameter) for parameter in ddp.reducer.parameters}
    missing = [index for index, p in enumerate(zero.shard.parameters()) if p.requires_grad and id(p) not in managed]
    if missing:
        raise ValueError(
            f"Parameter(s) {missing} of the optimizer are not reduced in buckets by this DDP, so they would never be "
            "stepped. Usual cause: parameters of another model, ignored ones, or delayed ones "
            "(delay_all_reduce_named_params). Give those to an optimizer of their own."
        )
    if reduce_scatter:
        _check_reduce_scatter(hook, ddp, zero)
    elif not callable(hook):
        raise TypeError(f"hook must be a communication hook, not {type(hook).__name__}.")


def _check_reduce_scatter(hook: Hook | None, ddp: DistributedDataParallel, zero: ZeroRedundancyOptimizer) -> None:
    if hook is not None and getattr(hook, "__name__", "") != "allreduce_hook":
        raise ValueError(
            "reduce_scatter=True replaces the reduction of the wrapped hook, so only None or an allreduce_hook can be "
            f"given, not {getattr(hook, '__name__', hook)!r}."
        )
    if zero.shard.team.global_ranks() != ddp.reducer.team.global_ranks():
        raise ValueError("reduce_scatter=True needs the optimizer and the DDP on the same ranks.")
