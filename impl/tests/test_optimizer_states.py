"""What goes over from one optimizer to the one in its place."""

import copy

import torch

from impl.comm.optimizer_states import counters_of, keep_hooks, take_over


class Lazy(torch.optim.Optimizer):
    """Makes its generator in its first step, and has a hook of its own that removes itself once it is told to."""

    def __init__(self, params):
        super().__init__(params, {})
        self.said: list[str] = []
        self.once = self.register_step_pre_hook(self.speak)

    def speak(self, optim, args, kwargs):
        self.said.append("its own")

    def step(self, closure=None):
        if not hasattr(self, "drawing"):
            self.drawing = torch.Generator().manual_seed(3)


def made():
    return Lazy([torch.nn.Parameter(torch.ones(1))])


def test_a_generator_that_is_made_later_is_handed_over():
    first, second = made(), made()
    first.step()
    torch.rand(2, generator=first.drawing)
    take_over(copy.deepcopy(counters_of(first)), second)
    assert torch.equal(torch.rand(3, generator=second.drawing), torch.rand(3, generator=first.drawing))


def replaced(former, own):
    new = made()
    new.said = former.said
    return new, keep_hooks(former, new, own)


def test_hooks_stay_in_their_order_and_their_handles_remove_them():
    first = made()
    own = keep_hooks(None, first, frozenset())
    handle = first.register_step_pre_hook(lambda *_: first.said.append("the program's"))
    second, own = replaced(first, own)
    third, own = replaced(second, own)
    third.step()
    assert first.said == ["its own", "the program's"]
    third.once.remove()
    third.step()
    assert first.said == ["its own", "the program's", "the program's"]
    handle.remove()
    third.step()
    assert len(first.said) == 3
