"""Native mixed precision: what is lowered inside forward and backward, and what stays as it is."""

import dataclasses
from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from conformance.api.checking import MANY, WORLDS, check
from conformance.fixtures import models
from conformance.fixtures.observing import mean_of_all, mine, mixed, or_lacks_accelerator, trained
from conformance.fixtures.training import gradients, parameters, private, whole
from conformance.ranks import caught

LOW, FULL = torch.bfloat16, torch.float32


class Watching(nn.Module):
    """A scalar layer that notes the dtypes of what it meets, in forward and in backward."""

    def __init__(self, weight=1.0):
        super().__init__()
        self.a = models.scalar(weight)
        self.register_buffer("scale", torch.ones(1))
        self.seen = []

    def forward(self, x):
        self.seen.append(("input", x.dtype))
        self.seen.append(("weight", self.a.weight.dtype))
        self.seen.append(("buffer", self.scale.dtype))
        output = self.a(x)
        self.seen.append(("output", output.dtype))
        if output.requires_grad:
            output.register_hook(lambda gradient: self.seen.append(("gradient", gradient.dtype)))
        return output


# -- DDP-134: nothing unless asked


def read_defaults(ctx):
    config = private(ctx.subject.ddp, "_MixedPrecision")()
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


@check("DDP-134", worlds=(1,))
def test_by_default_no_dtype_is_lowered(ranks):
    none = ranks(read_defaults)[0]
    assert {name: none[name] for name in ("param_dtype", "reduce_dtype", "buffer_dtype")} == {
        "param_dtype": None, "reduce_dtype": None, "buffer_dtype": None
    }  # fmt: skip


def lower_one(ctx, config):
    def run():
        model = mixed(ctx, Watching(), config)
        found = trained(model, mine(ctx))
        return dict(model.module.seen), found

    return or_lacks_accelerator(ctx, run)


@check("DDP-134", worlds=(1, 2, 3))
def test_each_dtype_is_lowered_by_itself(ranks):
    untouched = dict.fromkeys(("input", "weight", "buffer", "output", "gradient"), FULL)
    for seen, found in ranks(lower_one, {"reduce_dtype": LOW}):
        assert seen == untouched
        assert found == {"a.weight": [mean_of_all(ranks.world)]}
    for seen, _ in ranks(lower_one, {"buffer_dtype": LOW}):
        assert seen == untouched | {"buffer": LOW}
    for seen, _ in ranks(lower_one, {"param_dtype": LOW}):
        assert seen == dict.fromkeys(untouched, LOW) | {"buffer": FULL}


# -- DDP-135: low inside, full outside

FINE = 2.0**-12  # 1 + FINE is a float32 and no bfloat16


def train_low(ctx):
    def run():
        model = mixed(ctx, Watching(1.0 + FINE), {"param_dtype": LOW})
        weight = model.module.a.weight
        optimizer = torch.optim.SGD(model.parameters(), lr=FINE)
        told = []
        for _ in range(3):
            optimizer.zero_grad()
            output = model(mine(ctx))
            output.sum().backward()
            saved = [value for name, value in model.state_dict().items() if name.endswith("a.weight")]
            types = (weight.dtype, weight.grad.dtype, saved[0].dtype)
            optimizer.step()
            told.append((output.item(), types, gradients(model), parameters(model)))
        return told, model.module.seen

    return or_lacks_accelerator(ctx, run)


@check("DDP-135", worlds=WORLDS, beyond=False)
def test_computation_is_low_and_what_the_optimizer_sees_is_full(ranks):
    mean = mean_of_all(ranks.world)
    for rank, (told, seen) in enumerate(ranks(train_low)):
        for place, dtype in seen:
            assert dtype is (FULL if place == "buffer" else LOW), f"{place} is {dtype} on rank {rank}"
        for iteration, (output, types, found, held) in enumerate(told):
            before = 1.0 + FINE - iteration * FINE * mean
            lowered = torch.tensor([[before]]).to(LOW) * torch.tensor([[12.0 * (rank + 1)]]).to(LOW)
            assert output == lowered.item(), f"rank {rank}, iteration {iteration}"
            assert types == (FULL, FULL, FULL)
            assert found == {"a.weight": [mean]}, f"rank {rank}, iteration {iteration}"
            assert held == {"a.weight": [before - FINE * mean]}, f"rank {rank}, iteration {iteration}"


def evaluate_low(ctx):
    def run():
        model = mixed(ctx, Watching(1.0 + FINE), {"param_dtype": LOW})
        with torch.no_grad():
            output = model(mine(ctx))
        return output.dtype, model.module.a.weight.dtype, parameters(model), trained(model, mine(ctx))

    return or_lacks_accelerator(ctx, run)


@check("DDP-135", worlds=(1, 2))
def test_after_an_evaluation_parameters_are_full_again(ranks):
    for output, dtype, held, found in ranks(evaluate_low):
        assert (output, dtype) == (LOW, FULL)
        assert held == {"a.weight": [1.0 + FINE]}
        assert found == {"a.weight": [mean_of_all(ranks.world)]}


class OneOfTwo(nn.Module):
    """Two scalar layers, of which a forward uses the first only."""

    def __init__(self):
        super().__init__()
        self.a, self.b = models.scalar(1.0 + FINE), models.scalar(1.0 + FINE)

    def forward(self, x):
        return self.a(x)


def leave_one_out(ctx):
    def run():
        model = mixed(ctx, OneOfTwo(), {"param_dtype": LOW}, find_unused_parameters=True)
        told = []
        for without in (nullcontext, model.no_sync):
            with without():
                trained(model, mine(ctx))
            told.append(([parameter.dtype for parameter in model.parameters()], parameters(model)))
        return told

    return or_lacks_accelerator(ctx, run)


@check("DDP-135", worlds=(1, 2))
def test_after_backward_a_parameter_without_a_gradient_is_full_again_too(ranks):
    for told in ranks(leave_one_out):
        for types, held in told:
            assert types == [FULL, FULL]
            assert held == {"a.weight": [1.0 + FINE], "b.weight": [1.0 + FINE]}


def train_a_chain(ctx):
    def run():
        dtypes, others = [], {"frozen": [], "low": []}
        for other in (None, *others):
            layers = models.chain(3)
            layers[1].requires_grad_(other != "frozen").to(LOW if other == "low" else FULL)
            model = mixed(ctx, layers, {"param_dtype": LOW})
            for _ in range(2):
                trained(model, mine(ctx).expand(-1, model.module[0].in_features))
                found = [(p.dtype, None if p.grad is None else p.grad.dtype) for p in model.parameters()]
                others.get(other, dtypes).extend(found[2:4])
                dtypes += [*found[:2], *found[4:]]
        return dtypes, others

    return or_lacks_accelerator(ctx, run)


@check("DDP-135", worlds=(1, 2))
def test_after_backward_every_layers_parameters_and_gradients_are_full(ranks):
    for dtypes, others in ranks(train_a_chain):
        assert set(dtypes) == {(FULL, FULL)}
        assert set(others["frozen"]) == {(FULL, None)}, "of the layer that is not trained"
        assert set(others["low"]) == {(LOW, LOW)}, "of the layer that was low before"


def train_what_was_frozen(ctx):
    """The second of three layers, frozen at wrapping, is trained alone under no_sync; dtypes after its backward."""

    def run():
        layers = models.chain(3)
        layers[1:].requires_grad_(False)
        model = mixed(ctx, layers, {"param_dtype": LOW}, find_unused_parameters=True)
        fed = mine(ctx).expand(-1, layers[0].in_features)
        trained(model, fed)
        layers[0].requires_grad_(False)
        layers[1].requires_grad_(True)
        trained(model, fed)
        with model.no_sync():
            trained(model, fed)
        return [parameter.dtype for parameter in model.parameters()]

    return or_lacks_accelerator(ctx, run)


@check("DDP-135", worlds=(1, 2))
def test_after_the_backward_of_a_thawed_layer_alone_all_parameters_are_full(ranks):
    assert ranks(train_what_was_frozen) == [[FULL] * 6] * ranks.world


class LastIsCheckpointed(nn.Module):
    """Three weights of which autograd itself keeps hold; a reentrant checkpoint around the last one's product, whose
    backward runs inside the other one."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.full((1, 1), 1.0 + FINE) for _ in range(3))

    def forward(self, x):
        first, second, last = self.weights
        return checkpoint(lambda product: product @ last, x @ first @ second, use_reentrant=True)


def checkpoint_the_last(ctx, synchronised):
    def run():
        model = mixed(ctx, LastIsCheckpointed(), {"param_dtype": LOW})
        with nullcontext() if synchronised else model.no_sync():
            for _ in range(2):
                model(mine(ctx)).sum().backward()
        return gradients(model), [(parameter.dtype, parameter.grad.dtype) for parameter in model.parameters()]

    return or_lacks_accelerator(ctx, run)


@check("DDP-135", worlds=(1,))
def test_a_backward_inside_another_leaves_the_rest_lowered_until_that_is_over(ranks):
    for found, types in [*ranks(checkpoint_the_last, True), *ranks(checkpoint_the_last, False)]:
        assert list(found.values()) == [[2 * mean_of_all(ranks.world)]] * 3
        assert types == [(FULL, FULL)] * 3


def forward_twice(ctx):
    def run():
        model = mixed(ctx, Watching(1.0 + FINE), {"param_dtype": LOW})
        model(mine(ctx))  # its backward never comes
        model(mine(ctx)).sum().backward()
        return model.module.a.weight.dtype, parameters(model)

    return or_lacks_accelerator(ctx, run)


@check("DDP-135", worlds=(1, 2))
def test_a_forward_without_a_backward_costs_no_precision(ranks):
    for dtype, held in ranks(forward_twice):
        assert dtype is FULL
        assert held == {"a.weight": [1.0 + FINE]}


class BadBatch(KeyError):
    pass


def fail_in_forward(ctx):
    def run():
        model = mixed(ctx, Watching(1.0 + FINE), {"param_dtype": LOW})

        def refuse(*_):
            raise BadBatch

        refusing = model.module.a.register_forward_hook(refuse)
        error = caught(model, mine(ctx))
        held = parameters(model), model.module.a.weight.dtype
        refusing.remove()
        model(mine(ctx)).sum().backward()
        return error, held, parameters(model)

    return or_lacks_accelerator(ctx, run)


@check("DDP-135", worlds=(1, 2))
def test_a_forward_that_fails_leaves_nothing_lowered(ranks):
    full = {"a.weight": [1.0 + FINE]}
    for error, held, afterwards in ranks(fail_in_forward):
        assert error.is_a(KeyError)
        assert held == (full, FULL)
        assert afterwards == full


class Interrupted(nn.Module):
    """Two scalar layers of which the first may be left out; a backward reaches the second one's weight first."""

    def __init__(self):
        super().__init__()
        self.a, self.b = models.scalar(1.0 + FINE), models.scalar(1.0 + FINE)
        self.fails = self.skips = False

    def forward(self, x):
        if self.skips:
            return self.b(x)
        x = self.a(x)
        if self.fails:
            x.register_hook(self.refuse)
        return self.b(x)

    def refuse(self, _gradient):
        raise BadBatch


def fail_in_backward(ctx):
    def run():
        model = mixed(ctx, Interrupted(), {"param_dtype": LOW}, find_unused_parameters=True)
        model.module.fails = True
        output = model(mine(ctx)).sum()
        error = caught(output.backward)
        told = [parameters(model)]
        model.module.fails, model.module.skips = False, True
        model.zero_grad()
        model(mine(ctx)).sum().backward()
        told.append(parameters(model))
        with model.no_sync():
            model(mine(ctx)).sum().backward()
        return error, [*told, parameters(model)], [parameter.dtype for parameter in model.parameters()]

    return or_lacks_accelerator(ctx, run)


@check("DDP-135", worlds=(1,))
def test_after_a_backward_that_failed_parameters_are_full_there_and_in_later_iterations(ranks):
    full = {"a.weight": [1.0 + FINE], "b.weight": [1.0 + FINE]}
    for error, (there, later, last), types in ranks(fail_in_backward):
        assert error.is_a(KeyError)
        assert later == full, "a parameter that a later iteration left out"
        assert last == full, "after one that was not synchronised"
        assert types == [FULL, FULL]
        assert there == full, "right after the error"


# -- DDP-137, DDP-138: what is not cast


class Choosy(nn.Module):
    """A table looked up by row numbers, a mask, a complex parameter, and a parameter and a buffer to be left alone."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 2)
        self.own = models.scalar()
        self.own.register_buffer("fixed", torch.ones(1))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.phase = nn.Parameter(torch.full((2,), 1j))
        self.seen = {}

    def forward(self, rows, more):
        own, fixed = self.own.weight, self.own.fixed
        given = {"rows": rows, "mask": more["mask"], "floats": more["floats"][0], "table": self.table.weight}
        given |= {"complex": more["complex"], "count": self.count, "phase": self.phase}
        self.seen = {name: tensor.dtype for name, tensor in given.items()}
        self.seen |= {"own": own.dtype, "fixed": fixed.dtype, "place": own.data_ptr(), "fixed place": fixed.data_ptr()}
        chosen = self.table(rows) * more["mask"].unsqueeze(-1) * more["floats"][0]
        return chosen.sum().float() + own.sum() * fixed.sum() + (self.phase * more["complex"]).sum().real


def be_choosy(ctx):
    def run():
        model = Choosy().to(ctx.device)
        leave = private(ctx.subject.DistributedDataParallel, "_set_params_and_buffers_to_ignore_for_model")
        leave(model, ["own.weight", "own.fixed"])
        places = model.own.weight.data_ptr(), model.own.fixed.data_ptr()
        ddp = mixed(ctx, model, {"param_dtype": LOW, "buffer_dtype": LOW})
        rows = torch.tensor([ctx.rank, 5], device=ctx.device)
        more = {"mask": rows > 4, "floats": [torch.full((1,), 12.0, device=ctx.device)]}
        more["complex"] = torch.full((2,), 1 + 2j, device=ctx.device)
        ddp(rows, more=more).backward()
        assert model.own.weight.data_ptr() == places[0], "an ignored parameter was moved"
        found = model.table.weight.grad[:, 0].tolist(), model.phase.grad.tolist(), whole(model.own.weight.grad).item()
        return model.seen, places, *found

    return or_lacks_accelerator(ctx, run)


@check("DDP-137", "DDP-138", worlds=(1, 2, 3))
def test_numbers_that_are_not_floats_and_ignored_tensors_keep_their_dtype(ranks):
    for seen, (own, fixed), table, phase, local in ranks(be_choosy):
        assert (seen["rows"], seen["mask"], seen["complex"]) == (torch.int64, torch.bool, torch.complex64)
        assert (seen["phase"], phase) == (torch.complex64, [1 - 2j] * 2)
        assert (seen["floats"], seen["table"]) == (LOW, LOW)
        assert (seen["own"], seen["fixed"], seen["count"]) == (FULL, FULL, torch.int64)
        assert (seen["place"], seen["fixed place"]) == (own, fixed)
        assert table == [0.0, 0.0, 0.0, 0.0, 0.0, 12.0]
        assert local == 1.0


# -- DDP-139: buffers, once and for all


def cast_buffers(ctx):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].running_mean.fill_(1.0 + ctx.rank)
    ddp = or_lacks_accelerator(ctx, lambda: mixed(ctx, model, {"buffer_dtype": LOW}))
    batch_norm = ddp.module[1]
    return batch_norm.running_mean.dtype, batch_norm.running_mean.tolist(), model[0].weight.dtype


@check("DDP-139", worlds=WORLDS)
def test_buffers_have_their_dtype_from_construction_on(ranks):
    assert ranks(cast_buffers) == [(LOW, [1.0, 1.0], FULL)] * ranks.world


# -- DDP-172: each module waits for its own copy, once


class Winding(nn.Module):
    """``a`` is used twice around ``b`` or around ``c``; the other one is left out."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = models.scalar(), models.scalar(), models.scalar()

    def forward(self, x, left):
        middle = self.b if left else self.c
        return self.a(middle(self.a(x)))


def wind(ctx):
    def run():
        model = mixed(ctx, Winding(), {"param_dtype": LOW}, find_unused_parameters=True)
        return [trained(model, mine(ctx), left=iteration % 2 == 0) for iteration in range(4)]

    return or_lacks_accelerator(ctx, run)


@check("DDP-172", worlds=WORLDS, beyond=False)
def test_a_layer_used_twice_and_one_left_out_get_their_averages(ranks):
    mean = mean_of_all(ranks.world)
    left = {"a.weight": [2 * mean], "b.weight": [mean], "c.weight": None}
    right = {"a.weight": [2 * mean], "b.weight": None, "c.weight": [mean]}
    assert ranks(wind) == [[left, right, left, right]] * ranks.world


class Renormed(nn.Module):
    """A table whose forward shortens the rows that are looked up, in place; no low number is 4 and a 512th."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 1, max_norm=1.0)
        nn.init.constant_(self.table.weight, 4.0 + 2**-9)

    def forward(self, rows, x):
        return self.table(rows) * x


def shorten_and_step(ctx, config):
    def run():
        model = mixed(ctx, Renormed(), config)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        rows = torch.tensor([0, 1], device=ctx.device).split(1)
        sum(model(row, mine(ctx)) for row in rows).sum().backward()
        optimizer.step()
        return whole(model.module.table.weight).flatten().tolist()

    return or_lacks_accelerator(ctx, run)


@check("DDP-135", worlds=MANY, beyond=False)
def test_what_a_forward_changes_of_a_parameter_is_there_when_the_optimizer_steps(ranks):
    right = [1.0 - mean_of_all(ranks.world) / 2] * 2 + [4.0 + 2**-9]
    assert ranks(shorten_and_step, {"param_dtype": LOW}) == [right] * ranks.world


# -- DDP-136: sparse gradients, too


def look_up(ctx):
    def run():
        mixed(ctx, models.scalar(), {"param_dtype": LOW})(mine(ctx))  # whoever lacks an accelerator says so here
        model = mixed(ctx, nn.Embedding(2, 1, sparse=True), {"reduce_dtype": LOW})
        ((1.0 + FINE) * model(torch.zeros(1, dtype=torch.int64, device=ctx.device))).sum().backward()
        gradient = model.module.weight.grad
        return gradient.dtype, whole(gradient).to_dense().flatten().tolist()

    return or_lacks_accelerator(ctx, run)


@check("DDP-136", worlds=(1, 2, 4))
def test_sparse_gradients_are_exchanged_in_the_dtype_of_the_reduction(ranks):
    assert ranks(look_up) == [(FULL, [1.0, 0.0])] * ranks.world
