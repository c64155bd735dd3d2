"""Delayed reduction: chosen parameters are averaged in one piece, when the gradient of a trigger is ready."""

import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn

from conformance.api import oracle
from conformance.api.checking import MANY, WORLDS, check
from conformance.fixtures import models
from conformance.fixtures.observing import (
    elements_of,
    mean_of_all,
    mine,
    reduced_elements,
    reductions,
    show_reductions,
    started,
    takes,
    wrapped,
)
from conformance.fixtures.training import gradients, numbers, parameters, private
from conformance.ranks import caught

PATIENCE_S = 5.0  # how long a check that does not ask *when* the averages are there waits for them
LATE_S = 0.25


def delaying(ctx, model, names, trigger, **options):
    """``model`` under DDP with the parameters called ``names`` delayed until ``trigger`` has its gradient."""
    takes(ctx, "delay_all_reduce_named_params", "param_to_hook_all_reduce")
    by_name = dict(model.to(ctx.device).named_parameters(remove_duplicate=False))
    named = [(name, by_name[name]) for name in names]
    return wrapped(
        ctx, model, delay_all_reduce_named_params=named, param_to_hook_all_reduce=by_name[trigger], **options
    )


def line_of(*weights):
    """Scalar layers one after the other. While all weights are 1, every gradient is the input."""
    return nn.Sequential(*[models.scalar(weight) for weight in weights])


def settled(ctx, model, expected, turn=0, patience_s=PATIENCE_S):
    """The gradients, as soon as they are ``expected``, or after a while; then on every rank.

    A rank that holds the averages may still be sending them to its peers: only when all have them is it safe to go on.
    """
    end = time.monotonic() + patience_s
    while gradients(model) != expected and time.monotonic() < end:
        time.sleep(0.002)
    ctx.meet(f"settled {turn}")
    return gradients(model)


# -- DDP-121: equal at the start


def start_apart(ctx, members):
    group = dist.new_group(members)
    if ctx.rank not in members:
        return None
    model = line_of(1.0 + ctx.rank, 10.0 + ctx.rank, 20.0 + ctx.rank)
    model = delaying(ctx, model, ["1.weight", "2.weight"], "0.weight", process_group=group)
    return parameters(model)


@check("DDP-121", worlds=WORLDS)
def test_delayed_parameters_start_as_on_the_first_rank(ranks):
    expected = {"0.weight": [1.0], "1.weight": [10.0], "2.weight": [20.0]}
    assert ranks(start_apart, list(range(ranks.world))) == [expected] * ranks.world


@check("DDP-121", worlds=(2, 3, 4))
def test_delayed_parameters_start_as_on_the_first_rank_of_a_subgroup(ranks):
    expected = {"0.weight": [2.0], "1.weight": [11.0], "2.weight": [21.0]}
    told = ranks(start_apart, list(range(1, ranks.world)))
    assert told == [None] + [expected] * (ranks.world - 1)


# -- DDP-122: averaged in one piece


DELAYED = ["1.weight", "1.bias", "2.weight", "2.bias"]


def train_delayed(ctx, count, averages):
    model = delaying(ctx, models.chain(3), DELAYED, "0.weight")
    seen, sent = [], []
    for iteration in range(count):
        model.zero_grad(set_to_none=True)
        x = models.divisible(ctx.rank, iteration).to(ctx.device)
        sent.append(started(ctx, lambda x=x: model(x).sum().backward()))
        seen.append(settled(ctx, model, averages[iteration], iteration))
    pieces = {model.module.get_parameter(name).grad.untyped_storage().data_ptr() for name in DELAYED}
    return seen, sent, len(pieces)


def averages_of(model, world, count):
    found = []
    for iteration in range(count):
        batches = [models.divisible(rank, iteration) for rank in range(world)]
        found.append(numbers(oracle.averaged_gradients(model, batches, world).items()))
    return found


@check("DDP-122", worlds=WORLDS, beyond=False)
def test_delayed_and_other_gradients_are_averages_and_the_delayed_ones_share_memory(ranks):
    averages = averages_of(models.chain(3), ranks.world, 3)
    for rank, (seen, _, pieces) in enumerate(ranks(train_delayed, 3, averages)):
        assert seen == averages, f"rank {rank}"
        assert pieces == 1, f"the delayed gradients of rank {rank} lie in {pieces} pieces of memory"


@check("DDP-122", worlds=MANY)
def test_delayed_gradients_travel_together_and_once(ranks):
    layer = 20  # elements: more than marks and padding have that travel along
    averages = averages_of(models.chain(3), ranks.world, 3)
    ranks(show_reductions, trace=True)
    for _, sent, _ in ranks(train_delayed, 3, averages, trace=True):
        for events in sent:
            sizes = [elements_of(event) for event in reductions(events)]
            assert sum(size >= 2 * layer for size in sizes) == 1, f"not one collective for what is delayed: {events}"
            assert 3 * layer <= sum(sizes) < 4 * layer, f"something was reduced twice or not at all: {events}"


LARGE = 40000.0  # two of them overflow float16, their mean does not


def delay_in_half_precision(ctx):
    model = delaying(ctx, line_of(1.0, 1.0).half(), ["1.weight"], "0.weight")
    model(torch.full((1, 1), LARGE, dtype=torch.float16, device=ctx.device)).sum().backward()
    return settled(ctx, model, {"0.weight": [LARGE], "1.weight": [LARGE]})


@check("DDP-122", worlds=(2,))
def test_delayed_gradients_in_half_precision_are_divided_before_they_are_added_up(ranks):
    assert ranks(delay_in_half_precision) == [{"0.weight": [LARGE], "1.weight": [LARGE]}] * 2


# -- DDP-123: when the flat buffer starts from zero


def zero_in_some_way(ctx, how, expected):
    model = delaying(ctx, line_of(1.0, 1.0, 1.0), ["1.weight", "2.weight"], "0.weight")
    seen = []
    for iteration in range(3):
        if how == "every time":
            model.zero_grad(set_to_none=True)
        elif how == "one of two":
            model.module[1].weight.grad = None
        model(mine(ctx, 1 + iteration)).sum().backward()
        seen.append(settled(ctx, model, expected[iteration], iteration))
    return seen


ZEROING = {
    "every time": {"0.weight": (1, 2, 3), "1.weight": (1, 2, 3), "2.weight": (1, 2, 3)},
    "never": {"0.weight": (1, 3, 6), "1.weight": (1, 3, 6), "2.weight": (1, 3, 6)},
    "one of two": {"0.weight": (1, 3, 6), "1.weight": (1, 2, 3), "2.weight": (1, 3, 6)},
}


@check("DDP-123", worlds=WORLDS, beyond=False)
def test_what_is_none_starts_from_zero_and_everything_else_accumulates(ranks):
    mean = mean_of_all(ranks.world)
    right = {
        how: [{name: [times[iteration] * mean] for name, times in multiples.items()} for iteration in range(3)]
        for how, multiples in ZEROING.items()
    }
    for (how, expected), told in ranks.each(zero_in_some_way, right.items(), spread=True):
        assert told == [expected] * ranks.world, how


class Leaving(nn.Sequential):
    """Leaves out its second layer, where it is told to."""

    leaves_out = False

    def forward(self, x):
        for place, layer in enumerate(self):
            x = x if place == 1 and self.leaves_out else layer(x)
        return x


def zero_before_backward(ctx, how, expected):
    """As many loops do it: first the forward, then the gradients are cleared, then the backward."""
    model = delaying(ctx, Leaving(*line_of(1.0, 1.0, 1.0)), ["1.weight", "2.weight"], "0.weight")
    model.module.leaves_out = how == "cleared where it is left out" and ctx.rank > 0
    seen = []
    for iteration in range(3):
        loss = model(mine(ctx, 1 + iteration)).sum()
        if how == "cleared by other tensors":
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
        else:
            model.zero_grad(set_to_none=how != "zeroed in place")
        loss.backward()
        seen.append(settled(ctx, model, expected[iteration], iteration, LATE_S))
    return seen


@check("DDP-122", worlds=MANY, beyond=False)
def test_gradients_cleared_between_forward_and_backward_are_averages_of_that_backward(ranks):
    names = ("0.weight", "1.weight", "2.weight")
    usual = [{name: [mean_of_all(ranks.world, times)] for name in names} for times in (1, 2, 3)]
    of_rank_0 = [{**each, "1.weight": [12.0 * times / ranks.world]} for times, each in enumerate(usual, 1)]
    right = dict.fromkeys(("cleared to None", "cleared by other tensors", "zeroed in place"), usual)
    right["cleared where it is left out"] = of_rank_0
    for (how, expected), told in ranks.each(zero_before_backward, right.items(), spread=True):
        assert told == [expected] * ranks.world, how


class Table(nn.Module):
    """A sparse table before a scalar layer."""

    def __init__(self):
        super().__init__()
        self.layer, self.table = models.scalar(), nn.Embedding(5, 1, sparse=True)
        nn.init.ones_(self.table.weight)

    def forward(self, rows):
        return self.layer(self.table(rows))


def zero_a_table_before_backward(ctx):
    model, seen = delaying(ctx, Table(), ["table.weight"], "layer.weight"), []
    for iteration in range(2):
        loss = 12 * model(torch.tensor([ctx.rank, 4, 4], device=ctx.device)).sum()
        model.zero_grad(set_to_none=True)
        loss.backward()
        seen.append({name: p.grad.to_dense().flatten().tolist() for name, p in model.module.named_parameters()})
        ctx.meet(f"seen {iteration}")
    return seen


@check("DDP-122", worlds=MANY, beyond=False)
def test_gradients_cleared_between_forward_and_backward_are_averages_of_sparse_ones_too(ranks):
    table = [12.0 / ranks.world * (row < ranks.world) for row in range(4)] + [24.0]
    expected = {"layer.weight": [36.0], "table.weight": table}
    assert ranks(zero_a_table_before_backward) == [[expected] * 2] * ranks.world, "cleared to None"


def evaluate_before_backward(ctx, expected):
    """Between forward and backward the model is asked without gradients, as for a target or a measure."""
    model = delaying(ctx, line_of(1.0, 1.0), ["1.weight"], "0.weight")
    seen = []
    for iteration in range(3):
        model.zero_grad(set_to_none=True)
        model.train(iteration != 2)  # as with frozen statistics
        loss = model(mine(ctx, 1 + iteration)).sum()
        with torch.no_grad(), model.no_sync() if iteration == 1 else nullcontext():
            model(mine(ctx))
        loss.backward()
        seen.append(settled(ctx, model, expected[iteration], iteration, LATE_S))
    return seen


@check("DDP-122", worlds=MANY, beyond=False)
def test_an_evaluation_between_forward_and_backward_changes_nothing(ranks):
    expected = [{name: [mean_of_all(ranks.world, times)] for name in ("0.weight", "1.weight")} for times in (1, 2, 3)]
    assert ranks(evaluate_before_backward, expected) == [expected] * ranks.world


class InTurn(nn.Sequential):
    """Scalar layers side by side; a forward returns the outputs of each."""

    def forward(self, x):
        return [layer(x) for layer in self]


def go_backward_in_turn(ctx, expected):
    """One forward, then a backward from the output of each layer; the second layer's gradients are delayed."""
    model, seen = delaying(ctx, InTurn(*line_of(1.0, 1.0, 1.0)), ["1.weight"], "0.weight"), []
    for turn in range(2):
        model.zero_grad(set_to_none=True)
        for output in model(mine(ctx, 1 + turn)):
            output.sum().backward()
        seen.append(settled(ctx, model, expected[turn], turn, LATE_S))
    return seen


@check("DDP-122", worlds=MANY, beyond=False)
def test_delayed_gradients_of_several_backwards_through_one_forward_are_averages(ranks):
    expected = [{f"{place}.weight": [mean_of_all(ranks.world, times)] for place in range(3)} for times in (1, 2)]
    assert ranks(go_backward_in_turn, expected) == [expected] * ranks.world


class SideBySide(nn.Module):
    """Scalar layers, of which each adds one time more to the output than the one before."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([models.scalar() for _ in range(3)])

    def forward(self, x):
        return sum(times * layer(x) for times, layer in enumerate(self.layers, 1))


def exchange_delayed(ctx, options, places, expected):
    """Two parameters exchange their gradients before each backward adds to them; the last two are delayed."""
    names = ["layers.1.weight", "layers.2.weight"]
    model, seen = delaying(ctx, SideBySide(), names, "layers.0.weight", **options), []
    for turn in range(len(expected)):
        one, other = (model.module.layers[place].weight for place in places)
        one.grad, other.grad = other.grad, one.grad
        model(mine(ctx, 1 + turn)).sum().backward()
        seen.append(settled(ctx, model, expected[turn], turn, LATE_S))
    return seen


@check("DDP-122", worlds=MANY, beyond=False)
def test_delayed_gradients_that_change_places_are_averaged_each_by_itself(ranks):
    for one, other in ((1, 2), (0, 1)):
        held, expected = [0.0] * 3, []
        for turn in range(3):
            held[one], held[other] = held[other], held[one]
            held = [value + times * mean_of_all(ranks.world, 1 + turn) for times, value in enumerate(held, 1)]
            expected.append({f"layers.{place}.weight": [value] for place, value in enumerate(held)})
        ways = ({}, {"gradient_as_bucket_view": True})
        for options, told in ranks.each(exchange_delayed, ways, (one, other), expected):
            assert told == [expected] * ranks.world, f"{one, other}, {options}"


# -- DDP-124: backward waits


def trigger_late(ctx):
    """The last rank's trigger comes late, when all buckets are reduced; the delayed gradient right after backward."""
    model = line_of(1.0, 1.0, 1.0)
    private(ctx.subject.DistributedDataParallel, "_set_params_and_buffers_to_ignore_for_model")(model, ["0.weight"])
    model = delaying(ctx, model, ["1.weight"], "0.weight")
    hidden = model.module[0]

    def wait_there(_module, _inputs, output):
        if ctx.rank == ctx.world - 1:
            output.register_hook(lambda _gradient: time.sleep(LATE_S))

    hidden.register_forward_hook(wait_there)
    model(mine(ctx)).sum().backward()
    return gradients(model)


@check("DDP-124", worlds=MANY, beyond=False)
def test_delayed_gradients_are_there_when_backward_returns(ranks):
    average = [mean_of_all(ranks.world)]
    for rank, seen in enumerate(ranks(trigger_late)):
        assert seen == {"0.weight": [12.0 * (rank + 1)], "1.weight": average, "2.weight": average}, f"rank {rank}"


# -- DDP-125: a trigger that is not the last


def trigger_early(ctx, expected):
    """The trigger's gradient is the first to come, the delayed one's the last."""
    model = delaying(ctx, line_of(1.0, 1.0, 1.0), ["0.weight"], "2.weight")
    seen = []

    def train():
        model(mine(ctx)).sum().backward()
        seen.append(settled(ctx, model, expected))

    return caught(train), seen


@check("DDP-125", worlds=MANY, beyond=False)
def test_a_delayed_gradient_that_comes_after_the_trigger_is_averaged_or_refused(ranks):
    expected = {name: [mean_of_all(ranks.world)] for name in ("0.weight", "1.weight", "2.weight")}
    for rank, (error, seen) in enumerate(ranks(trigger_early, expected)):
        if error is None:
            assert seen == [expected], f"rank {rank}"
        else:
            assert error.is_a(RuntimeError), error
            ranks.at_limit("a delayed gradient that comes after the trigger is refused")


# -- DDP-126: accumulation


def accumulate(ctx, expected):
    model = delaying(ctx, line_of(1.0, 1.0), ["1.weight"], "0.weight")
    with model.no_sync():
        model(mine(ctx)).sum().backward()
    inside = settled(ctx, model, {"0.weight": [12.0 * (ctx.rank + 1)], "1.weight": [mean_of_all(ctx.world)]}, 1, LATE_S)
    model(mine(ctx, 2)).sum().backward()
    return inside, settled(ctx, model, expected)


@check("DDP-126", worlds=MANY, beyond=False)
def test_accumulated_delayed_gradients_are_averaged_in_the_end(ranks):
    closing = {name: [3 * mean_of_all(ranks.world)] for name in ("0.weight", "1.weight")}
    for rank, (inside, outside) in enumerate(ranks(accumulate, closing)):
        local, average = 12.0 * (rank + 1), mean_of_all(ranks.world)
        assert inside["0.weight"] == [local], f"rank {rank}"
        assert inside["1.weight"] in ([local], [average]), f"rank {rank}"
        assert outside == closing, f"rank {rank}"
        if local != average and inside["1.weight"] == [average]:
            ranks.at_limit("delayed gradients are reduced inside no_sync, too")


def forward_inside_and_outside(ctx, inside_first, expected):
    """A forward inside and one outside, in either order; then backwards in the same order, up to the outside one."""
    model = delaying(ctx, line_of(1.0, 1.0), ["1.weight"], "0.weight")
    outputs = []
    for inside in (inside_first, not inside_first):
        with model.no_sync() if inside else nullcontext():
            outputs.append(model(mine(ctx)))
    for output in outputs if inside_first else outputs[:1]:
        output.sum().backward()
        ctx.meet(f"backward {output is outputs[0]}")  # what is sent after a backward has ended with it
    return settled(ctx, model, expected)


@check("DDP-126", worlds=MANY, beyond=False, scenarios={"inside first": True, "outside first": False})
def test_delayed_gradients_are_averaged_once_the_backward_of_the_forward_outside_has_run(ranks, scenario):
    averages = {name: [(2 if scenario else 1) * mean_of_all(ranks.world)] for name in ("0.weight", "1.weight")}
    for rank, told in enumerate(ranks(forward_inside_and_outside, scenario, averages)):
        assert told == averages, f"rank {rank}"


# -- DDP-127: nothing but delayed parameters


def delay_everything(ctx, frozen, expected):
    model = line_of(1.0, 1.0, 1.0)
    model[2].weight.requires_grad_(not frozen)
    seen = []

    def build_and_train():
        names = ["0.weight", "1.weight"] if frozen else ["0.weight", "1.weight", "2.weight"]
        ddp = delaying(ctx, model, names, "0.weight")
        for iteration in range(2):
            ddp.zero_grad(set_to_none=True)
            ddp(mine(ctx, 1 + iteration)).sum().backward()
            seen.append(settled(ctx, ddp, expected[iteration], iteration))

    return caught(build_and_train), seen


@check("DDP-127", worlds=(1, 2, 3), scenarios={"all": False, "all but a frozen one": True})
def test_delaying_every_parameter_works_or_is_refused(ranks, scenario):
    expected = []
    for times in (1, 2):
        average = [mean_of_all(ranks.world, times)]
        expected.append({"0.weight": average, "1.weight": average, "2.weight": None if scenario else average})
    for error, seen in ranks(delay_everything, scenario, expected):
        if error is not None:
            ranks.at_limit(f"every trainable parameter delayed: {error.kinds[0]}")
        else:
            assert seen == expected


# -- DDP-128: types and names


def delay_doubles(ctx, expected):
    model = line_of(1.0, 1.0).double()
    seen = []

    x = mine(ctx).double() + 12 * 2.0**-40

    def build_and_train():
        ddp = delaying(ctx, model, ["1.weight"], "0.weight")
        ddp(x).sum().backward()
        seen.extend([settled(ctx, ddp, expected), model[1].weight.grad.dtype])

    return caught(build_and_train), seen


@check("DDP-128", worlds=WORLDS, beyond=False)
def test_the_gradient_of_a_delayed_double_is_a_double_or_the_model_is_refused(ranks):
    average = [mean_of_all(ranks.world) + 12 * 2.0**-40]  # more digits than a single float has
    expected = dict.fromkeys(("0.weight", "1.weight"), average)
    for error, seen in ranks(delay_doubles, expected):
        if error is not None:
            ranks.at_limit(f"a delayed double is refused: {error.kinds[0]}")
        else:
            assert seen == [expected, torch.float64]


class OfSeveralKinds(nn.Module):
    """Scalar layers in a line, some of other kinds; while all weights are 1, every gradient is the input."""

    KINDS = (torch.float32, torch.float32, torch.float64, torch.complex64, torch.float64)

    def __init__(self):
        super().__init__()
        self.lines = nn.ParameterList([nn.Parameter(torch.ones((), dtype=kind)) for kind in self.KINDS])

    def forward(self, x):
        for line in self.lines:
            x = (x.to(line.dtype) * line).real.double()
        return x


class OfSmallKinds(OfSeveralKinds):
    """The same, some of which are divided before they are added up."""

    KINDS = (torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float16)


def delay_several_kinds(ctx, kind, fine, delayed, expected):
    """For each choice of what is delayed, and its trigger: an error, and the gradients of three iterations."""
    told = []
    for names, trigger in delayed:
        seen = []

        def build_and_train(names=names, trigger=trigger, seen=seen):
            model = delaying(ctx, kind(), names, trigger)
            for turn, each in enumerate(expected):
                model.zero_grad(set_to_none=turn % 2 == 0)
                model((mine(ctx, turn + 1) + fine).double()).sum().backward()
                seen.append(settled(ctx, model, each, turn))

        told.append((caught(build_and_train), seen))
    return told


FINE = 2.0**-16  # kept by float32 beside numbers of this size


OF_KINDS = (  # what is delayed, and its trigger
    ([f"lines.{place}" for place in (1, 2, 3, 4)], "lines.0"),
    (["lines.0", "lines.2"], "lines.1"),  # a pair of two kinds
    (["lines.1", "lines.3"], "lines.2"),  # a trigger of another kind
)


@check("DDP-128", "DDP-122", worlds=WORLDS, beyond=False)
def test_delayed_gradients_of_several_kinds_are_averages_of_their_own_kind_or_refused(ranks):
    for kind, fine in ((OfSeveralKinds, 12 * FINE), (OfSmallKinds, 0)):
        expected = [
            {f"lines.{place}": [mean_of_all(ranks.world, times) + fine] for place in range(5)} for times in (1, 2, 3)
        ]
        for rank, told in enumerate(ranks(delay_several_kinds, kind, fine, OF_KINDS, expected)):
            for (error, seen), delayed in zip(told, OF_KINDS, strict=True):
                if error is not None:
                    ranks.at_limit(f"delayed parameters of several kinds are refused: {error.kinds[0]}")
                else:
                    assert seen == expected, f"rank {rank}, {kind.__name__}, {delayed}"


class FourDimensional(nn.Module):
    """Two parameters that have another layout with channels last; each element's gradient is the input."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.ones(2, 3, 2, 2)) for _ in range(2))

    def forward(self, x):
        return x * self.a.sum() + x * self.b.sum()


def change_amid_training(ctx, change, zeroed, world):
    """Gradients of five iterations, the third of which comes after a change; or a refusal."""
    model = delaying(ctx, FourDimensional(), ["b"], "a")
    seen = []

    def train():
        for turn in range(5):
            if turn == 2:
                change(model)
            model.zero_grad(set_to_none=zeroed)
            model(mine(ctx, turn + 1).to(model.module.a.dtype)).sum().backward()
            expected = dict.fromkeys(("a", "b"), [mean_of_all(world, turn + 1)] * 24)
            seen.append(settled(ctx, model, expected, turn, LATE_S) == expected)

    return caught(train), seen


def channels_last(model):
    model.to(memory_format=torch.channels_last)


def doubles(model):
    model.double()


def doubles_past_the_wrapper(model):
    model.module.double()


@check("DDP-122", worlds=MANY, beyond=False, scenarios={
    "channels last": channels_last, "doubles": doubles, "doubles, past the wrapper": doubles_past_the_wrapper,
})  # fmt: skip
def test_delayed_gradients_are_averages_also_of_a_model_that_was_changed_or_that_is_refused(ranks, scenario):
    for zeroed in (True, False):
        for rank, (error, seen) in enumerate(ranks(change_amid_training, scenario, zeroed, ranks.world)):
            if error is not None:
                assert error.is_a(RuntimeError), error
                assert seen[:2] == [True, True], f"rank {rank}, {zeroed=}"
                ranks.at_limit("a model with delayed gradients that was changed amid training is refused")
            else:
                assert seen == [True] * 5, f"rank {rank}, {zeroed=}"


WIDE = 64  # more elements than marks and padding have that travel along


class Root(nn.Module):
    """A wide parameter of the root module, which goes by two names, behind a scalar layer."""

    def __init__(self):
        super().__init__()
        self.a = models.scalar()
        self.b = self.too = nn.Parameter(torch.ones(WIDE))

    def forward(self, x):
        return self.a(x) * self.b


def delay_at_the_root(ctx, expected, name):
    model = delaying(ctx, Root(), [name], "a.weight")
    model(mine(ctx)).sum().backward()
    return settled(ctx, model, expected), reduced_elements(ctx.trace())


@check("DDP-128", worlds=MANY, beyond=False)
def test_a_delayed_parameter_of_the_root_module_is_averaged_once(ranks):
    mean = mean_of_all(ranks.world)
    expected = {"b": [mean] * WIDE, "a.weight": [mean * WIDE]}
    ranks(show_reductions, trace=True)
    told = [(rank, *one) for name in ("b", "too")
            for rank, one in enumerate(ranks(delay_at_the_root, expected, name, trace=True))]  # fmt: skip
    for rank, seen, elements in told:
        assert seen == expected, f"rank {rank}"
        assert WIDE < elements < 2 * WIDE, f"rank {rank} reduced {elements} elements for parameters of {WIDE} and 1"


# -- DDP-058: frozen


def delay_what_is_frozen(ctx, averages):
    """The gradients, in turns with none and with one of the rank's own in the delayed parameter that is frozen."""
    module, seen = line_of(1, 1, 1).to(ctx.device), []
    module[2].weight.requires_grad_(False)
    model = delaying(ctx, module, ["1.weight", "2.weight"], "0.weight")
    for turn, (mean, kept) in enumerate(averages[ctx.rank]):
        module[0].weight.grad = module[1].weight.grad = None
        module[2].weight.grad = None if kept is None else torch.full_like(module[2].weight, kept)
        model(mine(ctx, turn + 1)).sum().backward()
        right = {"0.weight": [mean], "1.weight": [mean], "2.weight": kept if kept is None else [kept]}
        seen.append((settled(ctx, model, right, turn, patience_s=1.0), right))
    return seen


@check("DDP-058", worlds=MANY)
def test_a_delayed_parameter_that_is_frozen_keeps_what_it_has(ranks):
    means = [mean_of_all(ranks.world, turn + 1) for turn in range(4)]
    averages = [list(zip(means, (None, None, 7.0 + rank, 7.0 + rank), strict=True)) for rank in range(ranks.world)]
    for rank, seen in enumerate(ranks(delay_what_is_frozen, averages)):
        for turn, (found, right) in enumerate(seen):
            assert found == right, f"rank {rank}, turn {turn}"


def freeze_all_but_the_delayed(ctx):
    """The delayed layers' gradients while all others are frozen, and once they are trained again."""
    model, seen = line_of(1, 1, 1), []
    model = delaying(ctx, model, ["1.weight", "2.weight"], "1.weight", find_unused_parameters=True)
    first = model.module[0].weight
    for turn, trained in enumerate((True, False, False, True)):
        first.requires_grad_(trained)
        model.zero_grad(set_to_none=True)
        model(mine(ctx, turn + 1)).sum().backward()
        mean = [mean_of_all(ctx.world, turn + 1)]
        right = {"0.weight": mean if trained else None, "1.weight": mean, "2.weight": mean}
        seen.append((settled(ctx, model, right, turn, patience_s=1.0), right))
    return seen


@check("DDP-122", worlds=MANY)
def test_delayed_gradients_are_averages_while_all_others_are_frozen(ranks):
    for rank, seen in enumerate(ranks(freeze_all_but_the_delayed)):
        for turn, (found, right) in enumerate(seen):
            assert found == right, f"rank {rank}, turn {turn}"


# -- DDP-162: another group


def delay_in_another_group(ctx, members, everybody, some):
    """Gradients in the world; then, on members of a new group, those in that one."""
    model = delaying(ctx, line_of(1.0, 1.0), ["1.weight"], "0.weight")
    told = []
    for turn, expected in enumerate((everybody, some)):
        if turn == 1:
            private(model, "_update_process_group")(dist.new_group(members))
        model.zero_grad(set_to_none=True)
        if turn == 0 or ctx.rank in members:
            model(mine(ctx)).sum().backward()
        told.append(settled(ctx, model, expected if turn == 0 or ctx.rank in members else gradients(model), turn))
    return told


@check("DDP-162", worlds=(3, 4), beyond=False)
def test_delayed_gradients_are_averaged_over_the_new_group_too(ranks):
    members = list(range(1, ranks.world))
    means = [sum(12.0 * (rank + 1) for rank in several) / len(several) for several in (range(ranks.world), members)]
    everybody, some = ({name: [mean] for name in ("0.weight", "1.weight")} for mean in means)
    for rank, told in enumerate(ranks(delay_in_another_group, members, everybody, some)[1:], start=1):
        assert told == [everybody, some], f"rank {rank}"


# -- DDP-122: before the first forward


def go_past_the_wrapper_first(ctx):
    """The gradients that a backward past the wrapper leaves, before the wrapper's first forward."""
    model = delaying(ctx, line_of(1.0, 1.0), ["1.weight"], "0.weight")
    model.module(mine(ctx)).sum().backward()
    seen = gradients(model)
    ctx.meet("seen")
    return seen


@check("DDP-122", worlds=MANY, beyond=False)
def test_a_backward_past_the_wrapper_before_its_first_forward_stays_local(ranks):
    for rank, seen in enumerate(ranks(go_past_the_wrapper_first)):
        assert seen == {"0.weight": [12.0 * (rank + 1)], "1.weight": [12.0 * (rank + 1)]}, f"rank {rank}"
