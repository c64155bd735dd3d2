"""The reducer's life between forward and delivery, with a transport that goes nowhere: no process group is needed."""

import gc
import weakref
from unittest.mock import MagicMock, Mock

import pytest
import torch
from torch import nn

from impl.ddp.reducer import Phase
from impl.tests.loopback import build, forward


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def test_one_backward_delivers_once_and_ends_idle(model):
    reducer, transport = build(model)
    forward(model, reducer).backward()
    assert (transport.done, reducer.phase, reducer.facts.reductions) == (1, Phase.IDLE, 1)


def test_buckets_start_in_plan_order_and_only_the_final_one_says_last(model):
    reducer, transport = build(model, find_unused=True)
    forward(model, reducer).backward()
    assert transport.started == [(0, False), (1, False), (2, False), (3, True)]


def test_a_rebuild_is_due_after_the_first_reduction_and_only_then(model):
    reducer, _ = build(model)
    assert not reducer.facts.rebuild_due
    forward(model, reducer).backward()
    assert reducer.facts.rebuild_due
    seen = reducer.readiness.order()
    reducer.rebuild(reducer.proposed_order())
    assert not reducer.facts.rebuild_due
    assert [bucket.spec.parameters for bucket in reducer.buckets] == [(i,) for i in seen]
    assert len(seen) == 4


def test_a_static_graph_is_rebuilt_one_reduction_later(model):
    reducer, _ = build(model, static_graph=True)
    forward(model, reducer).backward()
    assert not reducer.facts.rebuild_due
    forward(model, reducer).backward()
    assert reducer.facts.rebuild_due


def test_a_ticket_without_sync_leaves_everything_local(model):
    reducer, transport = build(model)
    forward(model, reducer, sync=False).backward()
    assert (transport.started, transport.done) == ([], 0)


def test_what_counts_is_where_the_forward_ran(model):
    reducer, transport = build(model)
    synchronised = forward(model, reducer)
    local = forward(model, reducer, sync=False)
    local.backward()
    assert transport.done == 0
    synchronised.backward()
    assert transport.done == 1


def test_two_forwards_and_two_backwards_are_two_reductions(model):
    reducer, transport = build(model)
    first, second = forward(model, reducer), forward(model, reducer)
    first.backward()
    second.backward()
    assert transport.done == 2


def test_a_second_backward_through_the_same_forward_stays_local(model):
    reducer, transport = build(model)
    loss = forward(model, reducer)
    loss.backward(retain_graph=True)
    loss.backward()
    assert transport.done == 1


def test_the_functional_interface_reduces_nothing(model):
    reducer, transport = build(model)
    torch.autograd.grad(forward(model, reducer), list(model.parameters()))
    reducer.check_finished()
    assert (transport.done, reducer.phase) == (0, Phase.IDLE)


def test_a_missing_gradient_is_reported_by_name_and_then_forgotten(model):
    model.append(nn.Linear(2, 2))
    reducer, _ = build(model)
    forward(model[:2], reducer).backward()
    with pytest.raises(RuntimeError, match=r"2\.weight.*find_unused_parameters"):
        reducer.check_finished()
    reducer.check_finished()
    forward(model[:2], reducer).backward()
    with pytest.raises(RuntimeError, match="find_unused_parameters"):
        reducer.prepare_for_backward([])
    forward(model, reducer).backward()
    assert reducer.facts.reductions == 1


def test_an_exception_in_the_middle_of_backward_leaves_the_reducer_usable(model):
    reducer, transport = build(model)
    handle = model[0].weight.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        forward(model, reducer).backward()
    handle.remove()
    reducer.check_finished()
    model.zero_grad()
    forward(model, reducer).backward()
    assert transport.done == 1


@pytest.mark.parametrize("where", ["in the graph", "at its end"])
def test_what_a_failed_backward_has_sent_does_not_arrive_in_gradients_cleared_in_place(model, where):
    reducer, transport = build(model, as_view=True, find_unused=True)
    forward(model, reducer).backward()
    buckets, result = list(reducer.buckets), transport.result
    if where == "in the graph":
        model[0].weight.register_hook(lambda gradient: 1 / 0)
    else:
        transport.result = lambda bucket, flight, watch: 1 / 0
    with pytest.raises(ZeroDivisionError):
        forward(model, reducer).backward()
    transport.result = result
    model.zero_grad(set_to_none=False)
    for bucket in buckets[: reducer.queue.started]:
        bucket.flat.fill_(7.0)  # the collective ends
    assert reducer.queue.started > 1
    assert not any(parameter.grad.any() for parameter in model.parameters())


def fail_behind_everything(model, reducer):
    entering = 1 * torch.ones(1, 2, requires_grad=True)
    entering.register_hook(lambda gradient: 1 / 0)
    loss = forward(model, reducer, x=entering)
    with pytest.raises(ZeroDivisionError):
        loss.backward()


def test_a_backward_that_failed_behind_everything_reads_what_the_others_read_next(model):
    gc.collect()  # reducers of other tests
    reducer, transport = build(model)
    transport.catch_up = Mock(side_effect=RuntimeError("a peer is lost"))
    fail_behind_everything(model, reducer)
    transport.catch_up.assert_called_once_with()


@pytest.mark.parametrize("what", ["an agreement", "messages", "another model's buckets"])
def test_a_backward_that_failed_reads_nothing_where_the_others_go_on_with_something_else(model, what):
    gc.collect()
    reducer, transport = build(model, find_unused=what == "an agreement")
    transport.catch_up = Mock()
    if what == "messages":
        transport.iteration.session = MagicMock()
    if what == "another model's buckets":
        other, _ = build(beside := nn.Linear(2, 2))
        forward(beside, other)
        other._open(other.forwards.latest, None)
    fail_behind_everything(model, reducer)
    assert reducer.reduction.finish_due()
    transport.catch_up.assert_not_called()


def test_a_backward_whose_results_do_not_come_does_not_wait_for_them_twice(model):
    gc.collect()
    reducer, transport = build(model)
    transport.catch_up, transport.result = Mock(), lambda bucket, flight, watch: 1 / 0
    with pytest.raises(ZeroDivisionError):
        forward(model, reducer).backward()
    transport.catch_up.assert_not_called()


def test_a_failed_backward_leaves_the_old_gradient_of_an_unused_parameter_as_it_was(model):
    model.append(nn.Linear(2, 2))
    reducer, _ = build(model, find_unused=True, as_view=True)
    forward(model, reducer).backward()
    kept = model[2].weight.grad.clone()
    model[0].weight.register_hook(lambda gradient: 1 / 0)
    loss = forward(model[:2], reducer)
    reducer.forwards.latest.unused = {4, 5}
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    assert reducer.queue.started > 2
    for bucket in reducer.buckets[: reducer.queue.started]:
        bucket.flat.fill_(7.0)
    assert torch.equal(model[2].weight.grad, kept)


@pytest.mark.parametrize("as_view", [False, True], ids=["copies", "views"])
def test_an_unused_parameter_keeps_exactly_what_it_had(model, as_view):
    model.append(nn.Linear(2, 2))
    reducer, _ = build(model, find_unused=True, as_view=as_view, cap=10**6)
    forward(model, reducer).backward()
    kept = model[2].weight.grad.clone()
    ticket_of = forward(model[:2], reducer)
    reducer.forwards.latest.unused = {4, 5}
    ticket_of.backward()
    assert torch.equal(model[2].weight.grad, kept)


def test_a_static_graph_counts_the_arrivals_that_make_a_parameter_ready(model):
    from torch.utils.checkpoint import checkpoint

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2, bias=False)

        def forward(self, x):
            once = checkpoint(self.layer, x, use_reentrant=True)
            return checkpoint(self.layer, once, use_reentrant=True)

    twice = Twice()
    reducer, transport = build(twice, static_graph=True)
    for _ in range(3):
        twice.zero_grad()
        forward(twice, reducer, x=torch.ones(1, 2, requires_grad=True)).backward()
    assert transport.done == 3


def test_a_second_arrival_in_a_dynamic_graph_is_refused(model):
    from torch.utils.checkpoint import checkpoint

    layer = nn.Linear(2, 2, bias=False)
    reducer, _ = build(layer)

    def twice(x):
        return checkpoint(layer, checkpoint(layer, x, use_reentrant=True), use_reentrant=True)

    with pytest.raises(RuntimeError, match="marked as ready twice"):
        forward(twice, reducer, x=torch.ones(1, 2, requires_grad=True)).backward()


def test_views_share_the_buckets_memory_after_the_first_iteration(model):
    reducer, _ = build(model, as_view=True, cap=10**6)
    forward(model, reducer).backward()
    storages = {parameter.grad.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert storages == {reducer.buckets[0].flat.untyped_storage().data_ptr()}


def test_gradients_move_house_with_a_rebuild(model):
    reducer, _ = build(model, as_view=True, cap=10**6)
    forward(model, reducer).backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    reducer.rebuild(range(4))
    assert all(torch.equal(p.grad, b) for p, b in zip(model.parameters(), before, strict=True))


def test_parameters_do_not_keep_the_reducer_alive(model):
    reducer, transport = build(model)
    gone = weakref.ref(reducer)
    del reducer, transport
    gc.collect()
    assert gone() is None
    model(torch.ones(1, 2)).sum().backward()
    assert model[0].weight.grad is not None
