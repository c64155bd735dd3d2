"""Arrivals noted in lists, after the buckets follow their order, and the ways back to counting each of them."""

import gc
import weakref

import pytest
import torch
from torch import nn

from impl.comm import streams
from impl.ddp.pending_backward import PendingBackward
from impl.ddp.readiness import Arrivals
from impl.ddp.reducer import Phase
from impl.tests.loopback import build, forward


class Steps(nn.Module):
    """Three parameters, used in the order that ``order`` says when ``forward`` runs."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.full((2,), 2.0)) for _ in range(3))
        self.order = "abc"

    def forward(self, x):
        for name in self.order:
            x = x * getattr(self, name)
        return x


ONE_EACH, ALL_IN_ONE = 1, 10**6  # bytes: how large a bucket grows


@pytest.fixture(params=[ONE_EACH, ALL_IN_ONE], ids=["buckets", "one bucket"])
def cap(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["copies", "views"])
def settled(request, cap):
    """A model and its reducer as they are once the buckets follow the order of arrival."""
    model = Steps()
    reducer, transport = build(model, as_view=request.param, cap=cap)
    forward(model, reducer).backward()
    reducer.rebuild(reducer.proposed_order())
    assert not reducer.arrivals.counted
    model.zero_grad()
    transport.started.clear()
    return model, reducer, transport


def gradients(model):
    return [parameter.grad.tolist() for parameter in model.parameters()]


def test_a_settled_iteration_starts_each_bucket_as_it_fills(settled, cap):
    model, reducer, transport = settled
    seen = []
    model.a.register_post_accumulate_grad_hook(lambda _: seen.append(len(transport.started)))
    forward(model, reducer).backward()
    assert seen == [2 if cap == ONE_EACH else 0]  # the last parameter finds all buckets but its own under way
    assert (transport.done, reducer.readiness.order()) == (2, [2, 1, 0])
    assert not reducer.arrivals.counted


def test_another_order_is_reduced_all_the_same(settled, cap):
    model, reducer, transport = settled
    model.order = "cab"
    for done in (2, 3, 4):
        model.zero_grad()
        forward(model, reducer).backward()
        assert transport.done == done
    assert reducer.arrivals.counted == (cap == ALL_IN_ONE)  # with one each, every bucket still fills as expected
    assert gradients(model) == [[4.0, 4.0]] * 3


def test_a_parameter_left_out_is_missed_and_named(settled):
    model, reducer, transport = settled
    model.order = "ac"
    forward(model, reducer).backward()
    assert transport.done == 1
    with pytest.raises(RuntimeError, match="rank 0: b"):
        reducer.check_finished()


def test_a_second_backward_may_complete_what_the_first_left_open(settled):
    model, reducer, transport = settled
    x = torch.ones(1, 2)
    left, right = (x * model.a).sum(), (x * model.b * model.c).sum()
    pending = PendingBackward(True)
    for output in (left, right):
        output.register_hook(lambda _: reducer.begin(pending))
    pending.noticeable = True
    reducer.admit(pending)
    left.backward()
    assert (transport.done, reducer.phase) == (1, Phase.FILLING)
    right.backward()
    assert (transport.done, reducer.phase) == (2, Phase.IDLE)


def test_lists_do_not_grow_with_backwards_past_the_forward(settled):
    model, reducer, transport = settled
    forward(model, reducer).backward()
    reducer._warned = True
    for _ in range(5):
        model(torch.ones(1, 2)).sum().backward()
    assert [bucket.arrived for bucket in reducer.buckets] == [[]] * len(reducer.buckets)
    forward(model, reducer).backward()
    assert (transport.done, reducer.arrivals.counted) == (3, False)


def test_a_second_arrival_is_refused(settled):
    from torch.utils.checkpoint import checkpoint

    model, reducer, _ = settled

    def twice(x):
        return checkpoint(model, checkpoint(model, x, use_reentrant=True), use_reentrant=True)

    with pytest.raises(RuntimeError, match="marked as ready twice"):
        forward(twice, reducer, x=torch.ones(1, 2, requires_grad=True)).backward()


def test_outputs_out_of_sight_begin_with_the_first_arrival(settled):
    model, reducer, transport = settled
    loss = model(torch.ones(1, 2)).sum()
    reducer.admit(PendingBackward(True))
    loss.backward()
    assert transport.done == 2


def test_local_backwards_leave_nothing_behind(settled):
    model, reducer, transport = settled
    for _ in range(3):
        forward(model, reducer, sync=False).backward()
    forward(model, reducer).backward()
    assert (transport.done, reducer.arrivals.counted) == (2, False)
    assert gradients(model) == [[16.0, 16.0]] * 3


def test_a_backward_of_something_else_between_forward_and_backward_is_not_taken_for_its_own(settled):
    model, reducer, transport = settled
    loss = forward(model, reducer)
    model.b.sum().backward()
    loss.backward()
    assert transport.done == 2
    assert gradients(model) == [[4.0, 4.0], [5.0, 5.0], [4.0, 4.0]]


def test_a_parameter_used_outside_of_the_forward_only_counts_as_arrived(settled):
    model, reducer, transport = settled
    model.order = "ac"
    (forward(model, reducer) + model.b.sum()).backward()
    assert transport.done == 2
    assert gradients(model) == [[2.0, 2.0], [1.0, 1.0], [2.0, 2.0]]


def test_what_a_users_hook_makes_of_a_gradient_is_what_is_reduced(settled):
    model, reducer, _ = settled

    def eightfold(parameter):
        parameter.grad.mul_(8)

    model.b.register_post_accumulate_grad_hook(eightfold)
    forward(model, reducer).backward()
    assert model.b.grad.tolist() == [32.0, 32.0]  # as sent and got back, not as changed afterwards
    assert sorted({n for bucket in reducer.buckets for n in bucket.flat.tolist()}) == [4.0, 32.0]


def test_a_model_that_was_cast_is_still_watched(cap):
    model = Steps()
    reducer, transport = build(model, cap=cap)
    forward(model, reducer).backward()
    model.double()
    reducer.watch_anew()
    forward(model, reducer, x=torch.ones(1, 2, dtype=torch.float64)).backward()
    assert transport.done == 2


def test_a_static_graph_that_starts_over_learns_its_arrivals_anew(cap):
    model = Steps()
    reducer, transport = build(model, static_graph=True, cap=cap)
    for done in (1, 2):
        forward(model, reducer).backward()
        assert transport.done == done
    reducer.rebuild(reducer.proposed_order())
    assert not reducer.arrivals.counted
    reducer.start_over()
    model.zero_grad()
    forward(model, reducer).backward()
    assert (transport.done, reducer.facts.never_used) == (3, frozenset())
    assert reducer.usage.expected == [1, 1, 1]


def test_noted_arrivals_keep_neither_reducer_nor_model_alive():
    model = Steps()
    reducer, transport = build(model)
    forward(model, reducer).backward()
    reducer.rebuild(reducer.proposed_order())
    forward(model, reducer, sync=False).backward()
    gone = weakref.ref(reducer), weakref.ref(model.a)
    del reducer, transport, model
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_buckets_of_a_model_that_was_cast_start_while_its_backward_goes_on(settled, cap):
    model, reducer, transport = settled
    model.double()
    reducer.notice_changes()
    seen = []
    model.a.register_post_accumulate_grad_hook(lambda _: seen.append(len(transport.started)))
    for _ in range(2):
        transport.started.clear()
        forward(model, reducer, x=torch.ones(1, 2, dtype=torch.float64)).backward()
        reducer.rebuild(reducer.proposed_order())
    assert seen == [0, 2 if cap == ONE_EACH else 0], "before it is rebuilt it has one bucket"


def test_a_model_may_be_frozen_for_a_while(cap):
    """As adversarial training does with a discriminator, also while the buckets are laid out anew."""
    model = Steps()
    reducer, transport = build(model, cap=cap)
    forward(model, reducer).backward()
    expected = gradients(model)
    model.requires_grad_(False)
    reducer.rebuild(reducer.proposed_order())
    forward(model, reducer, x=torch.ones(1, 2, requires_grad=True)).backward()
    reducer.check_finished()
    assert transport.done == 1, "there was nothing to reduce"
    assert not any(parameter.requires_grad for parameter in model.parameters())
    model.requires_grad_(True)
    model.zero_grad()
    forward(model, reducer).backward()
    assert gradients(model) == expected
    assert transport.done == 2


def nodes_last(model, go):
    """By parameter: whether the node that accumulates its gradient is still there after ``go``."""
    for parameter in model.parameters():
        torch.autograd.graph.get_gradient_edge(parameter).node.metadata["seen"] = True
    go()
    gc.collect()
    return ["seen" in torch.autograd.graph.get_gradient_edge(each).node.metadata for each in model.parameters()]


def test_the_nodes_that_accumulate_last_so_that_all_of_a_bucket_do_it_on_one_stream(settled):
    model, reducer, _ = settled
    assert nodes_last(model, lambda: forward(model, reducer).backward()) == [True] * 3


@pytest.mark.parametrize("accelerated", [False, True])
def test_so_do_those_of_recast_parameters_from_a_forward_on_where_there_are_streams(accelerated, monkeypatch):
    monkeypatch.setattr(streams, "is_accelerated", lambda _: accelerated)
    model = Steps()
    arrivals = Arrivals(model, list(model.parameters()), lowered=True)
    arrivals.count_each()
    for dtype in (torch.bfloat16, torch.float32):
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        arrivals.come_last()
        assert nodes_last(model, lambda: None) == [accelerated] * 3
