"""What lies between a forward in mixed precision and its backward, should that not come; and later casts."""

import copy
import gc
import io

import pytest
import torch
import torch.distributed as dist
from torch import nn

from impl import DistributedDataParallel
from impl.ddp.mixed_precision import _MixedPrecision

LOW, FULL = torch.bfloat16, torch.float32
FINE = 1.0 + 2.0**-12  # a float32 and no bfloat16


@pytest.fixture(scope="module", autouse=True)
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Lookup(nn.Module):
    """A scalar layer and a table, which a forward may leave out."""

    def __init__(self, sparse=True):
        super().__init__()
        self.a, self.table = nn.Linear(1, 1, bias=False), nn.Embedding(3, 1, sparse=sparse)

    def forward(self, x, look_up):
        return self.a(x) + self.table(torch.ones(1, dtype=torch.int64)) if look_up else self.a(x)


def look_up_on_one(ctx):
    ddp = DistributedDataParallel(
        Lookup(), mixed_precision=_MixedPrecision(param_dtype=LOW), find_unused_parameters=True
    )
    for _ in range(2):
        ddp(torch.ones(1, 1), ctx.rank == 1).sum().backward()
    gradient = ddp.module.table.weight.grad
    return gradient.dtype, gradient.to_dense().flatten().tolist()


def test_a_sparse_gradient_of_another_rank_arrives_in_full_precision_and_adds_up(run):
    assert run(look_up_on_one, world=2) == [(FULL, [0.0, 1.0, 0.0])] * 2


class Leaving(nn.Module):
    """Leaves something for its caller in the containers that it is given."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(1, 1, bias=False)

    def forward(self, x, notes, log):
        notes.append("here")
        log["dtype"] = x.dtype
        return self.a(x)


def test_what_a_forward_leaves_in_a_container_without_floats_is_there_for_its_caller():
    ddp = DistributedDataParallel(Leaving(), mixed_precision=_MixedPrecision(param_dtype=LOW))
    notes, log = [], {}
    ddp(torch.ones(1, 1), notes, log=log)
    assert (notes, log) == (["here"], {"dtype": LOW})


def step_fused(ctx):
    ddp = DistributedDataParallel(
        Lookup(sparse=False), mixed_precision=_MixedPrecision(param_dtype=LOW), find_unused_parameters=True
    )
    nn.init.zeros_(ddp.module.table.weight)
    ddp._register_fused_optim(torch.optim.SGD, FINE)
    ddp(torch.ones(1, 1), ctx.rank == 1).sum().backward()
    return ddp.module.table.weight.tolist()


def test_an_optimizer_in_backward_steps_the_full_values_of_what_this_rank_has_left_out(run):
    assert run(step_fused, world=2) == [[[0.0], [-FINE / 2], [0.0]]] * 2


def scalar(config=None, weight=FINE):
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, weight)
    return DistributedDataParallel(layer, mixed_precision=config or _MixedPrecision(param_dtype=LOW))


def forward_without_backward(**options):
    ddp = scalar(**options)
    ddp(torch.ones(1, 1))
    assert ddp.module.weight.dtype is LOW
    return ddp


@pytest.mark.parametrize("of", [lambda ddp: ddp, lambda ddp: ddp.module], ids=["the wrapper", "the module"])
def test_the_state_is_saved_and_loaded_in_full_precision(of):
    state = of(forward_without_backward()).state_dict()
    assert [(value.dtype, value.item()) for value in state.values()] == [(FULL, FINE)]
    ddp = forward_without_backward()
    of(ddp).load_state_dict({name: torch.full((1, 1), 5.0) for name in state})
    assert ddp(torch.ones(1, 1)).item() == 5.0
    ddp(torch.ones(1, 1)).sum().backward()
    assert ddp.module.weight.item() == 5.0


def test_the_module_keeps_full_values_when_the_wrapper_goes():
    ddp = forward_without_backward()
    layer = ddp.module
    del ddp
    gc.collect()
    assert (layer.weight.dtype, layer.weight.item()) == (FULL, FINE)
    assert not layer._state_dict_pre_hooks
    assert not layer._load_state_dict_pre_hooks


def test_copies_and_casts_start_from_full_values():
    assert copy.deepcopy(forward_without_backward()).module.weight.item() == FINE
    ddp = forward_without_backward().double()
    assert (ddp.module.weight.dtype, ddp.module.weight.item()) == (torch.float64, FINE)


@pytest.mark.parametrize("follows", [lambda ddp: ddp(torch.ones(1, 1)), lambda ddp: ddp.module.state_dict()])
def test_a_step_that_would_be_lost_is_refused_once(follows):
    ddp = forward_without_backward()
    ddp.module.weight.grad = torch.ones(1, 1, dtype=LOW)
    torch.optim.SGD(ddp.parameters(), lr=0.5).step()
    with pytest.raises(RuntimeError, match=r"low-precision copies.*torch\.no_grad"):
        follows(ddp)
    assert ddp.module.weight.item() == FINE
    ddp(torch.ones(1, 1)).sum().backward()
    torch.optim.SGD(ddp.parameters(), lr=0.5).step()
    assert ddp.module.weight.item() == FINE - 0.5 * 2.0


def test_after_backward_nothing_is_left_on_the_module():
    ddp = scalar()
    ddp(torch.ones(1, 1)).sum().backward()
    assert not ddp.module._state_dict_pre_hooks
    assert not ddp.module._load_state_dict_pre_hooks
    torch.save(ddp.module, io.BytesIO())


@pytest.mark.parametrize("past", [False, True], ids=["the wrapper", "the module"])
def test_a_model_whose_buffers_alone_are_lowered_may_be_cast(past):
    ddp = scalar(_MixedPrecision(buffer_dtype=LOW))
    (ddp.module if past else ddp).double()
    ddp(torch.full((1, 1), 1 + 2.0**-40, dtype=torch.float64)).sum().backward()
    assert ddp.module.weight.grad.item() == 1 + 2.0**-40


def test_a_wrapper_that_is_gone_leaves_no_hooks_on_parameters():
    ddp = scalar()
    layer = ddp.module
    for _ in range(3):
        ddp = DistributedDataParallel(layer, mixed_precision=_MixedPrecision(param_dtype=LOW))
        ddp(torch.ones(1, 1)).sum().backward()
    del ddp
    gc.collect()
    assert not layer.weight._post_accumulate_grad_hooks


def test_an_evaluation_in_inference_mode_leaves_parameters_that_can_be_trained():
    ddp = scalar()
    pending = ddp(torch.ones(1, 1))
    with torch.inference_mode():
        ddp(torch.ones(1, 1))
    pending.sum().backward()
    with torch.inference_mode():
        ddp(torch.ones(1, 1))
    assert (ddp.module.weight.dtype, ddp.module.weight.is_inference()) == (FULL, False)
    ddp(torch.ones(1, 1)).sum().backward()
    assert ddp.module.weight.grad.item() == 2.0


def train_against_each_other():
    """Two models as in adversarial training: one is frozen while the other is trained through it."""
    critic, maker = scalar(weight=1.0), scalar(weight=1.0)
    for _ in range(4):
        critic.requires_grad_(True)
        for model in (critic, maker):
            model.zero_grad()
        critic(torch.ones(1, 1)).sum().backward()
        critic.requires_grad_(False)
        critic(maker(torch.ones(1, 1))).sum().backward()
        yield critic.module.weight, maker.module.weight


def test_a_model_that_is_frozen_now_and_then_is_full_after_each_backward_and_trained_when_thawed():
    for critic, maker in train_against_each_other():
        assert (critic.dtype, critic.grad.item()) == (FULL, 1.0)
        assert (maker.dtype, maker.grad.item()) == (FULL, 1.0)


def test_a_local_backward_may_come_before_one_that_the_reducer_is_told_of():
    ddp = scalar()
    with ddp.no_sync():
        first, second = (ddp(torch.ones(1, 1)).sum() for _ in range(2))
        first.backward()
    ddp.reducer.prepare_for_backward([])
    second.backward()
    assert (ddp.module.weight.dtype, ddp.module.weight.grad.item()) == (FULL, 2.0)


def test_a_model_that_is_low_anyway_may_be_stepped_at_any_time():
    ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False).to(LOW), mixed_precision=_MixedPrecision(param_dtype=LOW))
    nn.init.ones_(ddp.module.weight)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    ddp(torch.ones(1, 1)).sum().backward()
    ddp(torch.ones(1, 1))
    optimizer.step()
    ddp(torch.ones(1, 1)).sum().backward()
    assert (ddp.module.weight.item(), ddp.module.weight.dtype, ddp.module.weight.grad.item()) == (0.5, LOW, 2.0)
