"""Where a check's tensors lie on an accelerator. The device ``meta`` stands for one: it has places and no numbers."""

import io
import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn

from conformance.fixtures import models
from conformance.ranks import NotRunnable, backends
from conformance.ranks.placing import _Placing, moved, placed_on
from conformance.ranks.worker import _ToDriver

pytestmark = pytest.mark.slow

META = torch.device("meta")


def made_here():
    return {
        "ones": torch.ones(1, 1), "tensor": torch.tensor([1.0]), "arange": torch.arange(3),
        "model": models.chain(2)[0].weight,
        "integers": models.integers(2, 2), "drawn": torch.randn(2, generator=torch.Generator().manual_seed(1)),
    }  # fmt: skip


def test_what_the_suite_creates_lies_on_the_ranks_device_and_on_the_cpu_afterwards():
    with placed_on(META):
        assert {name: each.device.type for name, each in made_here().items()} == dict.fromkeys(made_here(), "meta")
    assert {each.device.type for each in made_here().values()} == {"cpu"}


def test_a_device_that_is_named_and_a_copy_of_a_tensor_are_left_alone():
    there = torch.ones(2)
    with placed_on(META):
        assert torch.ones(2, device="cpu").device.type == "cpu"
        with pytest.warns(UserWarning, match="copy construct"):
            assert torch.tensor(there).device.type == "cpu"


def test_what_wants_a_gradient_is_a_leaf_on_its_device():
    with placed_on(META):
        leaf = torch.zeros(2, requires_grad=True)
    assert (leaf.device.type, leaf.is_leaf, leaf.requires_grad) == ("meta", True, True)


def test_what_the_implementation_under_test_creates_lies_where_it_puts_it():
    with placed_on(META):
        theirs = eval("torch.zeros(2)", {"torch": torch, "__name__": "their_ddp.reducer"})
    assert theirs.device.type == "cpu"


def test_random_numbers_are_those_of_the_cpu():
    def drawn():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(3, 3), nn.Embedding(4, 2))
        return [*model.parameters(), torch.rand(2), torch.empty(2).normal_()]

    usual = drawn()
    with _Placing(torch.device("cpu")):
        placed = drawn()
    assert all(map(torch.equal, usual, placed))


def test_random_numbers_for_a_device_are_drawn_on_the_cpu():
    torch.manual_seed(3)
    torch.empty(2).uniform_()
    after = torch.get_rng_state()
    torch.manual_seed(3)
    with placed_on(META):
        torch.empty(2).uniform_()
    assert torch.equal(torch.get_rng_state(), after)  # a device's own generator would have left the CPU's alone


def test_arguments_with_tensors_are_moved_and_others_are_the_same():
    other = object()
    batches, named, same = moved(([torch.ones(1)], {"x": torch.ones(1)}, other), META)
    assert (batches[0].device.type, named["x"].device.type, same is other) == ("meta", "meta", True)


class Elsewhere(torch.Tensor):
    """A tensor that says it lies on an accelerator."""

    device = property(lambda _: torch.device("cuda"))

    def detach(self):
        return self

    def cpu(self):
        return torch.tensor([4.0])


def test_results_come_to_the_driver_on_the_cpu():
    file = io.BytesIO()
    _ToDriver(file).dump({"weights": [torch.ones(1).as_subclass(Elsewhere)], "other": torch.tensor([2.0])})
    arrived = pickle.loads(file.getvalue())
    assert type(arrived["weights"][0]) is torch.Tensor
    assert (arrived["weights"][0].item(), arrived["other"].item()) == (4.0, 2.0)


# -- devices of backends


@pytest.fixture
def one_gpu(monkeypatch):
    """A machine with one GPU, as far as choosing devices goes."""
    monkeypatch.setattr(backends, "_devices", lambda kind: {"cpu": 1000, "cuda": 1}.get(kind, 0))
    monkeypatch.setattr(dist, "is_backend_available", lambda _: True)


def test_ranks_share_a_gpu_only_where_that_was_asked_for(one_gpu):
    assert [str(backends.device_of("gloo+cuda", rank)) for rank in range(3)] == ["cuda:0"] * 3
    backends.ensure_runnable("gloo+cuda", 8)
    backends.ensure_runnable("nccl", 1)
    for spec in ("nccl", "nccl+cuda"):
        with pytest.raises(NotRunnable, match="one cuda device per rank: 2 ranks were asked for, this machine has 1"):
            backends.ensure_runnable(spec, 2)
    assert backends.device_of("gloo", 2).type == "cpu"
    assert str(backends.device_of("nccl", 2)) == "cuda:2"


@pytest.mark.parametrize(
    ("spec", "said"), [("gloo+abacus", "takes tensors on cpu or cuda, not on 'abacus'"), ("gloo+", "not on ''")]
)
def test_a_kind_of_device_that_a_backend_cannot_carry_is_refused(spec, said, one_gpu):
    with pytest.raises(NotRunnable, match=said):
        backends.ensure_runnable(spec, 2)


def test_a_gpu_that_is_not_there_is_no_place_to_share(monkeypatch):
    monkeypatch.setattr(backends, "_devices", lambda kind: 0)
    with pytest.raises(NotRunnable, match="needs a cuda device, and this machine has none"):
        backends.ensure_runnable("gloo+cuda", 2)
