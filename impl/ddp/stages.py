"""THE order of an iteration: which collectives it makes, in which order, for live and for joined ranks alike.

    stage          due                                  a live rank                       a joined rank
    -------------  -----------------------------------  --------------------------------  -------------------------
    (roll call)    inside a join, at every forward      adds itself; asynchronous         adds nothing
    REPLAN         bucket order has just become known   agrees on the source's order      receives it
    BUFFERS        before forward, if they are synced   takes the source's buffers        takes them too
    BUFFERS_AFTER  after forward, if a hook says so     calls the buffer hook             calls it with its buffers
    BUCKETS        the first bucket is full             starts it, announcing them all    zeros, bucket by bucket;
                                                                                          then what follows, too
    BUCKET         a further bucket is full             starts it                         zeros for one bucket
    FINISH         all have started, backward is over   who used what; hands out results  used nothing; takes nothing
    DELAYED        after FINISH                         its delayed gradients             zeros
    PARAMETER      a gradient, where there are no       averages it                       nobody can: refused
                   buckets

``order_of`` is this table for the machine. Live ranks go through its rows (``Iteration.go_through``), joined ones
shadow them (``Iteration.shadow``); nothing else in an iteration starts a collective. Where several models train in one
context, BUCKET and FINISH are announced one by one, and BUCKETS never.

A joined rank never works out which stage is next: live ranks announce it (``Session.announce``). The source is group
rank 0, or inside a join the highest rank that is still active.
"""

from __future__ import annotations

from .buffers import BufferSync
from .delayed import DelayedReduction
from .iteration import Moment, Order, Row, Stage
from .per_parameter import PerParameterReduction
from .reducer import Reducer


def order_of(
    reducer: Reducer, buffers: BufferSync, delayed: DelayedReduction | None, parameters: PerParameterReduction
) -> Order:
    """The stages of the model that has these parts, in their order."""
    reduction = reducer.reduction
    before, after, within = Moment.BEFORE_FORWARD, Moment.AFTER_FORWARD, Moment.IN_BACKWARD
    order = Order({
        Stage.REPLAN: Row(before, reducer.replan_due, reducer.replan, reducer.replan),
        Stage.BUFFERS: Row(before, buffers.due_before_forward, buffers.synchronise, buffers.synchronise),
        Stage.BUFFERS_AFTER: Row(after, buffers.due_after_forward, buffers.synchronise, buffers.synchronise),
        Stage.BUCKETS: Row(within, reduction.bucket_due, reduction.start_bucket, reduction.shadow_all),
        Stage.BUCKET: Row(within, reduction.bucket_due, reduction.start_bucket, reduction.shadow_bucket),
        Stage.FINISH: Row(within, reduction.finish_due, reduction.finish, reduction.shadow_finish),
        Stage.PARAMETER: Row(within, parameters.due, parameters.reduce, None),
    })
    if delayed is not None:
        order[Stage.DELAYED] = Row(within, lambda: True, delayed.reduce, delayed.shadow)
    return order
