"""Pickling and checkpoints: what travels, what is built anew, and what a restored model does."""

import copy
import io
import pickle

import torch
import torch.distributed as dist
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from conformance.api import oracle
from conformance.api.checking import MANY, WORLDS, check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import done
from conformance.fixtures.observing import (
    TINY_MIB,
    assert_refused,
    mean_of_all,
    mine,
    mixed,
    or_lacks_accelerator,
    takes,
    trained,
    wrapped,
)
from conformance.fixtures.training import logging_data, numbers, parameters, private
from conformance.ranks import caught
from conformance.ranks.backends import load


def through_a_file(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def through_bytes(model):
    return pickle.loads(pickle.dumps(model))


def brought_back(model, way=through_bytes):
    copies = []
    error = caught(lambda: copies.append(way(model)))
    assert error is None, f"cannot be pickled and restored: {error}"
    return copies[0]


WAYS = {"saved and loaded": through_a_file, "pickled": through_bytes, "deep copy": copy.deepcopy}


def sums_of(world, count):
    found = []
    for iteration in range(count):
        batches = [models.divisible(rank, iteration) for rank in range(world)]
        found.append(numbers(oracle.averaged_gradients(models.Sum(), batches, world).items()))
    return found


def steps(ctx, model, iterations):
    return [trained(model, models.divisible(ctx.rank, iteration).to(ctx.device)) for iteration in iterations]


# -- DDP-155: what is left out


def look_at_state(ctx):
    ctx.subject.require("pickling")
    model = wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB)
    before = steps(ctx, model, range(2))
    state = model.__getstate__()
    alive = [getattr(model, name) is not None for name in ("process_group", "reducer", "logger")]
    return sorted({"process_group", "reducer", "logger"} & set(state)), alive, before + steps(ctx, model, [2])


@check("DDP-155", worlds=(1, 2, 3))
def test_handles_of_the_process_are_left_out_and_the_live_object_goes_on(ranks):
    assert ranks(look_at_state) == [([], [True] * 3, sums_of(ranks.world, 3))] * ranks.world


# -- DDP-156, DDP-157: only on the default group


def pickle_on_another_group(ctx):
    ctx.subject.require("pickling")
    model = wrapped(ctx, models.scalar(), process_group=dist.new_group(list(range(ctx.world))))
    errors = [caught(way, model) for way in WAYS.values()]
    return errors, trained(model, mine(ctx))


@check("DDP-156", worlds=(1, 2, 3))
def test_a_model_on_another_group_cannot_be_pickled(ranks):
    for errors, found in ranks(pickle_on_another_group):
        assert_refused(errors, RuntimeError)
        assert found == {"weight": [mean_of_all(ranks.world)]}


OUTLIVING = []  # models whose group is gone: torch's may wait for ever for the interpreter when it is freed after it


def pickle_without_a_group(ctx):
    ctx.subject.require("pickling")
    model = wrapped(ctx, models.scalar())
    OUTLIVING.append(model)
    ctx.meet("built")
    dist.destroy_process_group()
    return caught(through_bytes, model)


@check("DDP-157", worlds=(1, 2))
def test_without_a_group_pickling_is_refused(ranks):
    for error in ranks(pickle_without_a_group):
        assert_refused([error], Exception)
        if not error.is_a(RuntimeError):
            assert error.is_a(ValueError), error
            ranks.at_limit("after its group is gone, pickling a model raises ValueError")


# -- DDP-158: a restored model


def restore_and_train(ctx, way):
    ctx.subject.require("pickling")
    options = {"bucket_cap_mb": TINY_MIB, "gradient_as_bucket_view": True, "find_unused_parameters": True}
    model = wrapped(ctx, models.Sum(), **options)
    steps(ctx, model, range(2))
    restored = brought_back(model, WAYS[way])
    logs = [logging_data(each) for each in (model, restored)]
    found = steps(ctx, restored, range(3))
    settings = [{name: log[name] for name in (*options, "bucket_cap_bytes") if name in log} for log in logs]
    return found, restored.process_group is ctx.group, settings, restored.module is model.module


@check("DDP-158", worlds=WORLDS, beyond=False, scenarios={way: way for way in WAYS})
def test_a_restored_model_averages_with_the_settings_it_had(ranks, scenario):
    for found, default, (before, after), same in ranks(restore_and_train, scenario):
        assert found == sums_of(ranks.world, 3)
        assert default, "it is not on the default group"
        assert before == after
        assert not same, "the restored model has the module of the one that it was made of"


def restore_buffers(ctx):
    ctx.subject.require("pickling")
    model = brought_back(wrapped(ctx, models.Counting(1.0 + 10 * ctx.rank)))
    for _ in range(3):
        trained(model, mine(ctx))
    with model.no_sync():
        local = trained(model, mine(ctx))
    later = brought_back(model)
    flags = [getattr(each, "require_forward_param_sync", None) for each in (later, model)]
    for _ in range(2):
        trained(later, mine(ctx))
    return model.module.seen[:3], local, flags[0] == flags[1], later.module.seen[-2:]


@check("DDP-158", worlds=MANY)
def test_a_restored_model_synchronises_buffers_and_knows_no_sync(ranks):
    for rank, (seen, local, same, after) in enumerate(ranks(restore_buffers)):
        assert seen == [0.0, 1.0, 2.0], f"rank {rank}"
        assert local == {"a.weight": [12.0 * (rank + 1)]}
        own = 3.0 + 1.0 + 10 * rank  # the forward after a local one may begin with this rank's own buffers (DDP-078)
        assert same, f"rank {rank}: whether the next forward synchronises is not as it was"
        assert after in ([own, 5.0], [4.0, 5.0]), f"rank {rank}: restored behind a local forward"


def restore_delayed(ctx, way):
    ctx.subject.require("pickling")
    takes(ctx, "delay_all_reduce_named_params")
    model = torch.nn.Sequential(models.scalar(), models.scalar()).to(ctx.device)
    delayed = {"delay_all_reduce_named_params": [("1.weight", model[1].weight)]}
    restored = brought_back(wrapped(ctx, model, param_to_hook_all_reduce=model[0].weight, **delayed), WAYS[way])
    return [trained(restored, mine(ctx, times)) for times in (1, 2)]


@check("DDP-158", worlds=MANY, beyond=False, scenarios={way: way for way in WAYS})
def test_a_restored_model_still_averages_its_delayed_parameters(ranks, scenario):
    averages = [mean_of_all(ranks.world, times) for times in (1, 2)]
    expected = [{"0.weight": [average], "1.weight": [average]} for average in averages]
    assert ranks(restore_delayed, scenario) == [expected] * ranks.world


def pickle_with_a_foreign_trigger(ctx):
    """A model whose delayed parameters wait for one that is not its own: copies of it, or what pickling raises; then
    gradients of the model itself."""
    ctx.subject.require("pickling")
    takes(ctx, "delay_all_reduce_named_params")
    module, foreign = torch.nn.Sequential(models.scalar(), models.scalar()).to(ctx.device), models.scalar().weight
    delayed = [("1.weight", module[1].weight)]
    model = wrapped(ctx, module, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=foreign)
    copies = []
    error = caught(lambda: copies.append(through_bytes(model)))
    return error, [trained(each, mine(ctx)) for each in (model, *copies)]


@check("DDP-155", worlds=MANY, beyond=False)
def test_a_model_whose_delayed_parameters_wait_for_a_foreign_one_is_pickled_or_refused(ranks):
    for error, (itself, *copies) in ranks(pickle_with_a_foreign_trigger):
        assert itself["0.weight"] == [mean_of_all(ranks.world)]
        if error is not None:
            assert_refused([error], RuntimeError, "pickle")
        else:
            assert copies == [itself]


def restore_mixed(ctx, way):
    ctx.subject.require("pickling")
    def run():
        model = mixed(ctx, models.scalar(), {"param_dtype": torch.bfloat16})
        trained(model, mine(ctx))
        told = []
        error = caught(lambda: told.append(WAYS[way](model)))
        if error is not None:
            return error, None, None
        return None, told[0](mine(ctx)).dtype, trained(told[0], mine(ctx))

    return or_lacks_accelerator(ctx, run)


@check("DDP-158", worlds=(1, 2, 3), scenarios={way: way for way in WAYS})
def test_a_restored_model_runs_in_the_precision_it_had_or_cannot_be_pickled(ranks, scenario):
    for error, dtype, found in ranks(restore_mixed, scenario):
        if error is None:
            assert dtype is torch.bfloat16
            assert found == {"weight": [mean_of_all(ranks.world)]}


def restore_what_was_left_alone(ctx, way):
    """A model of which a parameter and a buffer are left alone, beside one whose buffers are never synchronised."""
    ctx.subject.require("pickling")
    told = []
    off, on = {"forward_sync_buffers": False}, {"forward_sync_buffers": True}
    takes(ctx, *off)
    for options, ignored, later in (({}, ["0.a.weight", "0.count"], {}), (off, [], {}), ({}, [], off), (off, [], on)):
        module = torch.nn.Sequential(models.Counting(1.0 + 10 * ctx.rank), models.Counting(1.0 + 10 * ctx.rank))
        leave = private(ctx.subject.DistributedDataParallel, "_set_params_and_buffers_to_ignore_for_model")
        leave(module, ignored)
        model = wrapped(ctx, module, **options)
        for name, value in later.items():
            setattr(model, name, value)
        restored = brought_back(model, WAYS[way])
        for counter in restored.module:
            counter.count.fill_(100.0 * ctx.rank)
        found = [trained(restored, mine(ctx, times)) for times in (1, 2)]
        told.append((found, [counter.seen for counter in restored.module]))
    return told


@check("DDP-158", "DDP-149", worlds=MANY, beyond=False)
def test_a_restored_model_leaves_alone_what_it_left_alone_before(ranks):
    told = [(rank, each) for way in ("pickled", "deep copy")
            for rank, each in enumerate(ranks(restore_what_was_left_alone, way))]  # fmt: skip
    for rank, (ignoring, *silent, loud) in told:
        found, (left, followed) = ignoring
        own, step = 100.0 * rank, 1.0 + 10 * rank
        for times, each in zip((1, 2), found, strict=True):
            assert each == {"0.a.weight": [12.0 * (rank + 1) * times], "1.a.weight": [mean_of_all(ranks.world, times)]}
        assert left == [own, own + step], f"rank {rank}: an ignored buffer was synchronised"
        assert followed == [0.0, 1.0], f"rank {rank}: a buffer was not synchronised"
        for _, seen in silent:  # by an argument, and later
            assert seen == [[own, own + step]] * 2, f"rank {rank}: synchronised though that was switched off"
        assert loud[1] == [[0.0, 1.0]] * 2, f"rank {rank}: not synchronised though that was switched on"


CHANGED = {"require_forward_param_sync": False, "require_backward_grad_sync": False, "broadcast_bucket_size": 4096}


def restore_what_was_changed(ctx):
    """What a program has set on the object itself, as each way brings it back."""
    ctx.subject.require("pickling")
    told = []
    for way in WAYS.values():
        model = wrapped(ctx, models.scalar())
        for name, value in CHANGED.items():
            private(model, name)
            setattr(model, name, value)
        restored = brought_back(model, way)
        told.append({name: getattr(restored, name) for name in CHANGED})
    return told


@check("DDP-158", worlds=(1,))
def test_what_was_set_on_the_object_is_set_on_the_restored_one(ranks):
    assert ranks(restore_what_was_changed) == [[CHANGED] * len(WAYS)]


# -- DDP-159: old pickles and static graphs


def restore_old_state(ctx):
    ctx.subject.require("pickling")
    model = wrapped(ctx, models.Sum(), static_graph=True)
    state = model.__getstate__()
    for flag in ("require_forward_param_sync", "require_backward_grad_sync"):
        state.pop(flag, None)
    restored = type(model).__new__(type(model))
    restored.__setstate__(state)
    flags = restored.require_forward_param_sync, restored.require_backward_grad_sync
    with model.no_sync():
        state = model.__getstate__()
    for _ in range(2):  # a state may be set on several
        accumulating = type(model).__new__(type(model))
        accumulating.__setstate__(state)
        flags += (accumulating.require_backward_grad_sync,)
    return flags, logging_data(restored).get("static_graph"), steps(ctx, restored, range(3))


@check("DDP-159", worlds=(1, 2, 3))
def test_a_state_without_flags_synchronises_and_a_static_graph_stays_one(ranks):
    assert ranks(restore_old_state) == [((True, True, False, False), 1, sums_of(ranks.world, 3))] * ranks.world


def restore_static(ctx, way):
    ctx.subject.require("pickling")
    model = wrapped(ctx, models.Sum(), static_graph=True)
    steps(ctx, model, range(3))
    return steps(ctx, brought_back(model, WAYS[way]), range(3))


@check("DDP-159", worlds=MANY, beyond=False, scenarios={way: way for way in WAYS})
def test_a_static_graph_that_has_trained_averages_after_it_was_restored(ranks, scenario):
    assert ranks(restore_static, scenario) == [sums_of(ranks.world, 3)] * ranks.world


# -- DDP-160: what is not restored


def nothing(_state, bucket):
    """A hook that leaves gradients local."""
    return done(bucket.buffer())


def restore_hooked(ctx):
    ctx.subject.require("pickling")
    model = wrapped(ctx, models.scalar())
    model.register_comm_hook(None, nothing)
    model.module.weight.data.fill_(1.0 + ctx.rank)
    restored = brought_back(model)
    return parameters(restored), trained(restored, mine(ctx)), trained(model, mine(ctx))


@check("DDP-160", worlds=MANY, beyond=False)
def test_a_restored_model_has_no_hook_or_the_same_and_keeps_its_weights(ranks):
    for rank, (held, found, before) in enumerate(ranks(restore_hooked)):
        local, average = {"weight": [12.0 * (rank + 1)]}, {"weight": [mean_of_all(ranks.world)]}
        assert before == local, "the original model has lost its hook"
        assert held in ({"weight": [1.0 + rank]}, {"weight": [1.0]}), f"rank {rank}"
        assert found in (average, local)
        if found == average != local:
            ranks.at_limit("a communication hook is dropped when a model is pickled")
        if held != {"weight": [1.0]}:
            ranks.at_limit("restored replicas may differ")


def scaling(state, bucket):
    """A hook that leaves gradients local, times what its state says."""
    return done(bucket.buffer().mul_(state["times"]))


def restore_on_a_later_group(ctx):
    """Models with a hook are restored where the default group is another one than theirs was; which then trains."""
    ctx.subject.require("pickling")
    states = {"a number": (scaling, {"times": 3}), "the group": (ctx.subject.default_hooks.allreduce_hook, ctx.group)}
    kept, told = {}, {}
    for name, (hook, state) in states.items():
        model = wrapped(ctx, models.scalar())
        OUTLIVING.append(model)
        model.register_comm_hook(state, hook)
        trained(model, mine(ctx))
        told[name] = caught(lambda name=name, model=model: kept.update({name: pickle.dumps(model)}))
    ctx.meet("pickled")
    dist.destroy_process_group()
    store = dist.PrefixStore("a later group", ctx.store)
    dist.init_process_group(load(ctx.backend), store=store, rank=ctx.rank, world_size=ctx.world)
    for name, text in kept.items():
        model = pickle.loads(text)
        told[name] = [trained(model, mine(ctx, times)) for times in (1, 2)], model.process_group is dist.group.WORLD
    return told


@check("DDP-160", "DDP-158", worlds=(2, 3), beyond=False, backends=("gloo",))
def test_a_model_restored_on_a_later_group_averages_there_whatever_its_hook_worked_on(ranks):
    average = [{"weight": [mean_of_all(ranks.world, times)]} for times in (1, 2)]
    for rank, told in enumerate(ranks(restore_on_a_later_group)):
        tripled = [{"weight": [3 * 12.0 * (rank + 1) * times]} for times in (1, 2)]
        assert isinstance(told["a number"], tuple), f"cannot be pickled and restored: {told['a number']}"
        found, default = told["a number"]
        assert default, "it is not on the default group"
        assert found in (average, tripled), f"rank {rank}: neither without its hook nor with the state that it had"
        if found == average:
            ranks.at_limit("a communication hook is dropped when a model is pickled")
        if isinstance(told["the group"], tuple):
            assert told["the group"] == (average, True), f"rank {rank}"
        else:
            ranks.at_limit("a model whose hook has a group as its state cannot be pickled")


# -- DDP-161: names in a checkpoint


def save_and_strip(ctx):
    model = wrapped(ctx, models.Counting(1.0))
    trained(model, mine(ctx))
    model.module.a.weight.data.fill_(7.0)
    state = model.state_dict()
    names = list(state), [name for name, _ in model.named_parameters()]
    plain = models.Counting(1.0)
    consume_prefix_in_state_dict_if_present(state, "module.")
    plain.load_state_dict(state)
    other = wrapped(ctx, models.Counting(1.0))
    other.load_state_dict(model.state_dict())
    values = [(each.a.weight.item(), each.count.item()) for each in (plain, other.module)]
    return names, list(state), values


@check("DDP-161", worlds=(1, 2))
def test_names_in_a_checkpoint_begin_with_module_and_fit_the_bare_model_without_it(ranks):
    for (stored, named), stripped, values in ranks(save_and_strip):
        assert sorted(stored) == ["module.a.weight", "module.count"]
        assert named == ["module.a.weight"]
        assert sorted(stripped) == ["a.weight", "count"]
        assert values == [(7.0, 1.0), (7.0, 1.0)]


# -- DDP-158, DDP-113: outputs without clones


class Copying(models.Branches):
    """A module that says how it is copied, as traced ones do; its wrapper is copied all the same."""

    def __deepcopy__(self, memo):
        twin = memo[id(self)] = Copying()
        twin.load_state_dict(self.state_dict())
        return twin


def restore_without_clones(ctx):
    """Of a restored model that hands out no clones: its gradient, and the error of a change in place."""
    ctx.subject.require("pickling")
    told = []
    for way in WAYS.values():
        model = wrapped(ctx, Copying(), find_unused_parameters=True)
        private(model, "_set_ddp_sink_clone")(False)
        restored = brought_back(model, way)
        found = trained(restored, mine(ctx))["a.weight"]
        out = restored(mine(ctx))
        told.append((found, caught(lambda out=out: out.mul_(2))))
    return told


@check("DDP-158", "DDP-113", worlds=(1, 2))
def test_a_restored_model_clones_its_outputs_or_not_as_before(ranks):
    for told in ranks(restore_without_clones):
        assert [found for found, _ in told] == [[mean_of_all(ranks.world)]] * len(WAYS)
        assert_refused([error for _, error in told], RuntimeError, "view", "inplace")
