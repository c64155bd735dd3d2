"""Forwards in a context of distributed autograd whose backward is an ordinary one, or leaves parameters out."""

import torch
import torch.distributed.autograd as dist_autograd
from torch import nn

from conformance.fixtures.rpc import remote_calls
from conformance.ranks import caught
from impl.ddp import DistributedDataParallel


class Two(nn.Module):
    """Scalars side by side; a forward may leave out the second."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Linear(1, 1, bias=False) for _ in range(2))
        for parameter in self.parameters():
            nn.init.ones_(parameter)

    def forward(self, x, both=True):
        return self.a(x) + self.b(x) if both else self.a(x)


def mine(ctx):
    return torch.full((1, 1), float(ctx.rank + 1))


def go_backward_in_the_ordinary_way(ctx):
    with remote_calls(ctx):
        ddp, seen = DistributedDataParallel(Two()), []
        for _ in range(3):
            ddp.zero_grad()
            with dist_autograd.context() as context:
                ddp(mine(ctx)).sum().backward()
                held = len(dist_autograd.get_gradients(context))
            seen.append([held, *(parameter.grad.item() for parameter in ddp.parameters())])
    return seen


def test_an_ordinary_backward_in_a_context_is_averaged_where_it_accumulates(run):
    assert run(go_backward_in_the_ordinary_way, world=2) == [[[0, 1.5, 1.5]] * 3] * 2


def leave_out(ctx):
    """Rank 0 uses both parameters in the first iteration, nobody the second one afterwards."""
    with remote_calls(ctx):
        ddp, seen = DistributedDataParallel(Two(), find_unused_parameters=True), []
        for iteration in range(2):
            with dist_autograd.context() as context:
                dist_autograd.backward(context, [ddp(mine(ctx), iteration == ctx.rank == 0).sum()])
                found = dist_autograd.get_gradients(context)
            seen.append([found[each].item() if each in found else None for each in ddp.parameters()])
    return seen


def test_a_parameter_that_ranks_leave_out_in_a_context_is_averaged_on_those_that_use_it(run):
    assert run(leave_out, world=2) == [[[1.5, 0.5], [1.5, None]], [[1.5, None], [1.5, None]]]


def keep_gradients_in_buckets(ctx):
    """What ``.grad`` holds from before, while a backward in a context is averaged in the same buckets."""
    with remote_calls(ctx):
        ddp = DistributedDataParallel(Two(), gradient_as_bucket_view=True)
        ddp(mine(ctx)).sum().backward()
        with dist_autograd.context() as context:
            dist_autograd.backward(context, [ddp(10 * mine(ctx)).sum()])
            found = dist_autograd.get_gradients(context)
        return [[found[each].item(), each.grad.item()] for each in ddp.parameters()]


def test_gradients_from_before_stay_what_they_were_also_where_they_lie_in_buckets(run):
    assert run(keep_gradients_in_buckets, world=2) == [[[15.0, 1.5]] * 2] * 2


def leave_one_incomplete(ctx):
    """The backward of one iteration leaves a parameter out without a search; whether the next forward says so."""
    with remote_calls(ctx):
        ddp = DistributedDataParallel(Two())
        with dist_autograd.context() as context:
            dist_autograd.backward(context, [ddp(mine(ctx), False).sum()])
        with dist_autograd.context():
            return str(caught(ddp, mine(ctx)))


def test_a_backward_in_a_context_that_leaves_a_parameter_out_is_reported_by_the_next_forward(run):
    assert all("find_unused_parameters" in said for said in run(leave_one_incomplete, world=2))
