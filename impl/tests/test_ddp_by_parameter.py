"""The mode without buckets beside other features: what is averaged, and what is refused."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward

from impl.ddp import DistributedDataParallel
from impl.ddp.mixed_precision import _MixedPrecision


def scalar():
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    return layer


def mine(ctx):
    return torch.full((1, 1), float(ctx.rank + 1))


def by_parameter(module, **options):
    ddp = DistributedDataParallel(module, **options)
    ddp._register_accum_grad_hook()
    return ddp


def thaw(ctx):
    module = nn.Sequential(scalar(), scalar())
    module[0].requires_grad_(False)
    ddp, seen = by_parameter(module), []
    for iteration in range(4):
        module[0].requires_grad_(iteration > 1)
        ddp.zero_grad()
        ddp(mine(ctx)).sum().backward()
        seen.append([None if each.grad is None else each.grad.item() for each in module.parameters()])
    return seen


def test_what_is_thawed_is_averaged_from_then_on(run):
    assert run(thaw, world=2) == [[[None, 1.5]] * 2 + [[1.5, 1.5]] * 2] * 2


def look_up(ctx):
    ddp = by_parameter(nn.Embedding(3, 1, sparse=True))
    ddp(torch.tensor([ctx.rank, 2])).sum().backward()
    gradient = ddp.module.weight.grad
    return gradient.is_sparse, gradient.to_dense().flatten().tolist()


def test_a_sparse_gradient_is_averaged(run):
    assert run(look_up, world=2) == [(True, [0.5, 0.5, 1.0])] * 2


def attach(layer):
    _apply_optimizer_in_backward(torch.optim.SGD, layer.parameters(), {"lr": 1.0})
    return layer


def fuse(ddp):
    ddp._register_fused_optim(torch.optim.SGD, 1.0)
    return ddp


def fuse_first(_ctx):
    fuse(DistributedDataParallel(scalar()))._register_accum_grad_hook()


def fuse_later(_ctx):
    fuse(by_parameter(scalar()))


def attach_first(ctx):
    by_parameter(attach(scalar()))(mine(ctx))


def attach_later(ctx):
    ddp = DistributedDataParallel(attach(scalar()))
    ddp(mine(ctx)).sum().backward()
    ddp._register_accum_grad_hook()


def delay(_ctx):
    module = nn.Sequential(scalar(), scalar())
    delayed = [("1.weight", module[1].weight)]
    by_parameter(module, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=module[0].weight)


def lower(_ctx):
    by_parameter(scalar(), mixed_precision=_MixedPrecision(reduce_dtype=torch.float16))


@pytest.mark.parametrize(("feature", "name"), [
    (fuse_first, "an optimizer in backward"),
    (fuse_later, "a fused SGD"),
    (attach_first, "an optimizer in backward"),
    (attach_later, "an optimizer in backward"),
    (delay, "delay_all_reduce_named_params"),
    (lower, "mixed_precision"),
])  # fmt: skip
def test_what_acts_when_buckets_are_reduced_is_refused_beside_it(gloo_cluster, feature, name):
    for outcome in gloo_cluster.run(feature, (), world=2, subject="impl").outcomes:
        assert "RuntimeError" in str(outcome)
        assert f"after which {name} would act" in str(outcome)


def synchronise_buffers(ctx):
    """The buffer hook starts a broadcast and leaves the waiting to DDP."""
    layer = scalar()
    layer.register_buffer("number", torch.zeros(1))
    ddp = by_parameter(layer)
    done = []

    def broadcast(_state, buffers):
        future = dist.broadcast(buffers["number"], 0, async_op=True).get_future()
        future = future.then(lambda _: done.append(True))
        return [future]

    ddp._register_buffer_comm_hook(None, broadcast)
    for iteration in range(3):
        layer.number.fill_(10 * iteration + ctx.rank)
        ddp(mine(ctx)).sum().backward()
        if len(done) != iteration + 1 or layer.number.item() != 10 * iteration:
            return f"iteration {iteration}: {done}, {layer.number}"
    return len(ddp._iteration.futures)


def test_what_buffer_hooks_have_started_is_waited_for(run):
    assert run(synchronise_buffers, world=2) == [0] * 2
