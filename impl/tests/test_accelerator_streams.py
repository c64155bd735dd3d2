"""How small messages meet an accelerator's queue. Stand-ins show what is asked of torch; they compute nothing there."""

from types import SimpleNamespace

import torch

from impl.comm import streams
from impl.overlap.reduction import InFlight
from impl.overlap.session import OverlapSession


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
    assert sent.how == {"dtype": torch.int32, "pin_memory": True}  # from other memory non_blocking has no effect
    assert sent.moves == [(device, {"non_blocking": True})]


def test_on_the_cpu_they_are_an_ordinary_tensor():
    assert streams.tensor_on(torch.device("cpu"), [1, 0], torch.int32).tolist() == [1, 0]


class OnlyRead:
    """A collective whose result may be read by the host; a wait would make it wait for what was queued since, too."""

    def __init__(self, result):
        self.result, self.watches = result, []

    def read(self, watch):
        self.watches.append(watch)
        return self.result


def test_the_host_reads_who_uses_a_bucket_without_waiting_for_the_backward_behind_it():
    bucket = SimpleNamespace(kept_gradient=lambda place: f"kept {place}")
    use = OnlyRead([[1, 0, 0], [0, 0, 1]])
    flight = InFlight(SimpleNamespace(bucket=bucket), None, use)
    ddp = SimpleNamespace(_join_session=None)
    found = OverlapSession._untouched(object.__new__(OverlapSession), ddp, flight, "the watch")
    assert found == {1: None, 2: "kept 2"}
    assert use.watches == ["the watch"]
