"""PowerSGD: when it may start, what holds before and after it does, and what of its state can be saved."""

import logging
import math
import pickle
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures.comm_hooks import TINY_MIB, alone, gap, hooked, step
from conformance.fixtures.models import Fed, drawn
from conformance.fixtures.training import private, whole
from conformance.ranks import Caught, caught

HOOKS = {"by layer": "powerSGD_hook", "by bucket": "batched_powerSGD_hook"}
WHOLE_MIB = 25.0  # everything in one bucket
HOOKS_AND_BUCKETS = {
    f"{how}, {many}": (hook, cap)
    for how, hook in HOOKS.items()
    for many, cap in (("one bucket", WHOLE_MIB), ("several buckets", TINY_MIB))
}
START = 3  # plain iterations: one with the first bucket layout, two with the final one
ITERATIONS = 6


class Layers(nn.Module):
    """Two wide layers side by side: their weights are worth compressing, their biases are not."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 24), nn.Linear(16, 24)])
        self.register_buffer("mix", torch.empty(24, 24))
        drawn(self)

    def forward(self, x):
        return (self.layers[0](x) @ self.mix).tanh() + self.layers[1](x).tanh()


def several_rows(rank, iteration):
    """Weights get gradients of full rank."""
    return torch.randn(40, 16, generator=torch.Generator().manual_seed(100 * rank + iteration))


def one_row(rank, iteration):
    """Through ``Straight`` the weight gets the same gradient in every row: a matrix of rank one, on average too."""
    return torch.randn(1, 16, generator=torch.Generator().manual_seed(100 * rank + iteration))


def always_the_same(rank, _iteration):
    return several_rows(rank, 0)


def straight():
    return drawn(nn.Sequential(nn.Linear(16, 24)))


# -- COMM-025: the start


def make_states(ctx):
    make = ctx.subject.powerSGD_hook.PowerSGDState

    def with_start(start, **options):
        return caught(lambda: make(ctx.group, start_powerSGD_iter=start, **options))

    off = {"use_error_feedback": False, "warm_start": False}
    refused = [
        with_start(start, **options)
        for start in (0, 1)
        for options in ({}, {"use_error_feedback": False}, {"warm_start": False})
    ]
    accepted = [with_start(2), with_start(100), with_start(0, **off), with_start(1, **off), caught(make, ctx.group)]
    return refused, accepted


@check("COMM-025", worlds=(1,))
def test_with_a_memory_compression_starts_at_iteration_2_or_later(ranks):
    refused, accepted = ranks(make_states)[0]
    assert all(error is not None and error.is_a(ValueError) for error in refused), refused
    assert accepted == [None] * 5


# -- COMM-026: before and after the start


def train(ctx, hook, model, batch, count, options, cap_mib=WHOLE_MIB):
    """The gradients of some iterations, the first ``START`` of them before compression."""
    library = ctx.subject.powerSGD_hook
    state = library.PowerSGDState(ctx.group, **{"start_powerSGD_iter": START, "min_compression_rate": 1, **options})
    wrapped = hooked(ctx, state, getattr(library, hook), model=model(), bucket_cap_mb=cap_mib)
    return [step(wrapped, batch(ctx.rank, iteration)) for iteration in range(count)]


@check("COMM-026", scenarios=HOOKS_AND_BUCKETS, beyond=False)
def test_plain_averages_before_the_start_and_equal_approximations_after_it(ranks, scenario):
    exact = alone(range(ranks.world), batch=several_rows, model=Layers, count=ITERATIONS)
    hook, cap_mib = scenario
    runs = ranks(train, hook, Layers, several_rows, ITERATIONS, {"matrix_approximation_rank": 2}, cap_mib)
    for seen in runs:
        assert gap(seen[:START], exact[:START]) <= 1e-5
        assert seen[START:] == runs[0][START:], "the ranks have different gradients"
        for iteration in range(START, ITERATIONS):
            compressed = {name: values for name, values in seen[iteration].items() if name.endswith("weight")}
            right = {name: exact[iteration][name] for name in compressed}
            # what is sent is a projection of the gradient and of the errors kept so far, of which there are ever more
            furthest = 1.5 * math.hypot(1, iteration - START)
            assert 1e-4 < gap([compressed], [right]) < furthest, "neither exact nor beside the point"


def train_from_seeds(ctx, seeds):
    options = [{"random_seed": seed, "warm_start": False, "matrix_approximation_rank": 1} for seed in seeds]
    return [train(ctx, "powerSGD_hook", Layers, several_rows, START + 1, each)[START] for each in options]


@check("COMM-026", worlds=(1, 2))
def test_approximations_follow_from_the_seed(ranks):
    for first, other, again in ranks(train_from_seeds, (1, 2, 1)):
        assert first == again, "one seed, and other approximations"
        assert first != other, "another seed, and the same approximations"


def seed_wrongly(ctx):
    make = ctx.subject.powerSGD_hook.PowerSGDState
    return [caught(partial(make, ctx.group, random_seed=seed)) for seed in (-1, 2**32, 2**32 - 1)]


@check("COMM-026", worlds=(1,))
def test_a_seed_that_the_generator_does_not_take_is_refused_where_it_is_given(ranks):
    *refused, largest = ranks(seed_wrongly)[0]
    for error in refused:
        assert error is not None
        assert error.is_a(ValueError), error
    assert largest is None


#: by seed of a state, the seeds of its random factors: what NumPy's RandomState(seed).randint(1_000_000_000) draws;
#: of a state without one, that is 0
DRAWN = {
    1: (717354021, 946286476, 784077896, 491263), 2**32 - 1: (419326371, 479346978, 697429004, 269265991),
    None: (209652396, 398764591, 924231285, 404868288),
}  # fmt: skip


def draw_factors(ctx):
    """By seed, gradients of which each has been compressed with random factors of its own."""
    library, told = ctx.subject.powerSGD_hook, {}
    options = {"min_compression_rate": 1, "use_error_feedback": False, "warm_start": False}
    for seed, each in DRAWN.items():
        seeded = {} if seed is None else {"random_seed": seed}
        state = library.PowerSGDState(ctx.group, 2, 0, **seeded, **options)
        model = hooked(ctx, state, library.powerSGD_hook, model=Fed(8, 8))
        told[seed] = [step(model, several_rows(ctx.rank, iteration)[:8, :8]) for iteration in range(len(each))]
    return told


@check("COMM-026", worlds=(1, 2, 3))
def test_a_seed_draws_the_factors_that_it_draws_in_torch(ranks):
    for rank, told in enumerate(ranks(draw_factors)):
        for seed, seen in told.items():
            for iteration, other in enumerate(DRAWN[seed]):
                mean = torch.stack([several_rows(each, iteration)[:8, :8] for each in range(ranks.world)]).mean(0)
                factor = torch.randn(8, 2, generator=torch.Generator().manual_seed(other))
                columns = torch.linalg.qr(mean @ factor).Q
                right = {"weight": (columns @ columns.T @ mean).flatten().tolist()}
                assert gap(seen[iteration : iteration + 1], [right]) < 1e-4, f"rank {rank}, {seed=}, draw {iteration}"


@check("COMM-026")
def test_what_is_not_compressed_is_averaged_exactly(ranks):
    exact = alone(range(ranks.world), batch=several_rows, model=Layers, count=ITERATIONS)
    for seen in ranks(train, "powerSGD_hook", Layers, several_rows, ITERATIONS, {}):
        for got, right in zip(seen, exact, strict=True):
            biases = [{name: run[name] for name in run if name.endswith("bias")} for run in (got, right)]
            assert gap(biases[:1], biases[1:]) <= 1e-5


def count_elements(ctx):
    """The state's statistics before compression starts, and after each iteration from then on; and in which iteration
    they are to be logged next."""
    library = ctx.subject.powerSGD_hook
    often = {"compression_stats_logging_frequency": 2}
    state = library.PowerSGDState(ctx.group, 2, START, min_compression_rate=1, **often)
    wrapped = hooked(ctx, state, library.powerSGD_hook, model=Layers(), bucket_cap_mb=WHOLE_MIB)
    seen, logged = [], []
    for iteration in range(ITERATIONS):
        step(wrapped, several_rows(ctx.rank, iteration))
        seen.append(tuple(state.compression_stats()))
        logged.append(private(state, "next_stats_report"))
    return seen, logged


@check("COMM-026", worlds=(1, 2))
def test_the_statistics_count_what_there_was_and_what_was_sent(ranks):
    whole_numel, sent = 2 * (16 * 24 + 24), 2 * ((16 + 24) * 2 + 24)
    compressed = [max(0, iteration + 1 - START) for iteration in range(ITERATIONS)]
    for seen, logged in ranks(count_elements):
        assert logged == [0, 0, 0, 5, 5, 7]  # every second of the compressed ones, the first being 3
        assert seen == [(whole_numel / sent if times else 0, times * whole_numel, times * sent) for times in compressed]


class Shifted(Layers):
    """With a parameter of no dimension, which no matrix can be made of."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return super().forward(x) + (x * self.shift).sum()


@check("COMM-026", worlds=(1, 2))
def test_a_parameter_of_no_dimension_is_averaged_exactly(ranks):
    exact = alone(range(ranks.world), batch=several_rows, model=Shifted, count=ITERATIONS)
    for seen in ranks(train, "powerSGD_hook", Shifted, several_rows, ITERATIONS, {}):
        for got, right in zip(seen, exact, strict=True):
            assert gap([{"shift": got["shift"]}], [{"shift": right["shift"]}]) <= 1e-5


def square():
    """A rank of one would make its weight's gradient, which is of full rank, smaller by a factor of eight."""
    return drawn(nn.Sequential(nn.Linear(16, 16, bias=False), nn.Tanh()))


@check("COMM-026")
def test_a_matrix_that_shrinks_by_no_more_than_the_least_rate_is_averaged_exactly(ranks):
    exact = alone(range(ranks.world), batch=several_rows, model=square, count=START + 1)
    for seen in ranks(train, "powerSGD_hook", square, several_rows, START + 1, {"min_compression_rate": 8}):
        assert gap(seen, exact) <= 1e-5


LINE = torch.linspace(-1.1, 0.7, 16)
OF_RANK_ONE = {
    "every number the same": torch.ones(24, 16),
    "every row the same": LINE.expand(24, 16),
    "one row": torch.outer(torch.eye(24)[1], LINE),
    "multiples of a row": torch.outer(torch.linspace(0.1, 1.3, 24), LINE),
    "large numbers": 1e15 * torch.outer(torch.linspace(0.1, 1.3, 24), LINE),
    "small numbers": 1e-15 * torch.outer(torch.linspace(0.1, 1.3, 24), LINE),
}
#: of rank two, as two columns say; the columns of its first factor are multiples but for a ten thousandth
NEARLY = {"nearly": OF_RANK_ONE["multiples of a row"] + 1e-4 * torch.outer(torch.eye(24)[3], LINE**2)}


def feed_rank_one(ctx, rank):
    """By matrix: how far gradients are from their mean while they are compressed, relative to the largest number."""
    library, told = ctx.subject.powerSGD_hook, {}
    for name, on_cpu in (OF_RANK_ONE | (NEARLY if rank > 1 else {})).items():
        matrix = on_cpu.to(ctx.device)
        options = {"start_powerSGD_iter": 2, "min_compression_rate": 1, "use_error_feedback": False}
        state = library.PowerSGDState(ctx.group, matrix_approximation_rank=rank, **options)
        model, missed = hooked(ctx, state, library.powerSGD_hook, model=Fed(24, 16)), []
        for iteration in range(5):
            model.zero_grad()
            model(matrix * (1.0 + ctx.rank + iteration)).backward()
            right = matrix * ((1.0 + ctx.world) / 2 + iteration)
            missed.append(((whole(model.module.weight.grad) - right).abs().max() / right.abs().max()).item())
        told[name] = missed
    return told


@check("COMM-026", worlds=(1, 2, 3), scenarios={"one column": 1, "two columns": 2, "three columns": 3})
def test_a_matrix_of_rank_one_is_reproduced_by_however_many_columns(ranks, scenario):
    for rank, told in enumerate(ranks(feed_rank_one, scenario)):
        for name, missed in told.items():
            assert all(each <= 1e-5 for each in missed), f"rank {rank}, {name}: off by {missed} of the largest number"


def feed_little(ctx, hook):
    """By number of elements, of columns, and what is added to norms: how far gradients are from their mean while they
    are compressed."""
    library, told = ctx.subject.powerSGD_hook, {}
    for numel, rank, number in ((1, 2, 0), (1, 3, 0), (3, 3, 0), (9, 3, 1e-9)):
        options = {"start_powerSGD_iter": 2, "min_compression_rate": 0.1, "use_error_feedback": False}
        options["orthogonalization_epsilon"] = number
        state = library.PowerSGDState(ctx.group, matrix_approximation_rank=rank, **options)
        model = hooked(ctx, state, getattr(library, hook), model=Fed(numel, 1))
        ramp = torch.arange(1.0, 1.0 + numel, device=ctx.device).view(numel, 1)
        found = [step(model, ramp * (1 + ctx.rank + iteration))["weight"] for iteration in range(4)]
        right = [(ramp * ((1.0 + ctx.world) / 2 + iteration)).flatten().tolist() for iteration in range(4)]
        told[numel, rank, number] = gap([{"": each} for each in found], [{"": each} for each in right])
    return told


@check("COMM-026", worlds=(1, 2), scenarios=HOOKS)
def test_where_there_are_as_many_columns_as_there_is_room_for_nothing_is_lost(ranks, scenario):
    for rank, told in enumerate(ranks(feed_little, scenario)):
        assert max(told.values()) <= 1e-5, f"rank {rank}, by elements, columns and number: off by {told}"


SETTLING = {
    "by layer": ("powerSGD_hook", {"min_compression_rate": 100}),  # nothing is compressed any more
    "by bucket": ("batched_powerSGD_hook", {"matrix_approximation_rank": 8}),  # which is all that there is
}


def change_settings(ctx, hook, last):
    """The gradients, by iteration; the rank is 1 to begin with, since iteration 4 it is 2, and then come the last."""
    library, seen = ctx.subject.powerSGD_hook, []
    state = library.PowerSGDState(ctx.group, start_powerSGD_iter=2, min_compression_rate=0.1)
    model = hooked(ctx, state, getattr(library, hook), model=Fed(8, 8))
    for iteration in range(10):
        for name, value in {4: {"matrix_approximation_rank": 2}, 7: last}.get(iteration, {}).items():
            setattr(state, name, value)
        seen.append(step(model, several_rows(ctx.rank, iteration)[:8, :8]))
    return seen


@check("COMM-026", worlds=(1, 2), scenarios=SETTLING)
def test_settings_that_change_amid_compression_lose_nothing(ranks, scenario):
    batches = [[several_rows(rank, iteration)[:8, :8] for rank in range(ranks.world)] for iteration in range(10)]
    means = [{"weight": torch.stack(each).mean(0).flatten().tolist()} for each in batches]
    for rank, seen in enumerate(ranks(change_settings, *scenario)):
        for place in (0, 1, 8, 9):
            assert gap(seen[place : place + 1], means[place : place + 1]) <= 1e-5, f"rank {rank}, iteration {place}"
        for place in (3, 5):
            assert gap(seen[place : place + 1], means[place : place + 1]) > 1e-2, f"rank {rank}, iteration {place}"
        runs = [torch.tensor([each["weight"] for each in run[2:8]]) for run in (seen, means)]
        arrived, right = ([{"weight": run.sum(0).tolist()}] for run in runs)
        assert gap(arrived, right) <= 1e-4, f"rank {rank}: what was lost has not arrived"


@check("COMM-026")
def test_a_matrix_of_rank_one_comes_through_unchanged(ranks):
    exact = alone(range(ranks.world), batch=one_row, model=straight, count=ITERATIONS)
    for seen in ranks(train, "powerSGD_hook", straight, one_row, ITERATIONS, {"use_error_feedback": False}):
        assert gap(seen, exact) <= 1e-4


def serve_torchs_wrapper(ctx):
    """Gradients of rank one of a model under torch's own DDP, whose buckets tell nothing but what is documented."""
    library = ctx.subject.powerSGD_hook
    state = library.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1, use_error_feedback=False)
    model = nn.parallel.DistributedDataParallel(straight())
    error = caught(model.register_comm_hook, state, library.powerSGD_hook)
    return error or [step(model, one_row(ctx.rank, iteration)) for iteration in range(ITERATIONS)]


@check("COMM-026", "COMM-024", worlds=(1, 2), backends=("gloo",))
def test_low_rank_compression_serves_torchs_wrapper_too(ranks):
    exact = alone(range(ranks.world), batch=one_row, model=straight, count=ITERATIONS)
    for seen in ranks(serve_torchs_wrapper):
        if isinstance(seen, Caught):
            ranks.at_limit("hooks take buckets of their own kind only")
        else:
            assert gap(seen, exact) <= 1e-4


class Outer(nn.Module):
    """Its weight's gradient is its input, for which no operation is needed that autocast would lower."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(24, 16))

    def forward(self, x):
        return (self.weight * x).sum()


def rank_one(scale):
    """A matrix of rank one, of numbers that bfloat16 cannot hold."""
    return scale * torch.outer(torch.linspace(0.1, 1.3, 24), torch.linspace(-1.1, 0.7, 16))


def train_under_autocast(ctx):
    """The largest errors of gradients of rank one, where the program keeps autocast on during backward."""
    library = ctx.subject.powerSGD_hook
    options = {"start_powerSGD_iter": START, "min_compression_rate": 1, "use_error_feedback": False}
    wrapped = hooked(ctx, library.PowerSGDState(ctx.group, **options), library.powerSGD_hook, model=Outer())
    missed = []
    for _ in range(ITERATIONS):
        wrapped.zero_grad()
        with torch.autocast(ctx.device.type, dtype=torch.bfloat16):
            wrapped(rank_one(1.0 + ctx.rank).to(ctx.device)).backward()
        missed.append((whole(wrapped.module.weight.grad) - rank_one((1.0 + ctx.world) / 2)).abs().max().item())
    return missed


@check("COMM-026", worlds=(1, 2, 3))
def test_compression_does_not_round_to_what_autocast_computes_in(ranks):
    for rank, missed in enumerate(ranks(train_under_autocast)):
        assert max(missed) < 1e-4, f"rank {rank}"


def cast_while_compressing(ctx):
    """Gradients while they are compressed, of which the second half come after a cast to double; or a refusal."""
    library = ctx.subject.powerSGD_hook
    state = library.PowerSGDState(ctx.group, start_powerSGD_iter=2, min_compression_rate=1)
    model = hooked(ctx, state, library.powerSGD_hook, model=straight(), bucket_cap_mb=WHOLE_MIB)
    seen = [step(model, one_row(ctx.rank, iteration)) for iteration in range(4)]
    error = caught(model.double)
    for iteration in range(4, 8):
        error = error or caught(lambda x: seen.append(step(model, x)), one_row(ctx.rank, iteration).double())
    ctx.meet("told")
    return error, seen


@check("DDP-034", worlds=(1, 2), beyond=False)
def test_a_model_that_was_cast_while_its_gradients_are_compressed_trains_on_or_is_refused(ranks):
    exact = alone(range(ranks.world), batch=one_row, model=straight, count=8)
    for rank, (error, seen) in enumerate(told := ranks(cast_while_compressing)):
        if error is not None:
            assert error.is_a(RuntimeError), error
            assert "param" in error.text.lower(), error
            ranks.at_limit("a model that was cast while its gradients are compressed is refused")
            continue
        assert gap(seen, exact) <= 1e-4, f"rank {rank} goes on with gradients that are no averages"
        assert seen == told[0][1], "the ranks have different gradients"


@check("COMM-026", worlds=(1, 2))
def test_the_same_holds_with_a_number_against_division_by_zero(ranks):
    exact = alone(range(ranks.world), batch=one_row, model=straight, count=ITERATIONS)
    options = {"use_error_feedback": False, "orthogonalization_epsilon": 1e-8}
    for seen in ranks(train, "powerSGD_hook", straight, one_row, ITERATIONS, options):
        assert gap(seen, exact) <= 1e-4


def nothing(_rank, _iteration):
    return torch.zeros(1, 16)


@check("COMM-026", worlds=(1, 2))
def test_with_such_a_number_a_gradient_of_zeros_stays_one(ranks):
    for seen in ranks(train, "powerSGD_hook", straight, nothing, ITERATIONS, {"orthogonalization_epsilon": 1e-8}):
        assert [each["0.weight"] for each in seen] == [[0.0] * len(each["0.weight"]) for each in seen]


@check("COMM-026", worlds=(2,))
def test_with_error_feedback_what_was_lost_arrives_later(ranks):
    """On data that never change, the mean gradient over many iterations goes towards the true one; else it cannot.

    It does not matter whether matrices of one shape are compressed together.
    """
    far = gap_of_mean(ranks, "powerSGD_hook", use_error_feedback=False)
    for together in (False, True):
        near = gap_of_mean(ranks, "powerSGD_hook", batch_tensors_with_same_shape=together)
        assert near < far / 3, f"{together=}: {near}, and {far} without"


@check("COMM-026", worlds=(2,))
def test_with_error_feedback_what_a_whole_bucket_lost_arrives_later(ranks):
    """The bucket is one matrix, which is filled up with zeros to be square."""
    far = gap_of_mean(ranks, "batched_powerSGD_hook", use_error_feedback=False)
    near = gap_of_mean(ranks, "batched_powerSGD_hook")
    assert near < far / 3, f"{near}, and {far} without"


class FromTheFront(nn.Module):
    """Two weights whose gradients come in the order in which they are registered, and are what is fed."""

    def __init__(self):
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.zeros(8, 8)) for _ in range(2))

    def forward(self, one, other):
        last = (self.other * other).sum()
        return last + (self.one * one + 0 * last).sum()


def change_amid_compression(ctx, change, cap_mib):
    """After compression has begun, something changes; from first to last one of two weights has no gradient at all, and
    just after the change the other has none either."""
    library, told = ctx.subject.powerSGD_hook, []
    for quiet in (0, 1):
        state = library.PowerSGDState(ctx.group, start_powerSGD_iter=2, orthogonalization_epsilon=1e-8)
        model = hooked(ctx, state, library.powerSGD_hook, model=FromTheFront(), bucket_cap_mb=cap_mib)
        for iteration in range(9):
            if iteration == 5:
                model = change(ctx, model, state, cap_mib) or model
            loud = torch.randn(8, 8, generator=torch.Generator().manual_seed(10 * iteration + ctx.rank))
            loud *= iteration != 5
            fed = [loud, torch.zeros(8, 8)] if quiet else [torch.zeros(8, 8), loud]
            weights = list(model.module.parameters())
            model.zero_grad()
            model(*(each.to(weights[0].dtype) for each in fed)).backward()
            told.append((quiet, iteration, *(weights[each].grad.abs().max().item() for each in (quiet, 1 - quiet))))
    return told


def another_group(ctx, model, _state, _cap_mib):
    private(model, "_update_process_group")(dist.new_group(list(range(ctx.world))))


def doubles(_ctx, model, _state, _cap_mib):
    model.double()


def starts_again(ctx, _model, state, cap_mib):
    """From a saved state, so that the buckets are those of a model's first iteration."""
    state = pickle.loads(pickle.dumps(state))
    hook = ctx.subject.powerSGD_hook.powerSGD_hook
    return hooked(ctx, state, hook, model=FromTheFront(), bucket_cap_mb=cap_mib)


CHANGES = {
    "another group": (another_group, WHOLE_MIB), "doubles": (doubles, WHOLE_MIB),
    "starts again": (starts_again, WHOLE_MIB), "starts again, in several buckets": (starts_again, TINY_MIB),
}  # fmt: skip


@check("COMM-026", "COMM-027", worlds=(1, 2), beyond=False, scenarios=CHANGES)
def test_what_one_parameter_has_lost_arrives_there_and_never_at_another(ranks, scenario):
    for rank, told in enumerate(ranks(change_amid_compression, *scenario)):
        for quiet, iteration, largest, own in told:
            assert largest < 1e-4, f"rank {rank}, iteration {iteration}: weight {quiet} has got {largest}, not 0"
            if own < 1e-2 and scenario[0] is doubles:
                ranks.at_limit("what was lost before a cast is forgotten")
            else:
                assert own > 1e-2, f"rank {rank}, iteration {iteration}: what weight {1 - quiet} had lost is gone"


def clear_what_is_remembered(ctx):
    """Gradients of compressed iterations, amid which the program clears the memory and changes the group."""
    library, told = ctx.subject.powerSGD_hook, []
    state = library.PowerSGDState(ctx.group, start_powerSGD_iter=2)
    model = hooked(ctx, state, library.powerSGD_hook, model=Layers(), bucket_cap_mb=WHOLE_MIB)
    for iteration in range(8):
        if iteration == 5:
            state.error_dict.clear(), state.p_memory_dict.clear(), state.q_memory_dict.clear()
            private(model, "_update_process_group")(dist.new_group(list(range(ctx.world))))
        told.append(step(model, several_rows(ctx.rank, iteration)))
    return told


@check("COMM-026", worlds=(1, 2), beyond=False)
def test_what_is_remembered_may_be_cleared_before_buckets_are_laid_out_anew(ranks):
    exact = alone(range(ranks.world), batch=several_rows, model=Layers, count=8)
    runs = ranks(clear_what_is_remembered)
    for seen in runs:
        assert seen == runs[0], "the ranks have different gradients"
        for found, right in zip(seen, exact, strict=True):
            for name in ("layers.0.bias", "layers.1.bias"):
                assert gap([{name: found[name]}], [{name: right[name]}]) <= 1e-5


def compress_and_start_again(ctx, starts, cap_mib):
    """The gradients of compressed iterations, before two of which a model may be built anew, with the saved state."""
    library, told = ctx.subject.powerSGD_hook, []
    state = library.PowerSGDState(ctx.group, start_powerSGD_iter=2, orthogonalization_epsilon=1e-8)
    model = hooked(ctx, state, library.powerSGD_hook, model=FromTheFront(), bucket_cap_mb=cap_mib)
    for iteration in range(8):
        if iteration in starts:
            state = pickle.loads(pickle.dumps(state))
            model = hooked(ctx, state, library.powerSGD_hook, model=FromTheFront(), bucket_cap_mb=cap_mib)
        model.zero_grad()
        model(*torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(10 * iteration + ctx.rank))).backward()
        told.append([parameter.grad.tolist() for parameter in model.module.parameters()])
    return told


def assert_nothing_changes(ranks, cap_mib):
    straight_on, again = (ranks(compress_and_start_again, starts, cap_mib) for starts in ((), (4, 6)))
    assert again[0] == again[-1], "the ranks have different gradients"
    if again != straight_on:
        ranks.at_limit("after a restart compression begins with other factors, or forgets what was lost")


@check("COMM-026", "COMM-027", worlds=(1, 2), beyond=False)  # sums of more ranks depend on the place in a bucket
def test_a_restart_from_a_saved_state_changes_nothing_where_it_changes_the_order_in_a_bucket(ranks):
    assert_nothing_changes(ranks, WHOLE_MIB)


@check("COMM-026", "COMM-027", worlds=(1, 2), beyond=False)
def test_a_restart_from_a_saved_state_changes_nothing_where_there_are_several_buckets(ranks):
    """A hook whose callbacks communicate, as torch's do, may do so in another order on each rank: a matter of luck."""
    assert ranks.subject.PeerFailed
    assert_nothing_changes(ranks, TINY_MIB)


class InEitherOrder(nn.Module):
    """Two weights whose gradients are what is fed; that of the weight at place ``first`` comes first."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(8, 8) for _ in range(2))
        self.first = 0

    def forward(self, *fed):
        last = (self.weights[1 - self.first] * fed[1 - self.first]).sum()
        return last + (self.weights[self.first] * fed[self.first] + 0 * last).sum()


def one_column_each(rank, iteration):
    """A matrix for each weight, of which only the first column is not empty, and only the second."""
    columns = torch.randn(2, 8, generator=torch.Generator().manual_seed(100 * rank + iteration))
    return [torch.outer(column, torch.eye(8)[place]) for place, column in enumerate(columns)]


def let_weights_change_places(ctx):
    """Once each weight has factors of its own, gradients come in the other order, in another group of the same ranks.

    By iteration, how far the gradients are from the mean.
    """
    library, gaps = ctx.subject.powerSGD_hook, []
    state = library.PowerSGDState(
        ctx.group, start_powerSGD_iter=2, use_error_feedback=False, orthogonalization_epsilon=1e-8
    )
    model = hooked(ctx, state, library.powerSGD_hook, model=InEitherOrder(), bucket_cap_mb=TINY_MIB)
    for iteration in range(9):
        if iteration == 5:
            another_group(ctx, model, state, TINY_MIB)
            model.module.first = 1
        model.zero_grad()
        model(*one_column_each(ctx.rank, iteration)).backward()
        everybodys = zip(*(one_column_each(rank, iteration) for rank in range(ctx.world)), strict=True)
        means = [sum(each) / ctx.world for each in everybodys]
        pairs = zip(model.module.weights, means, strict=True)
        gaps.append(max((weight.grad - mean).abs().max().item() for weight, mean in pairs))
    return gaps


@check("COMM-026", worlds=(1, 2, 3))
def test_what_is_known_of_one_matrix_is_not_used_for_another_that_comes_in_its_place(ranks):
    for rank, gaps in enumerate(ranks(let_weights_change_places)):
        assert max(gaps) < 1e-4, f"rank {rank}: {gaps}"


LARGE = 1e6  # more than any gradient is


def overflow_once(ctx, hook, feedback):
    """Whether each iteration's gradients are of ordinary size; in one of them rank 0 has met an infinite number."""
    library, told = ctx.subject.powerSGD_hook, []
    for rank in (1, 3):
        options = {"use_error_feedback": feedback, "matrix_approximation_rank": rank, "min_compression_rate": 1}
        state = library.PowerSGDState(ctx.group, start_powerSGD_iter=2, **options)
        model = hooked(ctx, state, getattr(library, hook), model=straight(), bucket_cap_mb=WHOLE_MIB)
        for iteration in range(7):
            rows = several_rows(ctx.rank, iteration)
            rows[0, 0] *= math.inf if (iteration, ctx.rank) == (4, 0) else 1
            told.append(all(abs(value) < LARGE for values in step(model, rows).values() for value in values))
    return told


@check("COMM-026", worlds=(1, 2), beyond=False, scenarios={"errors": True, "none": False})
def test_a_gradient_that_overflows_damages_no_later_iteration(ranks, scenario):
    for hook, results in ranks.each(overflow_once, HOOKS.values(), scenario):
        for rank, told in enumerate(results):
            assert told == [True, True, True, True, False, True, True] * 2, f"rank {rank}, {hook}: right are {told}"


def gap_of_mean(ranks, hook, count=60, **options):
    """How far the mean of many compressed gradients is from the true one, where that is always the same."""
    exact = alone(range(ranks.world), batch=always_the_same, model=Layers, count=1)[0]
    options = {"matrix_approximation_rank": 1, **options}
    seen = ranks(train, hook, Layers, always_the_same, START + count, options)[0][START:]
    return gap([{name: torch.tensor([each[name] for each in seen]).mean(0).tolist() for name in exact}], [exact])


def best_of_rank_one(gradient):
    """The matrix of rank one that is nearest to a gradient, which is written row by row."""
    matrix = torch.tensor(gradient, dtype=torch.float64).view(-1, 16)
    left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
    return (sizes[0] * torch.outer(left[:, 0], right[0])).flatten().tolist()


class Mixed(nn.Module):
    """One layer, behind which its rows are mixed: its weight's gradient has full rank."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 24)
        self.register_buffer("mix", torch.empty(24, 24))
        drawn(self)

    def forward(self, x):
        return (self.layer(x) @ self.mix).tanh()


WARMED = 20  # compressed iterations: each brings the factors nearer to those of the singular value


@check("COMM-026", worlds=(1, 2, 3), scenarios=HOOKS)
def test_with_a_warm_start_factors_settle_on_the_best_ones_and_without_it_they_are_drawn_anew(ranks, scenario):
    exact = alone(range(ranks.world), batch=always_the_same, model=Mixed, count=1)[0]
    best = {"layer.weight": best_of_rank_one(exact["layer.weight"])}
    moved, missed = {}, {}
    for warm in (True, False):
        options = {"warm_start": warm, "use_error_feedback": False, "matrix_approximation_rank": 1}
        before, last = ranks(train, scenario, Mixed, always_the_same, START + WARMED, options)[0][-2:]
        moved[warm] = gap([before], [last])
        missed[warm] = gap([{"layer.weight": last["layer.weight"]}], [best])
    assert moved[True] < 1e-3 < moved[False], f"from one iteration to the next {moved}"
    if scenario == "powerSGD_hook":
        assert missed[True] < 1e-3 < missed[False], f"from the best approximation {missed}"


class Several(nn.Module):
    """Layers like that of ``Mixed`` side by side, of one shape or of two; each has a bucket of its own."""

    def __init__(self, widths=(24, 24, 20)):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, width, bias=False) for width in widths])
        mixes = [nn.Parameter(torch.empty(width, width), requires_grad=False) for width in widths]
        self.mixes = nn.ParameterList(mixes)
        drawn(self)

    def forward(self, x):
        return torch.cat([(layer(x) @ mix).tanh() for layer, mix in zip(self.layers, self.mixes, strict=True)], dim=1)


@check("COMM-026", worlds=(1, 2))
def test_with_a_warm_start_each_of_several_buckets_settles_on_its_own_best_factors(ranks):
    exact = alone(range(ranks.world), batch=always_the_same, model=Several, count=1)[0]
    options = {"warm_start": True, "use_error_feedback": False, "matrix_approximation_rank": 1}
    runs = ranks(train, "powerSGD_hook", Several, always_the_same, START + WARMED, options, TINY_MIB)
    for before, last in (each[-2:] for each in runs):
        for name in [name for name in last if name.startswith("layers")]:
            best = best_of_rank_one(exact[name])
            moved, missed = gap([{name: before[name]}], [{name: last[name]}]), gap([{name: last[name]}], [{name: best}])
            assert moved < 1e-2, f"{name}: {moved} from one iteration to the next"
            assert missed < 2e-2, f"{name}: {missed} from the best approximation"


def communicated(ctx, hook):
    """How many elements this rank sent in a backward before the start and in the last one."""
    library = ctx.subject.powerSGD_hook
    state = library.PowerSGDState(ctx.group, start_powerSGD_iter=START, min_compression_rate=1)
    model = hooked(ctx, state, getattr(library, hook), model=Layers(), bucket_cap_mb=WHOLE_MIB)
    counts = []
    for iteration in range(ITERATIONS):
        output = model(several_rows(ctx.rank, iteration)).sum()
        before = len(ctx.trace())
        output.backward()
        counts.append(sum(torch.Size(event.shape).numel() for event in ctx.trace()[before:]))
    return counts[START - 1], counts[-1]


@check("COMM-026", worlds=MANY, scenarios=HOOKS)
def test_after_the_start_much_less_is_sent(ranks, scenario):
    for before, after in ranks(communicated, scenario, trace=True):
        assert before >= sum(parameter.numel() for parameter in Layers().parameters())
        assert after < before / 2


# -- COMM-027: saving


class _Warnings(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def save_and_load(ctx):
    library = ctx.subject.powerSGD_hook
    others = dist.new_group(list(range(ctx.world)))
    options = {"matrix_approximation_rank": 3, "start_powerSGD_iter": START, "min_compression_rate": 1}
    state = library.PowerSGDState(others, **options)
    model = hooked(ctx, state, library.powerSGD_hook, model=Layers(), bucket_cap_mb=WHOLE_MIB)
    for iteration in range(ITERATIONS):
        step(model, several_rows(ctx.rank, iteration))
    heard = _Warnings()
    logger = logging.getLogger(library.__name__)
    logger.addHandler(heard)
    saved = pickle.dumps(state)
    after_saving = len(heard.texts)
    loaded = pickle.loads(saved)
    logger.removeHandler(heard)
    told = {
        "warned on saving": after_saving > 0,
        "warned on loading": len(heard.texts) > after_saving,
        "default group": loaded.process_group is dist.group.WORLD,
        "rank": loaded.matrix_approximation_rank,
        "start": loaded.start_powerSGD_iter,
        "iterations": loaded.iter,
    }
    return told, _continued(ctx, state), _continued(ctx, loaded)


def _continued(ctx, state):
    """What the state makes of two more iterations; one plain iteration's layout change must not get in between."""
    library = ctx.subject.powerSGD_hook
    model = ctx.subject.DistributedDataParallel(Layers(), bucket_cap_mb=WHOLE_MIB)
    passing = [True]

    def hook(_state, bucket):
        chosen = ctx.subject.default_hooks.allreduce_hook if passing[0] else library.powerSGD_hook
        return chosen(ctx.group if passing[0] else state, bucket)

    model.register_comm_hook(None, hook)
    for _ in range(2):
        step(model, several_rows(ctx.rank, 0))
    passing[0] = False
    return [step(model, several_rows(ctx.rank, iteration)) for iteration in (ITERATIONS, ITERATIONS + 1)]


@check("COMM-027", worlds=(1, 2))
def test_a_saved_state_goes_on_where_it_was_on_the_default_group(ranks):
    for told, kept, resumed in ranks(save_and_load):
        assert told == {
            "warned on saving": True,
            "warned on loading": True,
            "default group": True,
            "rank": 3,
            "start": START,
            "iterations": ITERATIONS,
        }
        assert resumed == kept


class Looked(nn.Module):
    """A sparse table before a layer: under a tiny cap its bucket comes last."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4, sparse=True)
        self.layer = nn.Linear(4, 4)
        drawn(self)

    def forward(self, rows):
        return self.layer(self.table(rows))


def count_iterations(ctx):
    """What each state of the library's has counted after three iterations, and the last gradients."""
    library, local = ctx.subject.powerSGD_hook, ctx.subject.post_localSGD_hook
    states = [(library.PowerSGDState(None), library.powerSGD_hook),
              (library.PowerSGDState(None), library.batched_powerSGD_hook),
              (local.PostLocalSGDState(None, None, 1000), local.post_localSGD_hook)]  # fmt: skip
    told = []
    for state, hook in states:
        model = ctx.subject.DistributedDataParallel(Looked().to(ctx.device), bucket_cap_mb=1e-6)
        model.register_comm_hook(state, hook)
        for iteration in range(3):
            rows = torch.tensor([ctx.rank % 3, 3 + iteration], device=ctx.device)
            model(rows).sum().backward()
        told.append(state.iter)
    return told


@check("COMM-025", worlds=(1, 2))
def test_an_iteration_is_counted_whatever_its_last_bucket_holds(ranks):
    assert ranks(count_iterations) == [[3, 3, 3]] * ranks.world
