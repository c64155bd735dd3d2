"""Native mixed precision in programs of many kinds: gradients are those of one process in full precision."""

from contextlib import nullcontext

import torch
from torch import nn

from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.observing import mine, mixed, or_lacks_accelerator
from conformance.fixtures.training import whole

LOW, FULL = torch.bfloat16, torch.float32


class OneOrTwo(nn.Module):
    """Two weights of which autograd itself keeps hold; a forward may leave out the second."""

    def __init__(self):
        super().__init__()
        self.a, self.b = models.scalar(), models.scalar()

    def forward(self, x, everything):
        product = x @ self.a.weight
        return product @ self.b.weight if everything else product


# -- the programs: ``x`` is the rank's input, ``last`` says whether it is the last rank


def go_through(model, x, everything=True):
    model(x, everything).sum().backward()


def zeroes_between_forward_and_backward(model, x, last):
    for set_to_none in (True, False):
        output = model(x, True)
        model.zero_grad(set_to_none=set_to_none)
        output.sum().backward()


def adds_two_forwards(model, x, last):
    (model(x, True) + model(x, True)).sum().backward()


def goes_backward_twice_after_two_forwards(model, x, last):
    losses = [model(x, True).sum() for _ in range(2)]
    for loss in losses:
        loss.backward()


def evaluates_between_forward_and_backward(model, x, last):
    output = model(x, True)
    with torch.no_grad():
        model(x, True)
    output.sum().backward()


def uses_all_on_the_last_rank_only(model, x, last):
    go_through(model, x, last)


def accumulates_what_others_leave_out(model, x, last):
    go_through(model, x)
    go_through(model, x, last)


def accumulates_what_is_left_out(model, x, last):
    with getattr(model, "no_sync", nullcontext)():
        go_through(model, x)
    go_through(model, x, False)


def accumulates_two_forwards(model, x, last):
    with getattr(model, "no_sync", nullcontext)():
        losses = [model(x, True).sum() for _ in range(2)]
        for loss in losses:
            loss.backward()
    go_through(model, x)


def accumulates_one_forward_twice(model, x, last):
    with getattr(model, "no_sync", nullcontext)():
        loss = model(x, True).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    go_through(model, x)


def double_the_gradient(parameter):
    parameter.grad.mul_(2)


def doubles_gradients_in_hooks(model, x, last):
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(double_the_gradient)
    go_through(model, x)


PROGRAMS = (
    zeroes_between_forward_and_backward,
    adds_two_forwards,
    goes_backward_twice_after_two_forwards,
    evaluates_between_forward_and_backward,
    uses_all_on_the_last_rank_only,
    accumulates_what_others_leave_out,
    accumulates_what_is_left_out,
    accumulates_two_forwards,
    accumulates_one_forward_twice,
    doubles_gradients_in_hooks,
)
USING_ALL = (accumulates_two_forwards, accumulates_one_forward_twice)  # nothing need be searched for
CONFIGS = {
    "parameters": {"param_dtype": LOW},
    "parameters only": {"param_dtype": LOW, "reduce_dtype": FULL},
    "reduction only": {"reduce_dtype": LOW},
}


def left_behind(model):
    """By parameter: its gradient, zeros for none; all in full precision."""
    found = {}
    for name, parameter in model.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else whole(parameter.grad)
        assert (parameter.dtype, gradient.dtype) == (FULL, FULL), f"{name}: {parameter.dtype}, {gradient.dtype}"
        found[name.removeprefix("module.")] = gradient.flatten().cpu()
    return found


def run_all(ctx, config):
    def run():
        found = {}
        for program in PROGRAMS:
            model = mixed(ctx, OneOrTwo(), config, find_unused_parameters=program not in USING_ALL)
            program(model, mine(ctx), ctx.rank == ctx.world - 1)
            found[program.__name__] = left_behind(model)
        return found

    return or_lacks_accelerator(ctx, run)


def in_one_process(program, world):
    """The mean of what the ranks' programs leave behind, each alone with a plain model."""
    found = []
    for rank in range(world):
        model = OneOrTwo()
        program(model, torch.full((1, 1), 12.0 * (rank + 1)), rank == world - 1)
        found.append(left_behind(model))
    return {name: torch.stack([each[name] for each in found]).mean(0) for name in found[0]}


@check("DDP-135", worlds=(2, 3), scenarios=CONFIGS)
def test_programs_of_many_kinds_get_the_gradients_of_full_precision(ranks, scenario):
    expected = {program.__name__: in_one_process(program, ranks.world) for program in PROGRAMS}
    for rank, found in enumerate(ranks(run_all, scenario)):
        for program, gradients in expected.items():
            for name, gradient in gradients.items():
                held = found[program][name]
                assert torch.equal(held, gradient), f"{program}, {name}, rank {rank}: {held}, not {gradient}"
