"""Workloads: the same wherever they are asked for, and such that the comparison with one process means something."""

import pytest
import torch

from perf.measure.verify import expected, expected_values, flat, in_full_precision
from perf.plan.cells import Cell
from perf.workloads import KNOWN, SIZES, SPARSE, fingerprint, load

CPU = torch.device("cpu")


def cell(workload, optimizer="sgd"):
    return Cell(
        workload, "cpu", 2, "gloo", "cpu", "step", "even", 0.0, optimizer, "impl", "none", "plain", "off", 0.0, False,
        False, "default",
    )  # fmt: skip


CASES = [(name, "sgd") for name in KNOWN] + [(name, "adam") for name in KNOWN if name not in SPARSE]


@pytest.fixture(autouse=True)
def one_thread():
    """As on the ranks."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("name", "optimizer"), CASES)
def test_every_parameter_moves_far_more_than_rounding_may(name, optimizer):
    workload = load(name, "cpu")
    answer = expected(workload, cell(name, optimizer), (2, 2), (0, 1), CPU).parameters
    start = workload.model()
    far = (flat(start.parameters()) - answer.values).abs() / answer.allowed
    at = 0
    for named, parameter in start.named_parameters():
        moved = far[at : at + parameter.numel()].max()
        assert moved > 20, f"{named} moves only {moved:g} times as far as rounding may"
        at += parameter.numel()


@pytest.mark.parametrize("name", KNOWN)
def test_the_oracle_repeats_itself_and_sees_a_lost_batch(name):
    workload = load(name, "cpu")
    answer = expected(workload, cell(name), (3, 3), (0, 1), CPU).parameters
    again = expected(workload, cell(name), (3, 3), (0, 1), CPU).parameters
    assert torch.equal(answer.values, again.values)
    lost = expected(workload, cell(name), (3, 2), (0, 1), CPU).parameters
    model = workload.model()
    torch.nn.utils.vector_to_parameters(lost.values, model.parameters())
    gap, where = answer.gap(model.parameters())
    assert gap > 5
    assert where in dict(model.named_parameters())


def test_weights_that_are_no_numbers_are_wrong():
    model = torch.nn.Linear(2, 2)
    named = list(model.named_parameters())
    answer = expected_values(named, {name: tensor + 1 for name, tensor in named})
    assert answer.gap(model.parameters())[0] <= 1
    with torch.no_grad():
        model.bias[1] = float("nan")
    gap, where = answer.gap(model.parameters())
    assert gap == float("inf")
    assert where == "bias"


def test_a_rank_without_a_batch_has_the_initial_model_and_no_other():
    workload = load("convnet", "cpu")
    answer = expected(workload, cell("convnet"), (0,), (0,), CPU)
    model = workload.model()
    assert answer.gap(model, 0)[0] == 0
    with torch.no_grad():
        model.stem[1].bias[0] = 1e-30
    assert answer.gap(model, 0) == (float("inf"), "stem.1.bias")


@pytest.mark.parametrize("name", KNOWN)
def test_weights_and_batches_come_from_seeds(name):
    one, two = load(name, "cpu"), load(name, "cpu")
    torch.manual_seed(1)
    first = flat(one.model().parameters())
    torch.manual_seed(2)
    assert torch.equal(first, flat(two.model().parameters()))
    assert all(torch.equal(a, b) for a, b in zip(one.batch(1, 2), two.batch(1, 2), strict=True))
    assert not torch.equal(one.batch(1, 2)[0], one.batch(0, 2)[0])
    assert not torch.equal(one.batch(1, 2)[0], one.batch(1, 3)[0])


def test_a_workloads_fingerprint_is_its_own():
    assert len({fingerprint(name, size) for name in KNOWN for size in SIZES}) == len(KNOWN) * len(SIZES)


def test_convolutions_are_exact_while_a_cell_is_measured_and_as_before_afterwards():
    before = torch.backends.cudnn.allow_tf32
    with in_full_precision():
        assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32 == before
