"""Small parameters are stepped at once by the loops that give the same bits, and only where nobody has chosen."""

import pytest
import torch
from torch import nn

from impl.zero import at_once
from impl.zero.at_once import small_ones_at_once

SETTINGS = {
    torch.optim.SGD: [
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.9, "dampening": 0.3, "maximize": True},
    ],
    torch.optim.Adam: [{"weight_decay": 0.1}, {"amsgrad": True}, {"maximize": True}],
    torch.optim.AdamW: [{"amsgrad": True}],
    torch.optim.RMSprop: [{"centered": True, "momentum": 0.9}, {"weight_decay": 0.1}],
    torch.optim.Adagrad: [{"lr_decay": 0.1, "weight_decay": 0.1}],
}
CASES = [
    pytest.param(kind, settings, id=f"{kind.__name__} {settings}")
    for kind in sorted(at_once._SAME_BITS, key=lambda kind: kind.__name__)
    for settings in [{}, *SETTINGS.get(kind, [])]
]


def small():
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in [(7,), (3, 5), (64,), (), (2, 3, 4)]]


def gradients(parameters):
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_the_same_bits_as_one_by_one(kind, settings):
    ours, theirs = small(), small()
    at_once_, one_by_one = kind(ours, **settings), kind(theirs, foreach=False, **settings)
    draw = torch.Generator().manual_seed(1)
    for step in range(8):
        for place, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            gradient = torch.randn(mine.shape, generator=draw)
            mine.grad, other.grad = (None, None) if (place + step) % 4 == 0 else (gradient, gradient.clone())
        with small_ones_at_once(at_once_):
            assert at_once_.param_groups[0]["foreach"]
            at_once_.step()
        one_by_one.step()
        assert all(map(torch.equal, ours, theirs))
        assert all(map(torch.equal, gradients(ours), gradients(theirs)))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad])
def test_sparse_gradients(kind):
    ours, theirs = small()[1:3], small()[1:3]
    at_once_, one_by_one = kind(ours, lr=0.1), kind(theirs, lr=0.1, foreach=False)
    for mine, other in zip(ours, theirs, strict=True):
        rows = torch.ones(2, *mine.shape[1:])
        mine.grad = other.grad = torch.sparse_coo_tensor(
            torch.tensor([[0, 2]]), rows, mine.shape, check_invariants=True
        )
    with small_ones_at_once(at_once_):
        at_once_.step()
    one_by_one.step()
    assert all(map(torch.equal, ours, theirs))


class Sub(torch.optim.Adam):
    pass


class Marked(nn.Parameter):
    pass


@pytest.mark.parametrize(
    "optim",
    [
        pytest.param(torch.optim.Adam(small(), foreach=False), id="their choice"),
        pytest.param(torch.optim.Adam(small(), fused=True), id="fused"),
        pytest.param(torch.optim.Adam(small(), lr=torch.tensor(0.1)), id="a tensor as learning rate"),
        pytest.param(torch.optim.Adam(small(), betas=(torch.tensor(0.5), torch.tensor(0.75))), id="betas in tensors"),
        pytest.param(torch.optim.SGD(small(), momentum=0.5, nesterov=True), id="gradients would change"),
        pytest.param(torch.optim.Adam([nn.Parameter(torch.zeros(100_000)) for _ in range(3)]), id="large"),
        pytest.param(torch.optim.SGD([nn.Parameter(each.half()) for each in small()]), id="half precision"),
        pytest.param(torch.optim.SGD([*small(), nn.Parameter(torch.zeros(3).half())]), id="some of half precision"),
        pytest.param(torch.optim.Adam([*small(), Marked(torch.zeros(3))]), id="a subclass of tensors"),
        pytest.param(Sub(small()), id="a class of one's own"),
        pytest.param(torch.optim.SparseAdam(small()), id="no such loops"),
    ],
)
def test_left_alone(optim):
    before = [{**group, "params": None} for group in optim.param_groups]
    with small_ones_at_once(optim):
        assert [{**group, "params": None} for group in optim.param_groups] == before


def test_the_choice_lasts_for_the_step_only():
    optim = torch.optim.Adam(small())
    with pytest.raises(KeyError), small_ones_at_once(optim):
        assert optim.param_groups[0]["foreach"]
        raise KeyError
    assert optim.param_groups[0]["foreach"] is None
