"""What building a DDP model says and does beside its arguments: warnings, log, waiting for peers, environment."""

import contextlib
import io
import os
import re
import time

import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

from conformance.api import oracle
from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.observing import (
    TINY_MIB,
    about,
    assert_refused,
    mean_of_all,
    mine,
    takes,
    trained,
    warned,
    wrapped,
)
from conformance.fixtures.rpc import remote_calls
from conformance.fixtures.training import gradients, logging_data, numbers, private
from conformance.ranks import caught
from conformance.subjects import Unsupported

LATE_S = 0.4

# -- old arguments: DDP-015, DDP-016


def use_check_reduction(ctx):
    heard = {}
    found = []
    for options in ({}, {"check_reduction": False}, {"check_reduction": True}):

        def build(options=options):
            model = wrapped(ctx, models.scalar(), **options)
            found.append(trained(model, mine(ctx))["weight"])

        heard[str(options.get("check_reduction"))] = about(warned(build), "FutureWarning", "check_reduction")
    return heard, found


@check("DDP-015", worlds=(1, 2))
def test_check_reduction_warns_when_true_and_changes_nothing(ranks):
    for heard, found in ranks(use_check_reduction):
        assert heard["None"] == heard["False"] == []
        assert len(heard["True"]) == 1
        assert found == [[mean_of_all(ranks.world)]] * 3


def use_broadcast_buffers(ctx):
    takes(ctx, "forward_sync_buffers")
    choices = [{}, {"broadcast_buffers": False}, {"broadcast_buffers": True},
               {"broadcast_buffers": True, "forward_sync_buffers": False}, {"forward_sync_buffers": False}]  # fmt: skip
    heard = [warned(lambda options=options: wrapped(ctx, models.Counting(1.0), **options)) for options in choices]
    return [about(each, "FutureWarning", "broadcast_buffers") for each in heard]


@check("DDP-016", worlds=(1, 2))
def test_broadcast_buffers_warns_and_points_to_its_successor(ranks):
    for none, off, on, both, successor in ranks(use_broadcast_buffers):
        assert none == successor == []
        for texts in (off, on, both):
            assert any("forward_sync_buffers" in text for text in texts), texts
        assert any("ignored" in text for text in both), both


# -- the log: DDP-019


def fail_after_building(ctx):
    model = wrapped(ctx, models.scalar())
    before = logging_data(model).get("has_error", 0)
    error = caught(private(model, "_set_ddp_runtime_logging_sample_rate"), 0)
    return before, error, logging_data(model)


@check("DDP-019", worlds=(1, 2))
def test_errors_are_noted_in_the_log_before_they_are_raised(ranks):
    for before, error, log in ranks(fail_after_building):
        assert not before
        assert_refused([error], ValueError)
        assert log.get("has_error") == 1, "the log knows of no error"
        texts = [text for name, text in log.items() if "error" in name and isinstance(text, str)]
        assert any("ValueError" in text and error.text in text for text in texts), texts


# -- meeting points: DDP-020


def be_late(ctx):
    """When this rank (on the clock that all share) began and ended to build, and to train; the last is late to both."""
    moments = []

    def timed(act):
        ctx.meet(f"before {len(moments)}")
        if ctx.rank == ctx.world - 1:
            time.sleep(LATE_S)
        start = time.monotonic()
        result = act()
        moments.append((start, time.monotonic()))
        return result

    model = timed(lambda: wrapped(ctx, models.scalar()))
    return timed(lambda: trained(model, mine(ctx))["weight"]), moments


@check("DDP-020", worlds=(2, 3))
def test_building_and_training_wait_for_the_last_rank(ranks):
    told = ranks(be_late)
    assert [gradient for gradient, _ in told] == [[mean_of_all(ranks.world)]] * ranks.world
    _, [(late_building, _), (late_training, _)] = told[-1]
    for rank, (_, [(_, built), (_, trained_at)]) in enumerate(told[:-1]):
        assert trained_at > late_training, f"rank {rank} had the average before the last rank had a gradient"
        if built > late_building:
            ranks.at_limit("the constructor waits for all ranks")


# -- RPC: DDP-022


def train_with_distributed_autograd(ctx):
    """What the contexts of iterations hold, gradients copied and in buckets; and ``.grad`` beside them.

    The fourth has an ordinary backward, in a context or outside, whose gradients stay for those after it; in the last
    nothing is averaged.
    """
    with remote_calls(ctx):
        return [train_in_contexts(ctx, views) for views in (False, True)]


def train_in_contexts(ctx, views):
    model = wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB, gradient_as_bucket_view=views)
    told, beside = [], []

    def train(iteration):
        with dist_autograd.context() as context, model.no_sync() if iteration == 5 else contextlib.nullcontext():
            out = model(models.divisible(ctx.rank, iteration).to(ctx.device))
            dist_autograd.backward(context, [out.sum()])
            found = dist_autograd.get_gradients(context)
            told.append(numbers((name, found.get(p)) for name, p in model.module.named_parameters()))

    def train_all():
        for iteration in range(6):
            if iteration == 3:
                with dist_autograd.context() if views else contextlib.nullcontext():
                    told.append(trained(model, models.divisible(ctx.rank, 3).to(ctx.device)))
            else:
                train(iteration)
            beside.append(gradients(model))

    return caught(train_all), told, beside


def averages(world, iteration):
    module = models.Sum()
    batches = [models.divisible(rank, iteration) for rank in range(world)]
    return numbers(oracle.averaged_gradients(module, batches, world).items())


@check("DDP-022", worlds=(2,), backends=("gloo",))
def test_distributed_autograd_averages_in_its_context_or_is_refused(ranks):
    for rank, ways in enumerate(ranks(train_with_distributed_autograd)):
        local = numbers(oracle.averaged_gradients(models.Sum(), [models.divisible(rank, 5)], 1).items())
        for views, (error, told, beside) in enumerate(ways):
            if error is not None:
                assert_refused([error], RuntimeError, "autograd")
                ranks.at_limit("distributed autograd is refused")
                continue
            assert told == [*(averages(2, iteration) for iteration in range(5)), local]
            assert beside[:4] == [dict.fromkeys(averages(2, 3))] * 3 + [averages(2, 3)], f"rank {rank}"
            assert views or beside[4:] == [averages(2, 3)] * 2, f"rank {rank}"


def hand_out(rank, n):
    """What depends on something that this process differentiates."""
    return 2 * torch.full((1, 1), 12.0 * (rank + 1) * (n + 1), requires_grad=True)


def train_on_what_others_hand_out(ctx):
    """By iteration, what a context holds of two weights behind another rank's results, one of which is left out."""
    told = []

    def train():
        for n in range(3):
            with dist_autograd.context() as context:
                given = rpc.rpc_sync(f"rank{1 - ctx.rank}", hand_out, args=(ctx.rank, n)).to(ctx.device)
                dist_autograd.backward(context, [model(given).sum()])
                found = dist_autograd.get_gradients(context)
                told.append(numbers((name, found.get(p)) for name, p in model.module.named_parameters()))

    with remote_calls(ctx):
        model = wrapped(ctx, models.Branches(), find_unused_parameters=True)
        error = caught(train)
        ctx.meet("trained")
    return error, told


@check("DDP-022", "DDP-099", worlds=(2,), backends=("gloo",))
def test_a_model_behind_another_ranks_results_is_searched_and_averaged_or_refused(ranks):
    expected = [{"a.weight": [2 * mean_of_all(2, n + 1)], "b.weight": None} for n in range(3)]
    for rank, (error, told) in enumerate(ranks(train_on_what_others_hand_out)):
        if error is not None:
            assert_refused([error], RuntimeError, "autograd")
            ranks.at_limit("distributed autograd is refused")
        else:
            assert told == expected, f"rank {rank}"


def go_backward_twice_in_a_context(ctx):
    """What a context holds of two weights after each of its two backwards. In the second rank 0 leaves one out; in the
    last context all do."""
    told = []

    def train():
        for uses in ((True, ctx.rank == 1), (True, ctx.rank == 1), (False, False)):
            with dist_autograd.context() as context:
                for times, with_b in enumerate(uses, 1):
                    dist_autograd.backward(context, [model(mine(ctx, times), with_b=with_b).sum()])
                    found = dist_autograd.get_gradients(context)
                    told.append(numbers((name, found.get(p)) for name, p in model.module.named_parameters()))

    with remote_calls(ctx):
        model = wrapped(ctx, models.Branches(), bucket_cap_mb=1e-6, find_unused_parameters=True)
        error = caught(train)
    return error, told


@check("DDP-022", "DDP-099", worlds=(2,), backends=("gloo",), deadline_s=8)
def test_what_a_context_holds_from_another_backward_is_not_taken_for_this_ones(ranks):
    first, second = (mean_of_all(2, times) for times in (1, 2))
    both = [
        {"a.weight": [first], "b.weight": [first]},
        {"a.weight": [first + second], "b.weight": [first + 24.0 * 2 / 2]},
    ]
    expected = [*both, *both, *({"a.weight": [held], "b.weight": None} for held in (first, first + second))]
    for rank, (error, told) in enumerate(ranks(go_backward_twice_in_a_context)):
        if error is not None:
            assert_refused([error], RuntimeError, "autograd")
            ranks.at_limit("distributed autograd is refused")
        else:
            assert told == expected, f"rank {rank}"


# -- the environment: DDP-023, DDP-024


def read_side_stream(ctx):
    model = wrapped(ctx, models.scalar())
    if not hasattr(model, "use_side_stream_for_tensor_copies"):
        raise Unsupported("no attribute tells whether copies use a side stream")
    return model.use_side_stream_for_tensor_copies


@check("DDP-023", worlds=(1,))
def test_host_to_device_copies_use_a_side_stream_unless_the_environment_says_otherwise(ranks):
    asked = {None: True, "1": True, "0": False, "": False}
    for value, expected in asked.items():
        env = {} if value is None else {"PYTORCH_DDP_USE_SIDE_STREAM": value}
        assert ranks(read_side_stream, env=env) == [expected], f"with {value!r}"


def dump_environment(ctx):
    os.environ["RANK"] = "7"
    os.environ.pop("NCCL_ALGO", None)
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard):
        private(ctx.subject.ddp, "_dump_DDP_relevant_env_vars")()
    return heard.getvalue().splitlines()


@check("DDP-024", worlds=(1,))
def test_the_environment_dump_has_a_line_for_each_variable_set_or_not(ranks):
    lines = ranks(dump_environment)[0]
    assert len([line for line in lines if re.search(r"\bRANK\b\W*7$", line)]) == 1, lines
    assert len([line for line in lines if re.search(r"\bNCCL_ALGO\b\W*N/A$", line)]) == 1, lines
