"""Building a DDP model: what must be there, what is taken for granted, and which arguments are refused."""

import copy
import inspect

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from conformance.api import oracle
from conformance.api.checking import MANY, WORLDS, NotRun, check
from conformance.fixtures import models
from conformance.fixtures.observing import TINY_MIB, assert_refused, lowered, mean_of_all, mine, takes, trained, wrapped
from conformance.fixtures.training import ddp, logging_data, numbers, parameters, private
from conformance.ranks import caught

MIB = 1024 * 1024

# -- the process group: DDP-001, DDP-003, DDP-012, DDP-013


def build_without_a_group(ctx):
    return caught(ddp, ctx, models.scalar())


@check("DDP-001", worlds=(1,))
def test_without_a_process_group_there_is_no_ddp(ranks):
    error = ranks(build_without_a_group, init=False)[0]
    assert error is not None
    assert error.is_a(ValueError) or error.is_a(RuntimeError), error


def average_with_and_without_a_group(ctx):
    halves = [list(range(ctx.world // 2)), list(range(ctx.world // 2, ctx.world))]
    group = [dist.new_group(half) for half in halves if half][-1]  # a group exists, but it is not the default one
    model = wrapped(ctx, models.scalar())
    whole = model.process_group is ctx.group, trained(model, mine(ctx))["weight"]
    if ctx.rank not in halves[1]:
        return whole, None
    model = wrapped(ctx, models.scalar(), process_group=group)
    return whole, (model.process_group is group, trained(model, mine(ctx))["weight"])


@check("DDP-003", worlds=WORLDS)
def test_gradients_are_averaged_over_the_world_unless_a_group_is_given(ranks):
    upper = range(ranks.world // 2, ranks.world)
    in_group = sum(12.0 * (rank + 1) for rank in upper) / len(upper)
    for rank, (whole, part) in enumerate(ranks(average_with_and_without_a_group)):
        assert whole == (True, [mean_of_all(ranks.world)]), f"rank {rank}"
        assert part == ((True, [in_group]) if rank in upper else None), f"rank {rank}"


def give_group_and_mesh(ctx):
    mesh = init_device_mesh(ctx.device.type, (ctx.world,))
    return caught(ddp, ctx, models.scalar().to(ctx.device), process_group=ctx.group, device_mesh=mesh)


@check("DDP-012", worlds=(1, 2))
def test_a_group_and_a_mesh_are_too_much(ranks):
    assert_refused(ranks(give_group_and_mesh), RuntimeError)


def build_on_meshes(ctx, rows):
    mesh = init_device_mesh(ctx.device.type, (rows, ctx.world // rows), mesh_dim_names=("down", "across"))
    flat = init_device_mesh(ctx.device.type, (ctx.world,))
    told = []
    for each in (flat, mesh["down"]):
        model = wrapped(ctx, models.scalar(), device_mesh=each)
        told.append((model.process_group.size(), trained(model, mine(ctx))["weight"]))
    return told, caught(ddp, ctx, models.scalar().to(ctx.device), device_mesh=mesh)


@check("DDP-013", worlds=MANY, beyond=False)
def test_a_mesh_has_one_dimension_and_its_group_is_the_one_averaged_over(ranks):
    rows = 2 if ranks.world == 4 else 1
    told = ranks(build_on_meshes, rows)
    for rank, ((flat, down), _) in enumerate(told):
        column = range(rank % (ranks.world // rows), ranks.world, ranks.world // rows)
        assert flat == (ranks.world, [mean_of_all(ranks.world)]), f"rank {rank}"
        assert down == (rows, [sum(12.0 * (member + 1) for member in column) / rows]), f"rank {rank}"
    assert_refused([error for _, error in told], RuntimeError)


# -- defaults: DDP-002, DDP-004, DDP-005


NONE = (
    "device_ids", "output_device", "process_group", "bucket_cap_mb", "delay_all_reduce_named_params",
    "param_to_hook_all_reduce", "mixed_precision", "device_mesh",
)  # fmt: skip
OFF = ("find_unused_parameters", "check_reduction", "gradient_as_bucket_view", "static_graph")


def read_defaults(ctx):
    takes(ctx, *NONE, *OFF, "dim", "broadcast_buffers")
    arguments = inspect.signature(ctx.subject.DistributedDataParallel).parameters
    model = wrapped(ctx, models.Counting(1.0))
    log = logging_data(model)
    held = {name: getattr(model, name) for name in ("dim", "device_ids", "output_device", "static_graph")}
    switches = {name: log[name] for name in ("broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view")}
    return {name: argument.default for name, argument in arguments.items()}, held, switches


@check("DDP-002", worlds=(1,))
def test_the_constructor_defaults_are_the_documented_ones(ranks):
    defaults, held, switches = ranks(read_defaults)[0]
    assert {name: defaults[name] for name in NONE} == dict.fromkeys(NONE)
    assert {name: defaults[name] for name in OFF} == dict.fromkeys(OFF, False)
    assert defaults["dim"] == 0
    assert defaults["broadcast_buffers"] in (True, None)  # None: not given, which newer releases tell apart
    assert held == {"dim": 0, "device_ids": None, "output_device": None, "static_graph": False}
    assert {name: bool(value) for name, value in switches.items()} == {
        "broadcast_buffers": True, "find_unused_parameters": False, "gradient_as_bucket_view": False
    }  # fmt: skip


def give_other_kinds(ctx):
    """By argument, what is raised for a value that is of no use there."""
    assert ctx.subject.regroup, "others may notice such values late, or never"
    dtypes = {name: lowered(ctx, {name: value}) for name, value in LOWERED.items()}
    given = [("device_mesh", "dp"), ("mixed_precision", "bfloat16"), ("param_to_hook_all_reduce", "weight")]
    given += [("mixed_precision", each) for each in dtypes.values()]
    told = [caught(lambda name=name, value=value: ddp(ctx, models.scalar(), **{name: value})) for name, value in given]
    return dict(zip((*(name for name, _ in given[:3]), *dtypes), told, strict=True))


LOWERED = {"param_dtype": torch.int8, "reduce_dtype": "half", "buffer_dtype": torch.int64}


@check("DDP-002", worlds=(1,))
def test_a_value_that_an_argument_cannot_take_is_refused_by_the_arguments_name(ranks):
    for name, error in ranks(give_other_kinds)[0].items():
        assert_refused([error], TypeError, name)


class Blocks(nn.Module):
    """Parameters of exactly one MiB, all of them in the output."""

    def __init__(self, count=6):
        super().__init__()
        self.blocks = nn.ParameterList([nn.Parameter(torch.zeros(MIB // 4)) for _ in range(count)])

    def forward(self, x):
        return torch.stack([x * block[:1] for block in self.blocks])


def watch_buckets(ctx, cap, count=6):
    options = {} if cap is None else {"bucket_cap_mb": cap}
    model = wrapped(ctx, Blocks(count), **options)
    seen = []

    def note(_state, bucket):
        seen.append(bucket.buffer().numel() * bucket.buffer().element_size() / MIB)
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, note)
    for _ in range(2):
        seen.clear()
        trained(model, mine(ctx))
    return seen


@check("DDP-004", worlds=(1, 2))
def test_buckets_hold_25_mib_and_the_first_one_mib_unless_a_size_is_given(ranks):
    assert ranks(watch_buckets, None) == [[1.0, 5.0]] * ranks.world
    assert ranks(watch_buckets, 2) == [[2.0, 2.0, 2.0]] * ranks.world
    # one MiB is more than 1.02 million bytes, and less than 1.02 MiB
    assert ranks(watch_buckets, 1.02) == [[2.0, 2.0, 2.0]] * ranks.world


@check("DDP-004", worlds=(1,))
def test_all_buckets_but_the_first_hold_25_mib(ranks):
    assert ranks(watch_buckets, None, 30) == [[1.0, 25.0, 4.0]]


def read_chunk(ctx):
    return private(wrapped(ctx, models.scalar()), "broadcast_bucket_size")


@check("DDP-005", worlds=(1,))
def test_model_state_is_broadcast_in_chunks_of_250_mib(ranks):
    assert ranks(read_chunk) == [250 * MIB]


# -- the model: DDP-006, DDP-010, DDP-011, DDP-017, DDP-018


def wrap_untrainable(ctx):
    given = [nn.ReLU(), models.chain().requires_grad_(False)]
    ignore = getattr(ctx.subject.DistributedDataParallel, "_set_params_and_buffers_to_ignore_for_model", None)
    if ignore is not None:
        given.append(models.chain(1))
        ignore(given[-1], ["0.weight", "0.bias"])
    return [caught(wrapped, ctx, model) for model in given]


@check("DDP-006", worlds=(1, 2))
def test_a_model_without_trainable_parameters_is_refused(ranks):
    for errors in ranks(wrap_untrainable):
        assert_refused(errors, RuntimeError)


def wrap_two_device_types(ctx):
    model = models.chain(2).to(ctx.device)
    model[1].to("meta")
    return caught(ddp, ctx, model)


@check("DDP-010", worlds=(1, 2))
def test_parameters_on_two_types_of_devices_are_refused(ranks):
    assert_refused(ranks(wrap_two_device_types), ValueError)


def wrap_lazily(ctx):
    model = nn.Sequential(nn.LazyLinear(1, bias=False)).to(ctx.device)
    error = caught(ddp, ctx, model)
    model(mine(ctx))
    return error, trained(ddp(ctx, model), mine(ctx))["0.weight"]


@check("DDP-011", worlds=(1, 2))
def test_lazy_parameters_must_first_be_initialised_by_a_forward(ranks):
    told = ranks(wrap_lazily)
    assert_refused([error for error, _ in told], RuntimeError)
    assert [gradient for _, gradient in told] == [[mean_of_all(ranks.world)]] * ranks.world


def wrap_synchronised_batch_norm(ctx):
    if ctx.device.type != "cpu":
        raise NotRun("SyncBatchNorm is refused for CPU modules only, and these ranks train on an accelerator")
    deep = nn.Sequential(models.scalar(), nn.Sequential(nn.Sequential(nn.SyncBatchNorm(1))))
    return caught(ddp, ctx, deep), caught(ddp, ctx, nn.SyncBatchNorm(1))


@check("DDP-017", worlds=(1, 2))
def test_synchronised_batch_norm_is_refused_on_the_cpu(ranks):
    for errors in ranks(wrap_synchronised_batch_norm):
        assert_refused(errors, ValueError)


def train_through_the_original(ctx, steps):
    model = models.Sum().to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # made from the module before it is wrapped
    before = list(model.parameters())
    outer = ddp(ctx, model, bucket_cap_mb=TINY_MIB)
    same = outer.module is model and all(a is b for a, b in zip(before, outer.parameters(), strict=True))
    for iteration in range(steps):
        trained(outer, models.divisible(ctx.rank, iteration).to(ctx.device))
        optimizer.step()
    return same, parameters(model)


@check("DDP-018", worlds=WORLDS, beyond=False)
def test_the_original_module_is_kept_and_trained(ranks):
    alone = models.Sum()
    optimizer = torch.optim.SGD(alone.parameters(), lr=1.0)
    *_, last = oracle.train_alone(alone, optimizer, [3] * ranks.world, models.divisible)
    expected = numbers(last.items())
    for same, found in ranks(train_through_the_original, 3):
        assert same, "module or parameters are other objects than those that were wrapped"
        assert found == expected


# -- devices: DDP-007, DDP-008, DDP-009


def give_devices(ctx):
    on_cpu = models.scalar().to("cpu")  # also where ranks have accelerators
    refused = [caught(ddp, ctx, on_cpu, **devices) for devices in ({"device_ids": [0]}, {"output_device": 1})]
    empty = wrapped(ctx, models.scalar(), device_ids=[])
    kept = getattr(empty, "device_ids", None)  # an attribute that nobody promises
    return refused, kept, trained(empty, mine(ctx))["weight"]


def give_two_devices(ctx):
    return caught(ddp, ctx, models.scalar(), device_ids=[0, 1])


@check("DDP-007", worlds=(1, 2))
def test_two_device_ids_are_refused(ranks):
    assert_refused(ranks(give_two_devices), ValueError)


@check("DDP-008", worlds=(1, 2))
def test_devices_are_refused_for_a_module_on_the_cpu_but_an_empty_list_is_none(ranks):
    for refused, kept, found in ranks(give_devices):
        assert_refused(refused, ValueError)
        assert kept is None, f"an empty list of devices is kept as {kept}"
        assert found == [mean_of_all(ranks.world)]


def give_output_device_zero(ctx):
    if ctx.device.type != "cpu":
        raise NotRun("an output device is right for a module on an accelerator; this is about the CPU")
    error = caught(ddp, ctx, models.scalar(), output_device=0)
    if error is not None:
        return error, None, None
    model = ddp(ctx, models.scalar(), output_device=0)
    return None, getattr(model, "output_device", None), trained(model, mine(ctx))["weight"]


@check("DDP-009", worlds=(1, 2))
def test_output_device_zero_is_refused_on_the_cpu_or_does_nothing(ranks):
    for error, device, gradient in ranks(give_output_device_zero):
        if error is not None:
            assert_refused([error], ValueError)
        else:
            assert (device, gradient) == (None, [mean_of_all(ranks.world)])
            ranks.at_limit("output_device=0 is accepted for a module on the CPU, and ignored")


# -- the delay arguments: DDP-014


def give_half_a_pair(ctx):
    model = models.Branches().to(ctx.device)
    halves = ({"delay_all_reduce_named_params": [("b.weight", model.b.weight)]}, {"delay_all_reduce_named_params": []},
              {"param_to_hook_all_reduce": model.a.weight})  # fmt: skip
    return [caught(ddp, ctx, model, **half) for half in halves]


@check("DDP-014", worlds=(1, 2))
def test_the_delay_arguments_come_as_a_pair(ranks):
    for errors in ranks(give_half_a_pair):
        assert_refused(errors, ValueError)


# -- DDP-013: a mesh that has another dimension, over which layers are sharded


def train_sharded_layers(ctx):
    """Two layers, each sharded over one dimension of a mesh and averaged over the other; what comes out, by step."""
    mesh = init_device_mesh(ctx.device.type, (2, ctx.world // 2), mesh_dim_names=("down", "across"))
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1)).to(ctx.device)
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.copy_(models.integers(*parameter.shape, seed=place))
    alone = copy.deepcopy(model)
    parallelize_module(model, mesh["across"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    sharded = ddp(ctx, model, device_mesh=mesh["down"])
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.0625) for each in (sharded, alone)]
    told = []
    for _ in range(3):
        rows = [torch.full((1, 2), 1.0 + row, device=ctx.device) for row in range(2)]
        for optimizer in optimizers:
            optimizer.zero_grad()
        told.append((sharded(rows[mesh["down"].get_local_rank()]).item(), alone(rows[ctx.rank // 2]).item()))
        sharded(rows[mesh["down"].get_local_rank()]).sum().backward()
        (sum(alone(row).sum() for row in rows) / 2).backward()
        for optimizer in optimizers:
            optimizer.step()
    return told


@check("DDP-013", worlds=(4,), beyond=False, deadline_s=20)
def test_layers_that_are_sharded_over_the_other_dimension_of_a_mesh_train_as_one_process(ranks):
    for rank, told in enumerate(ranks(train_sharded_layers)):
        assert [ours for ours, _ in told] == [alone for _, alone in told], f"rank {rank}"
        assert len({alone for _, alone in told}) == 3
