"""Native mixed precision where a state is saved or loaded before the backward of a forward, or in its place."""

import copy
import gc
import pickle

import torch

from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.observing import mean_of_all, mine, mixed, or_lacks_accelerator, trained
from conformance.fixtures.training import gradients, parameters, scalar_means
from conformance.ranks import caught

LOW = torch.bfloat16
FINE = 2.0**-12  # 1 + FINE is a float32 and no bfloat16


def by_the_wrapper(model, state):
    model.load_state_dict(state)


def by_the_module(model, state):
    model.module.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})


def load_before_backward(ctx):
    """A forward whose backward never comes, and then a load; what was saved, and held before and after an iteration."""

    def run():
        told = []
        for load in (by_the_wrapper, by_the_module):
            model = mixed(ctx, models.scalar(1.0 + FINE), {"param_dtype": LOW})
            trained(model, mine(ctx))
            model(mine(ctx))
            saved = copy.deepcopy(model.state_dict())
            model(mine(ctx))
            load(model, {name: value + 1 for name, value in saved.items()})
            held = parameters(model)
            found = trained(model, mine(ctx))
            dtypes = {str(value.dtype) for value in (*saved.values(), *model.parameters())}
            told.append((saved["module.weight"].item(), held, found, parameters(model), dtypes))
        return told

    return or_lacks_accelerator(ctx, run)


@check("DDP-135", worlds=(1, 2), beyond=False)
def test_what_is_saved_and_loaded_before_a_backward_that_never_comes_is_full(ranks):
    loaded = {"weight": [2.0 + FINE]}
    for told in ranks(load_before_backward):
        for seen in told:
            assert seen == (1.0 + FINE, loaded, {"weight": [mean_of_all(ranks.world)]}, loaded, {"torch.float32"})


def step_before_backward(ctx, saves):
    """A step after a forward whose backward never comes: the error of the next forward, or of who saves the state, and
    what is held."""

    def run():
        model = mixed(ctx, models.scalar(1.0 + FINE), {"param_dtype": LOW})
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        trained(model, mine(ctx))
        model(mine(ctx))
        optimizer.step()
        error = caught(model.state_dict) if saves else caught(model, mine(ctx))
        return error, parameters(model) if error else None, trained(model, mine(ctx)), parameters(model)

    return or_lacks_accelerator(ctx, run)


@check("DDP-135", worlds=(1, 2), beyond=False)
def test_a_step_behind_a_forward_without_a_backward_is_not_lost_or_refused_with_the_full_values(ranks):
    mean, full = mean_of_all(ranks.world), 1.0 + FINE
    for saves in (False, True):
        for rank, (error, kept, found, held) in enumerate(ranks(step_before_backward, saves)):
            where = f"rank {rank}, {saves=}"
            assert error is None or (error.is_a(RuntimeError) and "no_grad" in error.text), f"{where}: {error}"
            assert kept in (None, {"weight": [full]}), where
            assert found == {"weight": [mean]}, where
            assert held == {"weight": [full if error else full - mean]}, where


# -- what is done to a model whose forward has no backward, or none that brings it gradients


def brought_back(model, way):
    copies = []
    error = caught(lambda: copies.append(way(model)))
    assert error is None, f"cannot be copied: {error}"
    return copies[0]


def pickled(ctx, model):
    model(mine(ctx))
    return brought_back(model, lambda it: pickle.loads(pickle.dumps(it)))


def copied(ctx, model):
    model(mine(ctx))
    return brought_back(model, copy.deepcopy)


def moved(ctx, model):
    model(mine(ctx))
    return model.double().float()


def cast_past_the_wrapper(ctx, model):
    model(mine(ctx))
    model.module.double()
    model(mine(ctx))
    assert {each.dtype for each in model.state_dict().values()} == {torch.float64}
    model.module.float()
    return model


def loaded_from_a_part(ctx, model):
    """With what another model's only layer has saved."""
    other = mixed(ctx, torch.nn.Sequential(models.scalar(1.0 + FINE)), {"param_dtype": LOW})
    other(mine(ctx))
    model.load_state_dict({f"module.{name}": value for name, value in other.module[0].state_dict().items()})
    return model


def wrapped_anew(ctx, model):
    model(mine(ctx))
    module = model.module
    del model
    gc.collect()
    return mixed(ctx, module, {"param_dtype": LOW})


def evaluated(ctx, model):
    pending = model(mine(ctx))
    with torch.inference_mode():
        model(mine(ctx))
    pending.sum().backward()
    with torch.inference_mode():
        model(mine(ctx))
    return model


def asked_for_its_input(ctx, model):
    x = mine(ctx).requires_grad_()
    output = model(x).sum()
    output.backward(retain_graph=True)
    torch.autograd.grad(output, x)
    return model


def frozen_for_a_while(ctx, model):
    model.requires_grad_(False)
    model(mine(ctx).requires_grad_()).sum().backward()
    return model.requires_grad_(True)


ACTS = (
    pickled, copied, moved, cast_past_the_wrapper, loaded_from_a_part, wrapped_anew, evaluated, asked_for_its_input,
    frozen_for_a_while,
)  # fmt: skip


def do_each(ctx):
    """By act: what the model, or what has come of it, holds then; its next gradients, and what it holds after those."""

    def run():
        told = {}
        for act in ACTS:
            if act in (pickled, copied) and "pickling" in ctx.subject.lacks:
                continue
            model = act(ctx, mixed(ctx, models.scalar(1.0 + FINE), {"param_dtype": LOW}))
            held = parameters(model)
            found = trained(model, mine(ctx))
            dtypes = {str(each.dtype) for parameter in model.parameters() for each in (parameter, parameter.grad)}
            told[act.__name__] = held, found, parameters(model), dtypes
        return told

    return or_lacks_accelerator(ctx, run)


@check("DDP-135", worlds=(1, 2), beyond=False)
def test_whatever_is_done_where_a_forward_has_lowered_parameters_they_are_full_then(ranks):
    full = {"weight": [1.0 + FINE]}
    for told in ranks(do_each):
        for act, seen in told.items():
            assert seen == (full, {"weight": [mean_of_all(ranks.world)]}, full, {"torch.float32"}), act


# -- a part that is thawed where a forward has lowered it, and then ranks run out of inputs


def thaw_behind_a_forward(ctx, schedule):
    """A forward whose backward never comes, a part that is thawed, and a context: its gradients, and what is held."""

    def run():
        module, seen = models.Branches(), []
        module.b.requires_grad_(False)
        model = mixed(ctx, module, {"param_dtype": LOW})
        model(mine(ctx), with_b=True)
        module.b.requires_grad_(True)
        with model.join():
            for iteration in range(schedule[ctx.rank]):
                model.zero_grad()
                model(models.divisible_scalar(ctx.rank, iteration).to(ctx.device), with_b=True).sum().backward()
                seen.append(gradients(model))
        return seen, parameters(model), {str(each.dtype) for each in model.parameters()}

    return or_lacks_accelerator(ctx, run)


@check("DDP-135", "DDPJ-009", worlds=(2, 3), beyond=False)
def test_what_is_thawed_behind_a_forward_without_a_backward_is_averaged_until_the_last_rank_has_run_out(ranks):
    schedule = (1, *[3] * (ranks.world - 1))
    means = [{"a.weight": [mean], "b.weight": [mean]} for mean in scalar_means(schedule)]
    for rank, told in enumerate(ranks(thaw_behind_a_forward, schedule)):
        assert told == (means[: schedule[rank]], {"a.weight": [1.0], "b.weight": [1.0]}, {"torch.float32"}), rank
