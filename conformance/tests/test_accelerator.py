"""The parts of `make gpu` that live here, with stand-ins for streams and for a machine with one GPU."""

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from conformance.__main__ import main
from conformance.accelerator import delays, streams
from conformance.accelerator.findings import BROKEN, HELD, Finding, FindingsFile, held
from conformance.commands import gpu
from conformance.ranks import NotRunnable, backends
from conformance.ranks.recording import RecordingGroup

pytestmark = pytest.mark.slow

CUDA = torch.device("cuda", 0)


# -- who may share a GPU


@pytest.fixture
def one_gpu(monkeypatch):
    monkeypatch.setattr(backends, "_devices", lambda kind: {"cpu": 1000, "cuda": 1}.get(kind, 0))
    monkeypatch.setattr(dist, "is_backend_available", lambda _: True)


@pytest.mark.parametrize("way", ["hostid", "multirank"])
def test_ranks_of_nccl_share_a_gpu_where_the_backends_name_says_how(way, one_gpu):
    backends.ensure_runnable(f"nccl+{way}", 4)
    assert [str(backends.device_of(f"nccl+{way}", rank)) for rank in range(2)] == ["cuda:0"] * 2
    assert backends.load(f"nccl+{way}") == "nccl"


def test_with_a_host_id_each_rank_is_a_host_of_its_own_and_talks_over_the_loopback_device():
    first, second = (backends.surroundings_of("nccl+hostid", rank) for rank in range(2))
    assert first["NCCL_HOSTID"] != second["NCCL_HOSTID"]
    assert first["NCCL_SOCKET_IFNAME"] == "lo"
    assert first["NCCL_P2P_DISABLE"] == first["NCCL_SHM_DISABLE"] == "1"
    assert backends.surroundings_of("nccl", 0) == backends.surroundings_of("gloo+cuda", 0) == {}


def test_gloo_has_no_such_way(one_gpu):
    with pytest.raises(NotRunnable, match="not on 'hostid'"):
        backends.ensure_runnable("gloo+hostid", 2)


# -- one side late


class Log(list):
    """What was asked of the streams, in order."""

    def stream(self, name):
        return SimpleNamespace(wait_stream=lambda other: self.append(f"{name} waits for {other.name}"), name=name)


@pytest.fixture
def log(monkeypatch):
    asked = Log()
    current = [asked.stream("compute")]

    @contextmanager
    def stream(one):
        current.append(one)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current[-1])
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: asked.stream("side"))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _: asked.append(f"{current[-1].name} sleeps"))
    monkeypatch.setattr(
        RecordingGroup, "allreduce", lambda group, *_: asked.append(f"all-reduce from {current[-1].name}")
    )
    return asked


def test_a_late_collective_waits_behind_a_sleep_that_holds_up_nobody_else(log):
    before = RecordingGroup.allreduce
    with delays.late_collectives(CUDA):
        RecordingGroup.allreduce(None, [], SimpleNamespace(asyncOp=True))
    assert log == ["side waits for compute", "side sleeps", "all-reduce from side"]
    assert RecordingGroup.allreduce is before


def test_a_collective_that_its_caller_waits_for_is_left_alone(log):
    with delays.late_collectives(CUDA):
        RecordingGroup.allreduce(None, [], SimpleNamespace(asyncOp=False))
    assert log == ["all-reduce from compute"]


def test_a_late_gradient_sleeps_where_it_is_computed_and_stays_what_it_is(log):
    weight = torch.ones(1, requires_grad=True)
    delays.late_gradients([weight], CUDA)
    (3 * weight).backward()
    assert log == ["compute sleeps"]
    assert weight.grad.item() == 3


def kernel(name, stream):
    return {"cat": "kernel", "name": name, "args": {"stream": stream}}


def call(name):
    return {"cat": "cuda_runtime", "name": name}


def test_what_the_profiler_saw_is_counted_by_iteration_without_its_own_waits():
    kernels = [kernel("ncclDevKernel_AllReduce", 20), kernel("gemm", 7), kernel("add", 7)]
    calls = [call("cudaLaunchKernel")] * 6 + [call("cudaStreamSynchronize")] * 5
    seen = streams.seen_in([*kernels, *calls], [call("cudaDeviceSynchronize")] * 2)
    assert seen == {"launches": 2.0, "synchronisations": 1.0, "sending": 1.0, "shared": 0.0}
    assert streams.seen_in([*kernels, kernel("ncclDevKernel_Broadcast", 7)], [])["shared"] == 1.0


# -- findings


def fails():
    raise ValueError("oops\nmore")


def test_a_part_that_was_stopped_goes_on_with_what_it_has_not_found_yet(tmp_path):
    path = tmp_path / "findings.json"
    FindingsFile(path).once("a", lambda: held("a", True, ""))
    again = FindingsFile(path)
    again.once("a", fails)
    again.once("b", fails)
    again.once("c", lambda: [Finding("d", HELD)])
    assert [(one.what, one.state, one.why) for one in again.all] == [
        ("a", HELD, ""), ("b", BROKEN, "ValueError: oops"), ("c", HELD, ""), ("d", HELD, ""),
    ]  # fmt: skip
    assert [one["what"] for one in json.loads(path.read_text())] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("words", "says"), [
    (["streams", "--backend", "gloo"], "say where the findings go"),
    (["streams", "--backend", "gloo", "--only", "oops", "--out", "{}/f.json"], "there is no case 'oops'; there are"),
])  # fmt: skip
def test_bad_input_is_one_sentence(words, says, tmp_path, capsys):
    assert main(["gpu", *[word.format(tmp_path) for word in words]]) == 2
    assert says in capsys.readouterr().err


def test_every_case_of_streams_can_be_named_alone_and_beside_others():
    assert [gpu._cases(case.name) for case in streams.CASES] == [[case] for case in streams.CASES]
    assert gpu._cases(",".join(case.name for case in streams.CASES)) == list(streams.CASES)
