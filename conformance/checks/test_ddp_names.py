"""Methods of torch's names that trainers, savers and subclasses call: what they do and return."""

import inspect
import os

import torch

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.observing import TINY_MIB, mine, missing_of, trained, wrapped
from conformance.fixtures.training import logging_data, numbers, private
from conformance.ranks import caught


def send_buffers(ctx):
    """The managed buffers from the last rank, then two tensors of the user's, in chunks of a few bytes."""
    model = wrapped(ctx, models.Counting(1.0))
    model.module.count.fill_(5.0 + ctx.rank)
    private(model, "_default_broadcast_coalesced")(authoritative_rank=ctx.world - 1)
    own = [torch.full((3,), 1.0 + ctx.rank), torch.full((2, 2), 7 + ctx.rank)]
    model._default_broadcast_coalesced(bufs=own, bucket_size=8)
    late, first = (torch.full((3,), 1.0 + ctx.rank) for _ in range(2))
    send = private(model, "_distributed_broadcast_coalesced")
    send([late], 8, ctx.world - 1)
    send([first], 8)
    own += [late, first]
    sent = model.module.count.item()
    model.module.count.fill_(5.0 + ctx.rank)
    caught(lambda: model._default_broadcast_coalesced(bufs=[]))  # nothing, or an error
    return sent, [each.tolist() for each in own], model.module.count.item()


def send_a_modules_buffers(ctx):
    """A buffer after the last rank's were sent by themselves; then how often a hook was called in their place."""
    model, calls = wrapped(ctx, models.Counting(1.0)), []
    send = private(model, "_sync_module_buffers")
    model.module.count.fill_(5.0 + ctx.rank)
    send(ctx.world - 1)
    private(model, "_register_buffer_comm_hook")(None, lambda _state, buffers: calls.append(sorted(buffers)))
    sent = model.module.count.item()
    model.module.count.fill_(7.0 + ctx.rank)
    send(ctx.world - 1)
    return sent, model.module.count.item(), calls


@check("DDP-084", "DDP-093", worlds=(1, *MANY), beyond=False)
def test_a_modules_buffers_are_sent_by_hand_from_a_rank_or_by_the_hook(ranks):
    told = ranks(send_a_modules_buffers)
    assert told == [(4.0 + ranks.world, 7.0 + rank, [["count"]]) for rank in range(ranks.world)]


@check("DDP-005", "DDP-087", worlds=(1, *MANY), beyond=False)
def test_buffers_and_other_tensors_are_sent_from_the_rank_that_is_asked_for(ranks):
    own = [[1.0] * 3, [[7, 7], [7, 7]], [float(ranks.world)] * 3, [1.0] * 3]
    assert ranks(send_buffers) == [(4.0 + ranks.world, own, 5.0 + rank) for rank in range(ranks.world)]


def ask_for_buffers(ctx):
    told = []
    older = missing_of(ctx, "forward_sync_buffers")
    for options in ({}, {"broadcast_buffers" if older else "forward_sync_buffers": False}):
        model = wrapped(ctx, models.Counting(1.0), **options)
        before, after = private(model, "_check_sync_bufs_pre_fwd"), private(model, "_check_sync_bufs_post_fwd")
        told.append((bool(before()), bool(after())))
        with model.no_sync():
            model(mine(ctx))
        told.append((bool(before()), bool(after())))
        model._register_buffer_comm_hook(None, lambda state, buffers: None)
        model.require_forward_param_sync = True
        told.append((bool(before()), bool(after())))
    return told


@check("DDP-081", "DDP-094", worlds=(1, 2, 3))
def test_whether_buffers_are_synchronised_next_and_on_which_side_of_forward_can_be_asked(ranks):
    on, off = [(True, False), (False, False), (False, True)], [(False, False)] * 3
    assert ranks(ask_for_buffers) == [on + off] * ranks.world


def ask_for_use(ctx):
    """Rank 0 uses one part, all others another one; how many ranks used each parameter, as last agreed."""
    model = wrapped(ctx, models.Parts("abc"), find_unused_parameters=True)
    model.module.use = "ac" if ctx.rank == 0 else "bc"
    trained(model, models.divisible(ctx.rank, 0).to(ctx.device))
    parameters, sparse = private(model, "_build_params_for_reducer")()
    used = private(private(model, "reducer"), "_get_local_used_map")().tolist()
    same = [one is other for one, other in zip(parameters, model.parameters(), strict=True)]
    static = wrapped(ctx, models.Parts("abc"), static_graph=True)
    trained(static, models.divisible(ctx.rank, 0).to(ctx.device))
    length = len(private(private(static, "reducer"), "_get_local_used_map")())
    return used, same, list(sparse), length


@check("DDP-099", "DDP-055", worlds=(1, *MANY), beyond=False)
def test_how_many_ranks_used_each_parameter_can_be_asked(ranks):
    used = [1, 1, ranks.world - 1, ranks.world - 1, ranks.world, ranks.world]
    assert ranks(ask_for_use) == [(used, [True] * 6, [False] * 6, 6)] * ranks.world


def see_whether_use_changes(ctx):
    model = wrapped(ctx, models.Branches(), find_unused_parameters=True)
    told, logged = [], []
    for with_b in (False, False, True, True):
        model.zero_grad()
        model(mine(ctx), with_b=with_b).sum().backward()
        told.append(bool(private(private(model, "reducer"), "_ddp_graph_static")()))
        log = logging_data(model)
        logged.append((log.get("unused_parameter_size"), "can_set_static_graph" in log))
    return told, logged[1][0], logged[-1], bool(log.get("can_set_static_graph", False))


@check("DDP-144", "DDP-111", worlds=(1, 2, 3))
def test_whether_every_iteration_used_the_same_parameters_can_be_asked(ranks):
    assert ranks(see_whether_use_changes) == [([True, True, False, False], 4, (0, True), False)] * ranks.world


def read_the_environment(ctx):
    given = {
        "master_addr": ("MASTER_ADDR", "tea.example"), "cuda_visible_devices": ("CUDA_VISIBLE_DEVICES", "3"),
        "torch_distributed_debug": ("TORCH_DISTRIBUTED_DEBUG", "OFF"),
        "gloo_socket_ifname": ("GLOO_SOCKET_IFNAME", "lo"),
    }  # fmt: skip
    told = []
    for there in (True, False):
        for variable, value in given.values():
            os.environ.pop(variable, None)
            if there:
                os.environ[variable] = value
        log = logging_data(wrapped(ctx, models.scalar()))
        told.append([log.get(name) == (value if there else "N/A") for name, (_, value) in given.items()])
    return told, log.get("master_port") == os.environ.get("MASTER_PORT", "N/A")


@check("DDP-144", worlds=(1, 2), backends=("gloo",))
def test_the_log_tells_the_variables_of_the_environment_as_they_were_when_the_model_was_wrapped(ranks):
    assert ranks(read_the_environment) == [([[True] * 4, [True] * 4], True)] * ranks.world


def look_through_the_class(ctx):
    """Whether each name of the class can be asked for, as tools that document or imitate classes do; and whether an
    object that was never built has an attribute of no class."""
    kind = ctx.subject.DistributedDataParallel
    return dict(inspect.getmembers(kind))["forward"] is kind.forward, hasattr(kind.__new__(kind), "no_such_thing")


@check("DDP-041", worlds=(1,))
def test_the_class_itself_can_be_looked_through(ranks):
    assert ranks(look_through_the_class) == [(True, False)]


def rebuild_by_hand(ctx):
    """Averages of a model whose program asks for the buckets to be rebuilt, as torch's own forward does."""
    model = wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB)
    rebuild, seen = private(private(model, "reducer"), "_rebuild_buckets"), []
    for iteration in range(4):
        assert rebuild() in (True, False)
        seen.append(trained(model, models.divisible(ctx.rank, iteration).to(ctx.device)))
    return seen


@check("DDP-054", worlds=(1, *MANY), beyond=False)
def test_whoever_asks_for_buckets_to_be_rebuilt_gets_averages(ranks):
    expected = []
    for iteration in range(4):
        batches = [models.divisible(rank, iteration) for rank in range(ranks.world)]
        expected.append(numbers(oracle.averaged_gradients(models.Sum(), batches, ranks.world).items()))
    assert ranks(rebuild_by_hand) == [expected] * ranks.world


def ask_for_what_is_not_there(ctx):
    model = wrapped(ctx, models.Branches())
    return caught(lambda: model.no_such_thing), caught(lambda: model.module.no_such_thing)


@check("DDP-041", worlds=(1,))
def test_an_attribute_that_neither_the_wrapper_nor_the_module_has_is_missing(ranks):
    for errors in ranks(ask_for_what_is_not_there):
        for error in errors:
            assert error is not None
            assert error.is_a(AttributeError), error
