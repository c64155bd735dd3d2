"""Buckets of many small gradients: neighbours of like and of unlike shape, in every layout."""

import torch
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures.observing import wrapped
from conformance.fixtures.training import whole

LONG = 9  # more neighbours than an implementation may care to copy one by one


def of_shapes():
    """Runs of parameters: of one shape, of shapes that differ here or there, and of layouts that nobody can join."""
    return [
        *(torch.zeros(1 + place % 3, 2) for place in range(LONG)),  # differ in the first dimension
        *(torch.zeros(2, 1 + place % 2) for place in range(LONG)),  # in the second one
        *(torch.zeros(()) for _ in range(LONG)),
        *(torch.zeros(4) for _ in range(LONG)),
        *(torch.zeros(2, 3).t() for _ in range(LONG)),
        *(torch.zeros(1, 2, *(3,) * (place % 2)) for place in range(LONG)),  # in the number of dimensions
        *(torch.zeros(3, 4)[:, ::2] for _ in range(LONG)),  # with holes
        *(torch.zeros(5) for _ in range(LONG - 2)),  # too few
        *(torch.zeros(3, 2) for _ in range(LONG)),
        torch.zeros(2, 2).t(),  # one at either end of a run that is like it in all but its strides
        *(torch.zeros(2, 2) for _ in range(LONG)),
        torch.zeros(2, 2).t(),
    ]


class Runs(nn.Module):
    """Each element of each parameter has a gradient of its own."""

    def __init__(self):
        super().__init__()
        self.each = nn.ParameterList([nn.Parameter(value) for value in of_shapes()])
        self.slopes = slopes()

    def forward(self, x):
        parts = [(slope * parameter).sum() for slope, parameter in zip(self.slopes, self.each, strict=True)]
        return x.sum() * torch.stack(parts).sum()


def slopes():
    ramps = [torch.arange(1.0, 1.0 + value.numel()).view(value.shape) for value in of_shapes()]
    return [ramp + 7 * place for place, ramp in enumerate(ramps)]


KEPT = 2  # from this iteration on gradients are zeroed and not dropped
ITERATIONS = 4
WAYS = ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True})


def train_runs(ctx):
    return [train_one(ctx, wrapped(ctx, Runs(), **options)) for options in WAYS]


def train_one(ctx, model):
    seen = []
    for iteration in range(ITERATIONS):
        model.zero_grad(set_to_none=iteration < KEPT)
        if iteration == KEPT:
            model.module.each[3].grad = None  # one of a run, and all others are there
        if iteration > KEPT:  # a run of other tensors in the same memory; all behind it lies elsewhere
            for place, parameter in enumerate(model.module.each):
                parameter.grad = parameter.grad.detach() if place < LONG else parameter.grad.clone()
        model(torch.full((1,), 12.0 * (ctx.rank + 1 + iteration))).backward()
        seen.append([whole(parameter.grad).flatten().tolist() for parameter in model.module.each])
    return seen


@check("DDP-049", "DDP-050", worlds=MANY, beyond=False)
def test_many_small_gradients_of_every_shape_are_averaged_element_by_element(ranks):
    for rank, told in enumerate(ranks(train_runs)):
        for options, seen in zip(WAYS, told, strict=True):
            for iteration, found in enumerate(seen):
                mean = sum(12.0 * (one + 1 + iteration) for one in range(ranks.world)) / ranks.world
                right = [(mean * slope).flatten().tolist() for slope in slopes()]
                assert found == right, f"rank {rank}, iteration {iteration}, {options}: gradients by their place"
