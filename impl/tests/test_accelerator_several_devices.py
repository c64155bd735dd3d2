"""Models on several devices, without any: threads stand for those on which autograd then runs."""

import dataclasses
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn

from impl import DistributedDataParallel
from impl.ddp import options
from impl.ddp.reducer import Reducer
from impl.ddp.several_devices import ReducerOfSeveralDevices


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def place_on_several(monkeypatch):
    """Take every module for one on several devices."""
    place = options.place
    monkeypatch.setattr(options, "place", lambda *args: dataclasses.replace(place(*args), several_devices=True))


def test_a_model_on_several_devices_gets_a_reducer_that_takes_turns(alone, monkeypatch):
    assert type(DistributedDataParallel(nn.Linear(2, 2)).reducer) is Reducer
    place_on_several(monkeypatch)
    model = DistributedDataParallel(nn.Linear(2, 2))
    assert type(model.reducer) is ReducerOfSeveralDevices
    for _ in range(3):
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        assert model.module.weight.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize("call", ["begin", "arrived", "should_be_full", "_backward_ended", "_unannounced_ended"])
def test_two_threads_are_never_inside_at_the_same_time(call, alone, monkeypatch):
    met = threading.Barrier(2)
    outcomes = []

    def inside(self, *_):
        try:
            met.wait(0.2)
            outcomes.append("met")
        except threading.BrokenBarrierError:
            outcomes.append("alone")

    monkeypatch.setattr(Reducer, call, inside)
    place_on_several(monkeypatch)
    reducer = DistributedDataParallel(nn.Linear(2, 2)).reducer
    arguments = () if call.startswith("_") else (0,)
    threads = [threading.Thread(target=getattr(reducer, call), args=arguments) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert outcomes == ["alone", "alone"]
