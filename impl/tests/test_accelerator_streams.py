"""How small messages meet an accelerator's queue. Stand-ins show what is asked of torch; they compute nothing there."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from impl.comm import collectives, streams
from impl.comm.futures import wait_for_future
from impl.comm.pending import Pending
from impl.comm.ranks import Team
from impl.comm.sharded import reduce_to
from impl.comm.tally import Block
from impl.errors import PeerFailed
from impl.overlap.bucket_reduction import InFlight
from impl.overlap.session import OverlapSession
from impl.overlap.use import BucketUse


class Pinned:
    """What ``torch.tensor`` gives; knows what was done with it."""

    def __init__(self, values, **how):
        self.values, self.how, self.moves = values, how, []

    def to(self, device, **how):
        self.moves.append((device, how))
        return self


def test_numbers_go_to_an_accelerator_without_waiting_for_its_queue(monkeypatch):
    monkeypatch.setattr(torch, "tensor", Pinned)
    device = torch.device("cuda", 0)
    sent = streams.tensor_on(device, [1, 0], torch.int32)
    assert sent.how == {"dtype": torch.int32, "device": "cpu", "pin_memory": True}
    assert sent.moves == [(device, {"non_blocking": True})]


def test_on_the_cpu_they_are_an_ordinary_tensor():
    assert streams.tensor_on(torch.device("cpu"), [1, 0], torch.int32).tolist() == [1, 0]


class Streams:
    """What ``torch.get_device_module`` gives: streams that note what is asked of them."""

    def __init__(self):
        self.told, self.running = [], "the current one"

    def Stream(self, device):
        return "the other one"

    def current_stream(self, device):
        return SimpleNamespace(wait_stream=lambda stream: self.told.append(f"{self.running} waits for {stream}"))

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.running = self.running, stream
        yield
        self.running = before

    def input_from(self, device_type, layout=torch.strided):
        def to(device, non_blocking=False):
            self.told.append(f"copied on {self.running}" + ", not awaited by the host" * non_blocking)
            return SimpleNamespace(record_stream=lambda stream: self.told.append("kept for the current one"))

        return SimpleNamespace(device=torch.device(device_type), layout=layout, to=to)


@pytest.fixture
def accelerator(monkeypatch):
    found = Streams()
    monkeypatch.setattr(torch, "get_device_module", lambda _: found)
    monkeypatch.setattr(streams, "_bringing", {})
    return found


def test_an_input_from_the_host_is_copied_on_a_side_stream_and_awaited_by_it(accelerator):
    streams.brought_to(torch.device("cuda", 0), accelerator.input_from("cpu"), side_stream=True)
    assert accelerator.told == [
        "copied on the other one", "the current one waits for the other one", "kept for the current one"
    ]  # fmt: skip


@pytest.mark.parametrize(("where", "side_stream"), [("cpu", False), ("cuda", True)])
def test_what_is_on_a_device_or_is_not_wanted_on_a_side_stream_is_copied_in_the_queue(accelerator, where, side_stream):
    streams.brought_to(torch.device("cuda", 0), accelerator.input_from(where), side_stream=side_stream)
    assert accelerator.told == ["copied on the current one"]


def test_a_sparse_input_is_copied_in_the_queue_since_its_memory_cannot_be_kept_for_a_stream(accelerator):
    given = accelerator.input_from("cpu", torch.sparse_coo)
    streams.brought_to(torch.device("cuda", 0), given, side_stream=True)
    assert accelerator.told == ["copied on the current one"]


class OnlyRead:
    """A collective whose result may be read by the host; a wait would make it wait for what was queued since, too."""

    def __init__(self, result):
        self.result, self.watches = result, []

    def read(self, watch):
        self.watches.append(watch)
        return self.result


def test_the_host_reads_who_uses_a_bucket_without_waiting_for_the_backward_behind_it():
    spec = SimpleNamespace(index=3)
    bucket = SimpleNamespace(kept_gradient={1: None, 2: "kept"}.get, spec=spec)
    use = OnlyRead([2, 2, 1, 0, 0])
    flight = InFlight(SimpleNamespace(bucket=bucket), None, BucketUse(use, {2: range(2), 3: range(2, 5)}))
    ddp = SimpleNamespace(reducer=SimpleNamespace(iteration=SimpleNamespace(session=None)))
    for _ in range(2):  # asked once, whatever is asked of it
        found = OverlapSession._untouched(object.__new__(OverlapSession), ddp, flight, "the watch")
        assert found == {1: None, 2: "kept"}
    assert use.watches == ["the watch"]


class Unending:
    """A collective that a failed peer has left; a wait for it would only end by the group's timeout."""

    def is_completed(self):
        return False

    def wait(self, _):
        raise AssertionError("the host is held up and looks out for nobody")


def failed_peer():
    raise PeerFailed("rank 1 left")


@pytest.fixture
def gloo():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Team.of()
    dist.destroy_process_group()


def test_where_a_wait_for_an_accelerators_tensor_holds_up_the_host_it_is_watched(gloo, monkeypatch):
    monkeypatch.setattr(streams, "is_accelerated", lambda _: True)
    assert gloo.blocks_host
    with pytest.raises(PeerFailed):
        Pending("count", torch.zeros(1), Unending(), gloo).wait(failed_peer)


class Queued(Unending):
    waits = 0

    def wait(self, _):
        self.waits += 1


def test_where_it_only_orders_the_stream_the_host_goes_on_at_once(gloo, monkeypatch):
    monkeypatch.setattr(streams, "is_accelerated", lambda _: True)
    monkeypatch.setattr(dist, "get_backend_config", lambda _: "cuda:nccl")
    work = Queued()
    Pending("count", torch.zeros(1), work, Team.of()).wait(failed_peer)
    assert work.waits == 1


def test_a_wait_for_a_hooks_future_is_watched_wherever_its_tensors_are(gloo, monkeypatch):
    monkeypatch.setattr(streams, "is_accelerated", lambda _: True)
    with pytest.raises(PeerFailed):
        wait_for_future(torch.futures.Future(), failed_peer, gloo, "the hook's future")


@pytest.mark.parametrize("start", [
    lambda team: collectives.all_reduce(team, torch.zeros(1), "count"),
    lambda team: collectives.broadcast(team, torch.zeros(1), 0, "buffers"),
    lambda team: collectives.all_gather(team, torch.zeros(1), torch.zeros(1), "shards"),
    lambda team: collectives.all_to_all(team, torch.zeros(1), torch.zeros(1), "lengths"),
    lambda team: reduce_to(team, torch.zeros(1), 0, "bucket 0"),
])  # fmt: skip
def test_a_backend_that_refuses_to_start_a_collective_says_which_rank_has_failed(gloo, monkeypatch, start):
    def refuse(*_, **__):
        raise dist.DistBackendError("remote process exited or there was a network error")

    monkeypatch.setattr(collectives, "_all_gather", refuse)
    monkeypatch.setattr(dist, "all_to_all_single", refuse)
    monkeypatch.setattr(dist, "reduce", refuse)
    group = SimpleNamespace(allreduce=refuse, broadcast=refuse)
    team = SimpleNamespace(
        group=group, rank=0, size=1, is_strict=False, is_in_python=False, tally=gloo.tally, guard=None,
        abandon=lambda: None,
    )
    with pytest.raises(dist.DistBackendError, match="remote process exited"):
        start(team)
    gloo.tally.blocks.append(Block(lambda _: failed_peer(), 1))
    with pytest.raises(PeerFailed, match="rank 1 left") as caught:
        start(team)
    assert isinstance(caught.value.__cause__, dist.DistBackendError)
