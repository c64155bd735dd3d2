"""Where what the host makes and reads travels, beside data on an accelerator; and how shards of state are gathered."""

import gc
import weakref
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from impl.comm import collectives
from impl.comm.ranks import Team
from impl.ddp import reduction as transport
from impl.ddp.buckets import Bucket
from impl.ddp.mixed_precision import lower
from impl.ddp.reduction import Transport
from impl.join.channel import ControlChannel
from impl.join.message import MessageLayout
from impl.overlap.use import agree_on_use
from impl.tests.comm_hook_ranks import run_on_ranks
from impl.tests.loopback import build, forward
from impl.zero import checkpoint

pytestmark = pytest.mark.slow

CUDA = torch.device("cuda", 0)  # which this process has not: whatever is made there by mistake raises


@pytest.fixture
def gloo():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Team.of()
    dist.destroy_process_group()


@pytest.mark.parametrize(("config", "variable", "blocks", "control"), [
    ("cpu:gloo,cuda:gloo", "", True, "cpu"),
    ("cpu:gloo,cuda:nccl", "", False, "cpu"),
    ("cpu:gloo,cuda:nccl", "1", True, "cpu"),
    ("cuda:nccl", "", False, "cuda:0"),
    ("cuda:nccl", "0", False, "cuda:0"),
    ("cuda:nccl", "true", True, "cuda:0"),
    ("cuda:gloo", "", True, "cuda:0"),
    ("cpu:gloo", "1", False, "cpu"),
    ("cpu:gloo,xpu:xccl", "1", False, "cpu"),
])  # fmt: skip
def test_what_a_groups_backends_mean_for_the_host(gloo, monkeypatch, config, variable, blocks, control):
    monkeypatch.setattr(dist, "get_backend_config", lambda _: config)
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", variable)
    team = Team.of()
    assert team.blocks_host == blocks
    assert str(team.control_device(CUDA)) == control


def test_gloo_under_another_name_holds_up_the_host_as_well(gloo):
    def made(store, rank, size, timeout):
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    dist.Backend.register_backend("gloo_renamed", made, devices=["cpu", "cuda"])
    assert Team.of(dist.new_group([0], backend="gloo_renamed")).blocks_host


def test_a_group_that_torch_was_never_told_of_has_control_messages_where_the_data_are(gloo):
    class Own(dist.ProcessGroup):
        pass

    team = Team.of(Own(0, 1))
    assert team.control_device(CUDA) == CUDA
    assert not team.blocks_host


def test_the_messages_of_a_join_are_made_on_the_cpu_where_the_group_can_send_them_from_there(gloo):
    channel = ControlChannel(gloo, CUDA, MessageLayout(("a",), (("reduce",),), 1), tell=print)
    pending = channel.call_roll(0, None)
    assert pending.buffer.device.type == "cpu"
    assert channel.read(pending, lambda: None).active == 1


def test_objects_travel_from_the_cpu_as_well(gloo):
    assert collectives.all_gather_object(gloo, {"a": 1}, CUDA, "digests") == [{"a": 1}]
    assert collectives.broadcast_object(gloo, {"a": 1}, 0, CUDA, "settings") == {"a": 1}


def test_the_overlapped_step_asks_who_uses_a_bucket_without_the_device(gloo):
    bucket = SimpleNamespace(spec=SimpleNamespace(index=0, device=CUDA))
    ddp = SimpleNamespace(reducer=SimpleNamespace(use_of=lambda _: [True], team=gloo))
    asked = agree_on_use(ddp, [SimpleNamespace(bucket=bucket)])
    assert asked.of(0, None) == [1]


class Told:
    """An agreement under way on a device."""

    def __init__(self):
        self.asked = []

    def wait(self, _):
        self.asked.append("ordered")

    def read(self, _):
        self.asked.append("read on a stream of its own")
        return [1, 0]


@pytest.mark.parametrize(("used", "asked", "nobody"), [
    ([True, True], "ordered", []), ([True, False], "read on a stream of its own", [1]),
])  # fmt: skip
def test_who_uses_what_is_read_beside_the_queue_and_only_where_there_is_something_to_learn(
    monkeypatch, gloo, used, asked, nobody
):
    told = Told()
    monkeypatch.setattr(collectives, "all_reduce", lambda *_: told)
    transport = Transport(SimpleNamespace(team=gloo, watch=lambda: None))
    assert sorted(transport.agree_on_use(used, torch.device("cpu")).unused) == nobody
    assert told.asked == [asked]


# -- gathering shards of state


def state_of(rank):
    return {index: {"momentum": torch.full((rank + 1,), float(index))} for index in (rank, 10 - rank)}


def gathered(rank, world, how, to):
    team = Team.of()
    found = how(team, state_of(rank), to)
    return None if found is None else {index: state["momentum"].tolist() for index, state in found.items()}


def straight(team, mine, to):
    return checkpoint.gather_states(team, mine, to, CUDA)


def by_turns(team, mine, to):
    def sent(team, body, source, _, size):  # as by NCCL, which would build a communicator for each pair of ranks
        return checkpoint._sent_to_all(team, body, source, size, torch.device("cpu"))

    checkpoint._sent_on = sent
    return straight(team, mine, to)


@pytest.mark.parametrize("how", [straight, by_turns])
@pytest.mark.parametrize("to", [0, 2])
def test_shards_come_together_on_one_rank_from_the_cpu_or_on_the_groups_own_communicator(how, to):
    whole = {index: [float(index)] * (rank + 1) for rank in range(3) for index in (rank, 10 - rank)}
    found = run_on_ranks(gathered, 3, how, to)
    assert found[to] == whole
    assert [found[rank] for rank in range(3) if rank != to] == [None, None]


# -- launches


class Counting(TorchDispatchMode):
    """Counts the operators that are called."""

    def __init__(self):
        super().__init__()
        self.called = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.called[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_parameters_are_lowered_by_one_launch_and_not_by_one_each():
    parameters = [nn.Parameter(torch.tensor([1.0 + index, 1e-3])) for index in range(5)]
    kept = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    with Counting() as counting:
        lower([*parameters, kept], torch.bfloat16)
    assert counting.called["_foreach_copy_"] == 1
    assert counting.called["_to_copy"] == 0
    for index, parameter in enumerate(parameters):
        assert torch.equal(parameter.data, torch.tensor([1.0 + index, 1e-3]).to(torch.bfloat16))
    assert kept.dtype is torch.bfloat16


# -- memory


def test_old_buckets_are_freed_before_new_ones_are_made(monkeypatch):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    reducer, _ = build(model)
    forward(model, reducer).backward()
    before = [weakref.ref(bucket.flat) for bucket in reducer.buckets]
    alive = []

    def make(*args, **options):
        gc.collect()
        alive.append(sum(flat() is not None for flat in before))
        return Bucket(*args, **options)

    monkeypatch.setattr(transport, "Bucket", make)
    reducer.rebuild(reducer.proposed_order())
    assert alive == [0] * len(reducer.buckets)
