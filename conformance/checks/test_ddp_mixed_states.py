"""Native mixed precision where a state is saved or loaded before the backward of a forward, or in its place."""

import copy

import torch

from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.observing import mean_of_all, mine, mixed, or_lacks_accelerator, trained
from conformance.fixtures.training import parameters

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
