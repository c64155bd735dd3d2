"""What is measured on a GPU, with stand-ins for one: which clocks run, and what is counted."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch

from perf.measure import traffic
from perf.measure.clock import Clock
from perf.measure.trace import _marks

pytestmark = pytest.mark.slow


class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        pass


BURNT_NS = 20_000_000


def burn():
    end = time.thread_time_ns() + BURNT_NS
    while time.thread_time_ns() < end:
        pass


def test_processor_time_beside_a_gpu_is_that_of_all_threads_for_backward_runs_on_another_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock = Clock(torch.device("cuda"))
    clock.mark()
    engine = threading.Thread(target=burn)
    engine.start()
    engine.join()
    clock.mark()
    assert clock.spans(clock.cpu, 0, 1, 2)[0] >= BURNT_NS


def test_a_traced_iteration_begins_when_the_gpu_has_come_to_rest(monkeypatch):
    rests = []
    clock = _marks(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: rests.append(len(clock.wall)))
    for _ in range(8):  # two iterations
        clock.mark()
    assert rests == [0, 4]
    assert clock.events == []
    on_cpu = _marks(torch.device("cpu"))
    on_cpu.mark()
    assert len(rests) == 2


class Profile:
    """A profiler that waits for the device at its own start and end, as torch's does."""

    def __init__(self, calls, **_):
        self.calls = calls

    def __enter__(self):
        self.calls.clear()
        return self

    def __exit__(self, *_):
        pass

    def key_averages(self):
        counts = {"cudaDeviceSynchronize": 2} | {name: self.calls.count(name) for name in set(self.calls)}
        return [SimpleNamespace(key=name, count=count) for name, count in counts.items()]


def test_the_profilers_own_waits_are_not_counted_as_an_iterations(monkeypatch):
    calls = []
    monkeypatch.setattr("torch.profiler.profile", lambda **options: Profile(calls, **options))
    trainer = SimpleNamespace(iterate=lambda *_: calls.extend(["cudaLaunchKernel"] * 3 + ["cudaStreamSynchronize"]))
    assert traffic._on_device(trainer, None, None) == {"launches": 3, "synchronisations": 1}
