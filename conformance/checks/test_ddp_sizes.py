"""Parameters and buffers of all sizes and layouts: large, empty, with odd strides, in several chunks."""

import torch
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.observing import TINY_MIB, wrapped
from conformance.fixtures.training import gradients, numbers, private, whole

# -- DDP-049: an implementation may well copy what is large in another way than what is small

LARGE = 10_000  # elements
WAYS = ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"bucket_cap_mb": TINY_MIB})


class Large(nn.Module):
    """Two large vectors; every local gradient is the input."""

    def __init__(self):
        super().__init__()
        self.each = nn.ParameterList([nn.Parameter(torch.ones(LARGE)) for _ in range(2)])

    def forward(self, x):
        return torch.stack([(x * parameter).sum() for parameter in self.each])


def average_large(ctx):
    """For every way and iteration: the elements that are not the mean, for each of the vectors."""
    ramp = 12 * torch.arange(1.0, LARGE + 1).remainder(1000)
    told = []
    for way in WAYS:
        model = wrapped(ctx, Large(), **way)
        for iteration in range(1, 4):
            model.zero_grad(set_to_none=iteration != 3)
            model(ramp * iteration * (ctx.rank + 1)).sum().backward()
            mean = ramp * iteration * (ctx.world + 1) / 2
            told.append([(whole(each.grad) != mean).sum().item() for each in model.module.each])
    return told


@check("DDP-049", worlds=MANY, beyond=False)
def test_large_gradients_are_the_mean_too(ranks):
    assert ranks(average_large) == [[[0, 0]] * 3 * len(WAYS)] * ranks.world


class Layouts(nn.Module):
    """Parameters that are not just a row of numbers; every element has a gradient of its own."""

    def __init__(self):
        super().__init__()
        made = {
            "row": torch.ones(5),
            "none at all": torch.ones(0, 3),
            "single": torch.ones(()),
            "transposed": torch.ones(3, 4).t(),
            "with holes": torch.ones(3, 8)[:, ::2],
            "channels last": torch.ones(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
        }
        self.each = nn.ParameterList([nn.Parameter(value) for value in made.values()])

    def forward(self, x):
        ramps = [torch.arange(1.0, 1.0 + parameter.numel()).view(parameter.shape) for parameter in self.each]
        return torch.stack([(x * ramp * parameter).sum() for ramp, parameter in zip(ramps, self.each, strict=True)])


def average_ramps(ctx, kind, options, iterations):
    told = []
    for option in options:
        model = wrapped(ctx, kind(), **option)
        for iteration in range(1, iterations + 1):
            model.zero_grad(set_to_none=True)
            model(12 * iteration * torch.tensor(ctx.rank + 1.0)).sum().backward()
            told.append(gradients(model))
    return told


@check("DDP-049", worlds=MANY, beyond=False)
def test_parameters_of_every_layout_are_averaged_element_by_element(ranks):
    options = [{**cap, **view} for cap in ({}, {"bucket_cap_mb": TINY_MIB})
               for view in ({}, {"gradient_as_bucket_view": True})]  # fmt: skip
    mean = 12 * (ranks.world + 1) / 2
    expected = []
    for iteration in (1, 2):
        alone = Layouts()
        alone(torch.tensor(iteration * mean)).sum().backward()
        expected.append(gradients(alone))
    assert ranks(average_ramps, Layouts, options, 2) == [expected * len(options)] * ranks.world


class Crowd(nn.Module):
    """Many small parameters, most beside others of like shape; every element has a gradient of its own."""

    def __init__(self):
        super().__init__()
        shapes = [(3,)] * 9 + [()] + [(rows, 2) for rows in range(1, 11)] + [(2, 2, 2)] * 3 + [(0,)] + [(5,)] * 8
        odd = {
            "turned": lambda: torch.ones(4, 3).t(),
            "turned, three dimensions": lambda: torch.ones(2, 2, 3).transpose(1, 2),
            "channels last": lambda: torch.ones(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
            "with holes": lambda: torch.ones(3, 4)[:, ::2],
        }
        values = [*map(torch.ones, shapes), *(make() for make in odd.values() for _ in range(9))]
        self.each = nn.ParameterList([nn.Parameter(value) for value in values])

    def forward(self, x):
        firsts = torch.arange(len(self.each)) * 30.0
        return torch.stack([
            (x * (first + torch.arange(1.0, 1.0 + one.numel()).view(one.shape)) * one).sum()
            for first, one in zip(firsts, self.each, strict=True)
        ])  # fmt: skip


@check("DDP-049", worlds=MANY, beyond=False)
def test_many_small_parameters_of_like_shape_keep_their_own_gradients(ranks):
    mean = 12 * (ranks.world + 1) / 2
    expected = []
    for iteration in (1, 2, 3):
        alone = Crowd()
        alone(torch.tensor(iteration * mean)).sum().backward()
        expected.append(gradients(alone))
    options = [{}, {"gradient_as_bucket_view": True}]
    assert ranks(average_ramps, Crowd, options, 3) == [expected * len(options)] * ranks.world


# -- DDP-005: what does not fit into one broadcast

CHUNK_BYTES = 64
KINDS = (torch.float32, torch.int64, torch.bool, torch.float64)
SIZES = (3, 40, 0, 8, 16)  # one of them alone is larger than a chunk


class ManyBuffers(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.a = models.scalar()
        for place, (kind, size) in enumerate((kind, size) for kind in KINDS for size in SIZES):
            values = torch.arange(size).add(place + 100 * rank).remainder(2 if kind is torch.bool else 1000)
            self.register_buffer(f"b{place}", values.to(kind))

    def forward(self, x):
        return self.a(x)


def synchronise_in_chunks(ctx):
    model = wrapped(ctx, ManyBuffers(0))
    private(model, "broadcast_bucket_size")
    model.broadcast_bucket_size = CHUNK_BYTES
    for name, buffer in ManyBuffers(ctx.rank).named_buffers():
        model.module.get_buffer(name).copy_(buffer)
    model(models.place(ctx.rank, 0)).sum().backward()
    return numbers(model.module.named_buffers())


@check("DDP-005", worlds=MANY, beyond=False)
def test_buffers_arrive_whole_in_however_many_chunks_they_travel(ranks):
    assert ranks(synchronise_in_chunks) == [numbers(ManyBuffers(0).named_buffers())] * ranks.world
