"""The log that DDP keeps of itself: what it holds, how often it is refreshed, and names in debug mode."""

import copy
import time
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.observing import assert_refused, mine, mixed, or_lacks_accelerator, trained, wrapped
from conformance.fixtures.training import logging_data, private
from conformance.ranks import caught
from conformance.ranks.backends import load

# -- DDP-142, DDP-143: the sampling rate


def set_rates(ctx):
    model = wrapped(ctx, models.scalar())
    set_rate = private(model, "_set_ddp_runtime_logging_sample_rate")
    return [caught(set_rate, rate) for rate in (0, -1)], [caught(set_rate, rate) for rate in (1, 7)]


@check("DDP-142", worlds=(1, 2))
def test_a_sampling_rate_below_one_is_refused(ranks):
    for refused, accepted in ranks(set_rates):
        assert_refused(refused, ValueError)
        assert accepted == [None, None]


def follow_the_log(ctx, rates):
    """Which iteration the log shows after each of ``rates[rate]`` steps, one rate after the other."""
    model = wrapped(ctx, models.scalar())
    log = partial(logging_data, model)
    shown = []
    for rate, steps in rates.items():
        if rate:
            model._set_ddp_runtime_logging_sample_rate(rate)
        seen = []
        for _ in range(steps):
            trained(model, mine(ctx))
            seen.append(log()["iteration"])
        shown.append(seen)
    return shown


@check("DDP-143", worlds=(1, 2))
def test_the_first_ten_iterations_are_logged_and_then_every_nth(ranks):
    first = [*range(11), 10, 10]
    for told in ranks(follow_the_log, {0: 13, 5: 10, 2: 3}):
        assert told == [first, [10, 10, 15, 15, 15, 15, 15, 20, 20, 20], [20, 24, 24]]


@check("DDP-143", worlds=(1,))
def test_by_default_every_hundredth_iteration_is_logged(ranks):
    assert ranks(follow_the_log, {0: 102})[0][0] == [*range(11), *[10] * 89, 100, 100]


# -- DDP-144: what the log holds


class Mixture(nn.Module):
    """Two types of parameters, five of the first and two of the second, and a buffer."""

    def __init__(self):
        super().__init__()
        self.singles = nn.Parameter(torch.ones(5))
        self.doubles = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x):
        return (self.singles * x).sum() + (self.doubles * x).sum()


def read_log(ctx, options):
    model = wrapped(ctx, Mixture(), **options)
    return logging_data(model)


@check("DDP-144", worlds=(1, 2, 3))
def test_the_log_of_a_new_model_says_how_it_was_built(ranks):
    for rank, log in enumerate(ranks(read_log, {})):
        numbers = {
            "world_size": ranks.world, "rank": rank, "bucket_cap_bytes": 25 * 1024 * 1024, "broadcast_buffers": 1,
            "find_unused_parameters": 0, "gradient_as_bucket_view": 0, "output_device": -1, "num_parameter_tensors": 2,
            "total_parameter_size_bytes": 36, "has_sync_bn": 0,
        }  # fmt: skip
        assert {name: log.get(name) for name in numbers} == numbers, f"rank {rank}"
        assert (log["module_name"], log["backend_name"], log["device_ids"]) == ("Mixture", load(ranks.backend), "")
        assert sorted(log["dtypes"].split(", ")) == ["double", "float"]
        assert (log.get("iteration", 0), log.get("has_rebuilt_buckets", 0)) == (0, 0), "before the first iteration"
        assert load(ranks.backend) != "gloo" or log.get("gloo_num_threads") == 2  # as many as Gloo's groups have
        assert all(type(entry) in (int, str) for entry in log.values()), "the entries are texts and whole numbers"


def read_log_in_a_subgroup(ctx):
    group = torch.distributed.new_group(list(range(1, ctx.world)))
    return read_log(ctx, {"process_group": group}) if ctx.rank else None


@check("DDP-144", worlds=(2, 3))
def test_the_log_of_a_model_on_some_ranks_tells_the_place_among_them(ranks):
    _, *logs = ranks(read_log_in_a_subgroup)
    assert [(log["rank"], log["world_size"]) for log in logs] == [(place, len(logs)) for place in range(len(logs))]


def read_log_of_mixed_precision(ctx):
    def run():
        return logging_data(mixed(ctx, Mixture(), {"param_dtype": torch.bfloat16}))

    return or_lacks_accelerator(ctx, run)


@check("DDP-144", worlds=(1, 2))
def test_the_log_tells_the_parameters_that_a_model_has_whatever_it_computes_in(ranks):
    for log in ranks(read_log_of_mixed_precision):
        assert (sorted(log["dtypes"].split(", ")), log["total_parameter_size_bytes"]) == (["double", "float"], 36)


@check("DDP-144", worlds=(1, 2))
def test_the_log_of_a_new_model_follows_its_options(ranks):
    options = {"find_unused_parameters": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 2}
    for log in ranks(read_log, options):
        assert (log["find_unused_parameters"], log["gradient_as_bucket_view"]) == (1, 1)
        assert log["bucket_cap_bytes"] == 2 * 1024 * 1024


def read_log_later(ctx):
    model = wrapped(ctx, models.Sum())
    log = partial(logging_data, model)
    before = log()
    for iteration in range(3):
        trained(model, models.divisible(ctx.rank, iteration).to(ctx.device))
    return before, log()


def read_log_where_nothing_is_rebuilt(ctx):
    model = wrapped(ctx, models.Sum(), find_unused_parameters=True)
    for iteration in range(3):
        trained(model, models.divisible(ctx.rank, iteration).to(ctx.device))
    return logging_data(model)


@check("DDP-144", worlds=(1, 2))
def test_the_log_of_a_trained_model_says_whether_its_buckets_were_rebuilt(ranks):
    assert all(log.get("has_rebuilt_buckets") == 0 for log in ranks(read_log_where_nothing_is_rebuilt))


class Turning(models.Sum):
    """Layers side by side, used in an order that can be turned round."""

    def __init__(self):
        super().__init__(3)
        self.order = [0, 1, 2]

    def forward(self, x):
        for index in self.order:
            x = self.layers[index](x)
        return x


LAYOUT = (
    "rebuilt_bucket_sizes", "rebuilt_per_bucket_param_indices", "num_buckets_reduced", "has_rebuilt_buckets",
    "prev_iteration_grad_ready_order_indices",
)  # fmt: skip


def read_log_of_buckets(ctx):
    """What the log says of the buckets after training in one order, and after a move and training in the other one."""
    model = wrapped(ctx, Turning(), bucket_cap_mb=5e-5)
    told = []
    for order in ([0, 1, 2], [2, 1, 0]):
        model.module.order = order
        for iteration in range(5):
            trained(model, models.divisible(ctx.rank, iteration).to(ctx.device))
        log = logging_data(model)
        told.append([log.get(name) for name in LAYOUT])
        private(model, "_update_process_group")(torch.distributed.new_group(list(range(ctx.world))))
    return told


@check("DDP-144", "DDP-164", worlds=(1, 2))
def test_the_log_tells_the_buckets_that_there_are_and_not_those_that_there_were(ranks):
    for first, second in ranks(read_log_of_buckets):
        assert first == ["80, 80, 80", "5 4, 3 2, 1 0", 3, 1, "5, 4, 3, 2, 1, 0"]
        assert second == ["80, 80, 80", "1 0, 3 2, 5 4", 3, 1, "1, 0, 3, 2, 5, 4"]


#: between which moments of the log some of its times lie
BETWEEN = {
    "forward_compute_time": ("forward_compute_time_start", "backward_compute_time_start"),
    "backward_compute_time": ("backward_compute_time_start", "backward_compute_time_end"),
    "backward_comm_time": ("backward_comm_time_start", "backward_comm_time_end"),
}
MEASURED = ("forward_compute_time", "backward_compute_time", "backward_comm_time", "backward_compute_comm_overlap_time")


@check("DDP-144", worlds=(1, 2))
def test_the_log_of_a_trained_model_also_holds_measured_times(ranks):
    for before, after in ranks(read_log_later):
        assert set(before) <= set(after), "entries got lost in training"
        assert set(MEASURED) <= set(after), "nothing was measured"
        for name in MEASURED:
            assert name not in before or before[name] == 0
            assert after[name] >= 0
            assert after[f"avg_{name}"] >= 0
        assert after["forward_compute_time"] > 0
        assert after["backward_compute_time"] > 0


def log_after_each_iteration(ctx):
    model = wrapped(ctx, Turning(), bucket_cap_mb=5e-5)
    private(model, "_set_ddp_runtime_logging_sample_rate")(1)
    told = []
    for iteration in range(6):
        trained(model, models.divisible(ctx.rank, iteration).to(ctx.device))
        told.append(logging_data(model))
    return told


@check("DDP-144", worlds=(1, 2))
def test_averages_of_the_log_are_those_of_the_times_that_it_has_told(ranks):
    for told in ranks(log_after_each_iteration):
        for name in MEASURED:
            times = []
            for log in told:
                if f"avg_{name}" in log:
                    times.append(log[name])
                    mean, rounded = sum(times) / len(times), len(times)  # by a nanosecond in each iteration
                    assert abs(log[f"avg_{name}"] - mean) <= rounded, f"{name}: {log[f'avg_{name}']} after {times}"
            assert times, f"no iteration has told {name}"


def log_between_two_looks_at_the_clock(ctx):
    """What the log says after three iterations, and how long they took, in ns."""
    model, begun = wrapped(ctx, Turning(), bucket_cap_mb=5e-5), time.time_ns()
    for iteration in range(3):
        trained(model, models.divisible(ctx.rank, iteration).to(ctx.device))
    log = logging_data(model)
    return time.time_ns() - begun, log


@check("DDP-144", worlds=(1, 2))
def test_measured_times_are_those_of_one_iteration(ranks):
    for took, log in ranks(log_between_two_looks_at_the_clock):
        for name, (start, end) in BETWEEN.items():
            assert log[name] == log[end] - log[start], name
        forward, backward, sending, both = (log[name] for name in MEASURED)
        assert forward + backward <= took
        assert both <= backward
        assert both <= sending <= took


# -- DDP-145: static graphs


def log_static_graphs(ctx):
    chosen = wrapped(ctx, models.scalar(), static_graph=True)
    plain = wrapped(ctx, models.scalar())
    late = wrapped(ctx, models.scalar())
    private(late, "_set_static_graph")()
    logged = [logging_data(model) for model in (chosen, plain, late)]
    return [log.get("static_graph", 0) for log in logged]


@check("DDP-145", worlds=(1, 2))
def test_a_static_graph_is_logged_once_it_is_set(ranks):
    assert ranks(log_static_graphs) == [[1, 0, 1]] * ranks.world


def log_a_copy(ctx):
    ctx.subject.require("pickling")
    copied = copy.deepcopy(wrapped(ctx, models.scalar(), static_graph=True))
    return logging_data(copied).get("static_graph", 0)


@check("DDP-145", worlds=(1, 2))
def test_of_a_copy_a_static_graph_is_logged_too(ranks):
    assert ranks(log_a_copy) == [1] * ranks.world


# -- DDP-146: names in debug mode


def leave_b_out(ctx):
    model = wrapped(ctx, models.Parts("ab"))
    model.module.use = "a"
    x = models.divisible(ctx.rank, 0).to(ctx.device)

    def train():
        for _ in range(2):
            model(x).sum().backward()

    return caught(train)


class Crowded(nn.Module):
    """In front of what is left out: a shared layer, a frozen one, an ignored one; their places must not be counted."""

    def __init__(self):
        super().__init__()
        self.shared = models.scalar()
        self.again = nn.Sequential(self.shared, nn.Identity())
        self.frozen = models.scalar().requires_grad_(False)
        self.ignored = models.scalar()
        self.left_out, self.last = nn.ModuleList(models.scalar() for _ in range(30)), models.scalar()
        self.last.twin = self.left_out

    def forward(self, x):
        return self.last(self.ignored(self.frozen(self.again(self.shared(x)))))


def leave_out_behind_others(ctx):
    module = Crowded()
    leave = private(ctx.subject.DistributedDataParallel, "_set_params_and_buffers_to_ignore_for_model")
    leave(module, ["ignored.weight"])
    model = wrapped(ctx, module)

    def train():
        for _ in range(2):
            model(mine(ctx)).sum().backward()

    return caught(train)


class Again(nn.Module):
    """A layer that is checkpointed twice: with unused-parameter detection its gradients are ready more than once."""

    def __init__(self):
        super().__init__()
        self.inner = models.scalar()

    def forward(self, x):
        return sum(checkpoint(self.inner, x, use_reentrant=True) for _ in range(2))


def make_ready_twice(ctx):
    model = wrapped(ctx, nn.Sequential(models.scalar(), Again()), find_unused_parameters=True)
    return caught(lambda: model(mine(ctx)).sum().backward())


@check("DDP-146", worlds=(1, 2), scenarios={"INFO": "INFO", "DETAIL": "DETAIL"})
def test_in_debug_mode_errors_name_the_parameters(ranks, scenario):
    for error in ranks(leave_b_out, env={"TORCH_DISTRIBUTED_DEBUG": scenario}):
        assert_refused([error], RuntimeError, "parts.b.weight", "parts.b.bias")
        assert "parts.a" not in error.text
    for error in ranks(leave_out_behind_others, env={"TORCH_DISTRIBUTED_DEBUG": scenario}):
        assert_refused([error], RuntimeError, *(f"left_out.{place}.weight" for place in range(30)))
        others = ("shared", "again", "frozen", "ignored", "last.weight")
        assert not [name for name in others if name in error.text], error.text
    for error in ranks(make_ready_twice, env={"TORCH_DISTRIBUTED_DEBUG": scenario}):
        if error is not None:  # else the model is simply trained
            assert_refused([error], RuntimeError, "1.inner.weight")


# -- DDP-147, DDP-148: broken insides


def map_names(ctx):
    branches = models.Branches()
    branches.frozen = models.scalar().requires_grad_(False)  # which nobody expects in the list
    model = wrapped(ctx, branches)
    map_them = private(model, "_build_debug_param_to_name_mapping")
    a, b = model.module.a.weight, model.module.b.weight
    stranger = nn.Parameter(torch.ones(1))
    return map_them([a, b]), [caught(map_them, [a]), caught(map_them, [a, b, stranger])]


@check("DDP-147", worlds=(1, 2))
def test_a_list_that_does_not_fit_the_model_is_called_a_bug(ranks):
    for names, errors in ranks(map_names):
        assert names == {0: "a.weight", 1: "b.weight"}
        assert_refused(errors, ValueError, "bug")


def lose_the_logger(ctx):
    model = wrapped(ctx, models.scalar())
    calls = [
        private(model, "_get_ddp_logging_data"),
        private(model, "_set_static_graph"),
        lambda: private(model, "_register_builtin_comm_hook")(ctx.subject.BuiltinCommHookType.ALLREDUCE),
        lambda: model.register_comm_hook(None, lambda state, bucket: None),
    ]
    model.logger = None
    return [caught(call) for call in calls]


@check("DDP-148", worlds=(1, 2))
def test_without_its_logger_nothing_is_read_or_registered(ranks):
    for errors in ranks(lose_the_logger):
        assert_refused(errors, AssertionError)
