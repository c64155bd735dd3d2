"""A reducer whose transport goes nowhere: no process group is needed. For the tests of the reducer."""

from types import SimpleNamespace
from unittest.mock import Mock

import torch

from impl.comm.tally import Tally
from impl.ddp import params
from impl.ddp.iteration import Iteration
from impl.ddp.log import DDPLogger
from impl.ddp.pending_backward import PendingBackward, call_when_backward_begins
from impl.ddp.plan import BucketCaps
from impl.ddp.reducer import Reducer
from impl.ddp.shared import Agreement
from impl.ddp.stages import order_of

RANKS = 2  # how many equal ranks the transport pretends to have


class Loopback:
    """Transport among ``RANKS`` ranks that all contribute what this one does: averages are the local gradients."""

    def __init__(self):
        self.started = []
        self.done = 0  # backwards that were delivered
        self.hook = None
        self.model = Mock()
        self.iteration = Iteration(self.model)
        self.iteration.team = SimpleNamespace(
            rank=0, size=RANKS, group=None, tally=Tally(), guard=None, abandon=lambda: None
        )

    def step(self):
        self.done += 1

    def start(self, bucket, flat, *, last, alone):
        self.started.append((bucket.spec.index, last))
        return flat

    def factor_before(self):
        return 1.0

    def catch_up(self):
        """Nothing that was sent is unread."""

    def result(self, bucket, flight, watch):
        return flight, 1

    def agree_on_use(self, used, device, *, learned=None):
        return Agreement(frozenset(i for i, one in enumerate(used) if not one), bool(learned))


def build(model, *, find_unused=False, static_graph=False, as_view=False, cap=1):
    managed = params.managed_parameters(model, set())
    transport = Loopback()
    reducer = Reducer(
        model, [m.parameter for m in managed], params.specs_of(managed), transport, BucketCaps((cap,)), DDPLogger({}),
        find_unused=find_unused, as_view=as_view,
    )
    if static_graph:
        reducer.start_over(static_graph=True)
    transport.order = order_of(reducer, Mock(), None, Mock())
    transport.iteration.follow(transport.order)
    reducer.optimizers.append(transport)
    return reducer, transport


def forward(model, reducer, *, sync=True, x=None):
    output = model(torch.ones(1, 2) if x is None else x)
    pending = PendingBackward(sync)
    call_when_backward_begins([output], pending, reducer.begin)
    reducer.admit(pending)
    return output.sum()
