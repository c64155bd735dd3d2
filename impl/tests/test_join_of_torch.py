"""torch's own Join: what of ours it refuses, what it leaves alone, and what it still serves."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms import join as torchs

from impl import DistributedDataParallel, Join, JoinHook, ZeroRedundancyOptimizer
from impl.tests.comm_hook_ranks import run_on_ranks
from impl.tests.joinables import Plain

pytestmark = pytest.mark.slow


def model_and_step():
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1.0)


@pytest.mark.usefixtures("alone")
def test_models_and_optimizers_are_refused_with_the_line_to_type():
    for one in model_and_step():
        with pytest.raises(TypeError, match=rf"This {type(one).__name__} .*: from impl import Join"):
            torchs.Join([one])
        assert not one._join_config.enable
        with Join([one]):
            pass


@pytest.mark.usefixtures("alone")
def test_a_disabled_one_may_hold_them():
    model, step = model_and_step()
    with torchs.Join([model, step], enable=False):
        model(torch.ones(1, 1)).sum().backward()
        step.step()
    assert model.module.weight.grad.item() == 1


@pytest.mark.usefixtures("alone")
def test_one_inside_ours_is_refused_and_ours_goes_on():
    model, _ = model_and_step()
    with Join([model]):
        with pytest.raises(TypeError, match="from impl import Join"):
            torchs.Join([model])
        model(torch.ones(1, 1)).sum().backward()
    assert model.module.weight.grad.item() == 1


class Counter(Plain):
    """A plain joinable of ours."""

    shadowed = 0

    def join_hook(self, **_):
        hook = JoinHook()
        hook.main_hook = self.shadow
        return hook

    def shadow(self):
        self.shadowed += 1


def count_in_torchs(rank, _world):
    counter = Counter()
    with torchs.Join([counter]):
        for _ in range(1 + 2 * rank):
            Join.notify_join_context(counter)
    return counter.shadowed


def test_plain_joinables_are_served_as_ever():
    assert run_on_ranks(count_in_torchs, 2) == [2, 0]
