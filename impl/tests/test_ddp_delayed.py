"""Delayed parameters that are frozen, unused on a rank, cast, or beside other features."""

import pytest
import torch
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward

from impl.ddp import DistributedDataParallel
from impl.ddp.mixed_precision import _MixedPrecision


class TwoOrOne(nn.Module):
    """Two scalars side by side; a forward may leave out the second."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Linear(1, 1, bias=False) for _ in range(2))
        for parameter in self.parameters():
            nn.init.ones_(parameter)

    def forward(self, x, both=True):
        return self.a(x) + self.b(x) if both else self.a(x)


def delaying_b(module, **options):
    delayed = [("b.weight", module.b.weight)]
    return DistributedDataParallel(
        module, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=module.a.weight, **options
    )


def mine(ctx):
    return torch.full((1, 1), float(ctx.rank + 1))


def freeze_and_decay(ctx):
    module = TwoOrOne()
    module.b.requires_grad_(False)
    ddp = delaying_b(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0, weight_decay=0.5)
    ddp(mine(ctx)).sum().backward()
    optimizer.step()
    return module.b.weight.item(), module.b.weight.grad


def test_a_frozen_delayed_parameter_has_no_gradient_and_does_not_decay(run):
    assert run(freeze_and_decay, world=2) == [(1.0, None)] * 2


def clear_and_leave_out(ctx):
    ddp = delaying_b(TwoOrOne())
    ddp(mine(ctx)).sum().backward()
    output = ddp(mine(ctx), ctx.rank == 0)
    ddp.zero_grad()
    output.sum().backward()
    return ddp.module.b.weight.grad.item()


def test_who_has_cleared_a_delayed_gradient_and_not_used_it_contributes_zero_and_gets_the_average(run):
    assert run(clear_and_leave_out, world=2) == [0.5] * 2


def evaluate_after_a_cast(ctx):
    ddp = delaying_b(TwoOrOne())
    ddp(mine(ctx)).sum().backward()
    ddp.zero_grad()
    ddp.double()
    with torch.inference_mode():
        ddp(mine(ctx).double())
    ddp(mine(ctx).double()).sum().backward()
    return ddp.module.b.weight.grad.item()


def test_the_first_forward_after_a_cast_may_be_an_evaluation_in_inference_mode(run):
    assert run(evaluate_after_a_cast, world=2) == [1.5] * 2


def fuse(_ctx):
    ddp = delaying_b(TwoOrOne())
    ddp._register_fused_optim(torch.optim.SGD, 1.0, optim_params=ddp.parameters())


def lower(_ctx):
    delaying_b(TwoOrOne(), mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16))


@pytest.mark.parametrize(("program", "words"), [
    (fuse, "RuntimeError: The fused SGD has delayed parameters"),
    (lower, "ValueError: delay_all_reduce_named_params keeps parameters out of mixed_precision"),
])  # fmt: skip
def test_what_cannot_work_beside_delayed_parameters_is_refused(gloo_cluster, program, words):
    for outcome in gloo_cluster.run(program, (), world=2, subject="impl").outcomes:
        assert words in str(outcome)


def step_in_backward(ctx):
    module = TwoOrOne()
    _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.5})
    ddp = delaying_b(module)
    for _ in range(2):
        ddp(mine(ctx)).sum().backward()
    return [parameter.item() for parameter in module.parameters()]


def test_an_optimizer_in_backward_steps_delayed_parameters_by_their_average_too(run):
    assert run(step_in_backward, world=2) == [[1.0 - 2 * 0.5 * 1.5] * 2] * 2


class Three(nn.Module):
    """Scalars in two outputs, the second of which a forward may leave out."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.trigger = (nn.Linear(1, 1, bias=False) for _ in range(3))
        for parameter in self.parameters():
            nn.init.ones_(parameter)

    def forward(self, x, both=True):
        return self.a(x) + self.b(x), self.trigger(x) if both else None


def delaying_b_until_the_trigger(**options):
    module = Three()
    return DistributedDataParallel(
        module, delay_all_reduce_named_params=[("b.weight", module.b.weight)],
        param_to_hook_all_reduce=module.trigger.weight, **options,
    )  # fmt: skip


def leave_out_the_trigger(ctx, options, who):
    ddp, seen = delaying_b_until_the_trigger(**options), []
    for _ in range(3):
        ddp.zero_grad()
        sum(output.sum() for output in ddp(mine(ctx), ctx.rank in who) if output is not None).backward()
        seen.append([ddp.module.a.weight.grad.item(), ddp.module.b.weight.grad.item()])
    return seen


@pytest.mark.parametrize("who", [(0,), ()], ids=["one rank uses it", "nobody uses it"])
@pytest.mark.parametrize("options", [{"find_unused_parameters": True}, {"static_graph": True}])
def test_delayed_gradients_are_averaged_where_ranks_leave_out_the_trigger(run, options, who):
    assert run(leave_out_the_trigger, options, who, world=2) == [[[1.5, 1.5]] * 3] * 2


def go_backward_by_outputs(ctx, trigger_first):
    ddp, seen = delaying_b_until_the_trigger(), []
    for _ in range(3):
        ddp.zero_grad()
        outputs = ddp(mine(ctx))
        for output in reversed(outputs) if trigger_first else outputs:
            output.sum().backward()
        seen.append([parameter.grad.item() for parameter in ddp.parameters()])
    return seen


@pytest.mark.parametrize("trigger_first", [True, False])
def test_delayed_gradients_of_all_backwards_of_one_forward_are_averaged(run, trigger_first):
    assert run(go_backward_by_outputs, trigger_first, world=2) == [[[1.5] * 3] * 3] * 2


def look_up(ctx):
    """A table whose gradient is sparse where it was cleared between forward and backward."""
    module = nn.Sequential(nn.Embedding(3, 1, sparse=True), nn.Linear(1, 1, bias=False))
    nn.init.ones_(module[1].weight)
    ddp = DistributedDataParallel(
        module, delay_all_reduce_named_params=[("0.weight", module[0].weight)],
        param_to_hook_all_reduce=module[1].weight,
    )  # fmt: skip
    seen = []
    for cleared in (False, True):
        ddp.zero_grad()
        output = ddp(torch.tensor([ctx.rank, 2]))
        if cleared:
            ddp.zero_grad()
        output.sum().backward()
        seen.append(module[0].weight.grad.flatten().tolist())
    return seen


def test_a_sparse_delayed_gradient_is_averaged_also_where_it_was_cleared_in_between(run):
    assert run(look_up, world=2) == [[[0.5, 0.5, 1.0]] * 2] * 2


def freeze_the_others(ctx):
    ddp, seen = delaying_b(TwoOrOne(), find_unused_parameters=True), []
    for iteration in range(5):
        ddp.module.a.requires_grad_(iteration not in (2, 3))
        ddp.zero_grad()
        ddp(mine(ctx)).sum().backward()
        seen.append(ddp.module.b.weight.grad.item())
    return seen


def test_delayed_gradients_are_averaged_while_all_other_parameters_are_frozen(run):
    assert run(freeze_the_others, world=2) == [[1.5] * 5] * 2
