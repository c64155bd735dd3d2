"""Models that are odd but right: buffers that share memory, empty parameters, bucket sizes that differ by rank."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import distribute_tensor, init_device_mesh

from impl.ddp import DistributedDataParallel
from impl.ddp.hooks import powerSGD_hook as powersgd
from impl.ddp.hooks import quantization_hooks
from impl.tests.comm_hook_ranks import run_on_ranks
from impl.tests.tracing import tracing

pytestmark = pytest.mark.slow


class Expanded(nn.Module):
    """Buffers that show one element many times."""

    def __init__(self, value):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("row", torch.full((1,), float(value)).expand(4))
        self.register_buffer("table", torch.arange(2.0).add(value).unsqueeze(1).expand(2, 3))
        self.register_buffer("number", torch.tensor(value))

    def forward(self, x):
        return (self.weight * x).sum() + self.row.sum()


def share_expanded_buffers(rank, world):
    model = DistributedDataParallel(Expanded(rank))
    started = [model.module.row.tolist(), model.module.table.tolist(), model.module.number.item()]
    model.module.number.fill_(7 + rank)
    model(torch.ones(1)).backward()
    return started, model.module.number.item()


def test_expanded_buffers_are_those_of_rank_0_on_every_rank():
    first = [[0.0] * 4, [[0.0] * 3, [1.0] * 3], 0]
    model = Expanded(0)
    assert [model.row.tolist(), model.table.tolist(), model.number.item()] == first
    assert run_on_ranks(share_expanded_buffers, 3) == [(first, 7)] * 3


class PartlyEmpty(nn.Module):
    """A parameter without elements, which has a bucket of its own because of its dtype."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.nothing = nn.Parameter(torch.ones(0, dtype=torch.float64))

    def forward(self, x):
        return (self.weight * x).sum() + self.nothing.sum()


HOOKS = {
    "batched PowerSGD": powersgd.batched_powerSGD_hook,
    "PowerSGD": powersgd.powerSGD_hook,
    "8 bits per tensor": quantization_hooks.quantization_pertensor_hook,
    "8 bits per channel": quantization_hooks.quantization_perchannel_hook,
}


def reduce_with_an_empty_bucket(rank, world, name):
    model = DistributedDataParallel(PartlyEmpty())
    state = powersgd.PowerSGDState(None, start_powerSGD_iter=2) if "PowerSGD" in name else dist.group.WORLD
    model.register_comm_hook(state, HOOKS[name])
    for _ in range(4):
        model.zero_grad()
        model(torch.full((4,), 4.0 * rank)).backward()
    return model.module.weight.grad.tolist(), model.module.nothing.grad.tolist()


@pytest.mark.parametrize("name", HOOKS)
def test_the_hooks_take_a_bucket_without_elements(name):
    for gradient, nothing in run_on_ranks(reduce_with_an_empty_bucket, 2, name):
        assert gradient == pytest.approx([2.0] * 4, rel=1e-6)
        assert nothing == []


def differ_in_bucket_sizes(rank, world, options):
    model = nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(4)])
    for layer in model:
        nn.init.eye_(layer.weight)
    ddp = DistributedDataParallel(model, **options[rank])
    with tracing() as labels:
        for _ in range(3):
            ddp.zero_grad()
            ddp(torch.full((1, 16), 2.0 * rank)).sum().backward()
    buckets = [label for label in labels if "bucket order" not in label]
    return buckets, model[0].weight.grad[0, 0].item(), ddp.bucket_bytes_cap


@pytest.mark.parametrize("other", [{}, {"bucket_cap_mb_list": [0.001, 0.002]}, {"bucket_cap_mb": 0.001}])
def test_the_bucket_sizes_of_rank_0_hold_for_all(other):
    options = [{"bucket_cap_mb": 0.002}, other, {}]
    everybody = run_on_ranks(differ_in_bucket_sizes, 3, options)
    assert everybody == [everybody[0]] * 3
    assert everybody[0][1:] == (2.0, int(0.002 * 2**20))


class Different(nn.Module):
    """A model that is another one on each rank."""

    def __init__(self, rank):
        super().__init__()
        self.first = nn.Parameter(torch.ones(1 + (rank == 1)))
        self.second = nn.Parameter(torch.ones(1, dtype=torch.float64 if rank == 2 else torch.float32))


def refuse_different_models(rank, world):
    with tracing() as labels, pytest.raises(RuntimeError) as error:
        DistributedDataParallel(Different(rank))
    return labels, str(error.value)


def test_two_ranks_describe_a_difference_and_each_rank_names_its_own():
    found = run_on_ranks(refuse_different_models, 4)
    described = ["model description: length", "model description"] * 2
    assert [labels for labels, _ in found] == [["model digests", *described]] * 4
    own = {0: "parameter 0 first", 1: "parameter 0 first", 2: "parameter 1 second", 3: "parameter 0 first"}
    for rank, (_, text) in enumerate(found):
        assert "group rank(s) [1, 2] differ" in text
        assert f"group rank 0 has [{own[rank]}" in text
        assert f"rank {rank if rank in (1, 2) else 1} has [{own[rank]}" in text


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)

    def forward(self, x):
        return self.a(x), self.b(x)


def leave_a_gradient_outside_the_loss(rank, world, as_view):
    model = DistributedDataParallel(TwoOutputs(), find_unused_parameters=True, gradient_as_bucket_view=as_view)
    sum(model(torch.ones(1, 1))).sum().backward()
    held = model.module.b.weight.grad.mul_(rank + 1).item()
    model(torch.ones(1, 1))[0].sum().backward()
    return held, model.module.b.weight.grad.item()


@pytest.mark.parametrize("as_view", [False, True])
def test_a_gradient_that_differs_between_ranks_is_left_alone_where_its_output_is_outside_the_loss(as_view):
    for held, left in run_on_ranks(leave_a_gradient_outside_the_loss, 2, as_view):
        assert left == held


class Late(nn.Module):
    """Makes its only buffer in its first forward, of what it sees there."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        self.register_buffer("first", None)

    def forward(self, x):
        if self.first is None:
            self.first = x.detach().clone()
        return self.layer(x) + self.first


def make_a_buffer_late(rank, world):
    model = DistributedDataParallel(Late())
    for _ in range(2):
        model(torch.full((1, 1), float(rank))).sum().backward()
    return model.module.first.item()


def test_a_buffer_that_the_first_forward_makes_is_that_of_rank_0_from_the_second_on():
    assert run_on_ranks(make_a_buffer_late, 3) == [0.0] * 3


class SparseByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.ones(4, 2))

    def forward(self, places):
        return torch.nn.functional.embedding(places, self.table, sparse=True)


def look_up_by_hand(rank, world):
    model = DistributedDataParallel(SparseByHand())
    with pytest.raises(RuntimeError, match=r"parameter at index 0, of shape \(4, 2\), is sparse"):
        model(torch.tensor([rank])).sum().backward()


def test_a_sparse_gradient_that_nobody_knew_of_is_refused_with_its_place():
    run_on_ranks(look_up_by_hand, 2)


class Scaled(nn.Module):
    """Returns what it computes and, as some models do, the parameter by which the loss is to scale that."""

    def __init__(self):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.weight * x, self.scale


def scale_in_the_loss(rank, world):
    model, told = DistributedDataParallel(Scaled(), find_unused_parameters=True), []
    for iteration in range(3):
        model.zero_grad(set_to_none=True)
        found, scale = model(torch.full((1,), float(rank + iteration)))
        (found * scale).sum().backward()
        told.append((model.module.weight.grad.item(), model.module.scale.grad.item()))
    return told


def test_a_parameter_that_is_returned_as_it_is_counts_as_used():
    for told in run_on_ranks(scale_in_the_loss, 2):  # torch's ends this in an error: it would be ready twice
        assert told == [(0.5 + iteration, 0.5 + iteration) for iteration in range(3)]


def quantized():
    return torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)


def hold_what_cannot_be_packed(rank, world, make, *, as_buffer):
    module = nn.Linear(1, 1)
    odd = make()
    if as_buffer:
        module.register_buffer("odd", odd)
    else:
        module.register_parameter("odd", nn.Parameter(odd, requires_grad=False))
    with pytest.raises(RuntimeError) as caught:
        DistributedDataParallel(module)
    return str(caught.value)


def distributed():
    return distribute_tensor(torch.ones(2), init_device_mesh("cpu", (2,)))


@pytest.mark.parametrize(("make", "kind"), [(quantized, "a quantized tensor"), (distributed, "a DTensor")])
@pytest.mark.parametrize("as_buffer", [False, True])
def test_what_the_source_could_not_pack_is_refused_by_its_name_on_every_rank(make, kind, as_buffer):
    told = run_on_ranks(partial(hold_what_cannot_be_packed, make=make, as_buffer=as_buffer), 2)
    assert told[0].startswith(f"{'Buffer' if as_buffer else 'Parameter'} odd is {kind}, which cannot be broadcast")
    assert told[1] == told[0]


class Marked(nn.Parameter):
    pass


class OfItsOwnClass(nn.Module):
    """A parameter of a class of its own, which can be packed all the same."""

    def __init__(self):
        super().__init__()
        self.weight = Marked(torch.ones(2))

    def forward(self, x):
        return (self.weight * x).sum()


def hold_a_class_of_its_own(rank, world):
    model = DistributedDataParallel(OfItsOwnClass())
    model(torch.full((2,), float(rank))).backward()
    return model.module.weight.grad.tolist()


def test_a_parameter_of_another_class_is_sent_as_any_other():
    assert run_on_ranks(hold_a_class_of_its_own, 2) == [[0.5, 0.5]] * 2
