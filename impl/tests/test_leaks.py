"""What is dropped is gone: models, gradients, buckets and optimizers, in any order and whatever came last."""

import gc
import itertools
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

from impl.ddp import DistributedDataParallel
from impl.ddp.hooks import default_hooks, powerSGD_hook
from impl.ddp.mixed_precision import _MixedPrecision
from impl.join import Join
from impl.overlap import hook_with_zero_step
from impl.zero import ZeroRedundancyOptimizer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.table = nn.Embedding(3, 2, sparse=sparse)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        return self.layers(x + self.table(torch.zeros(1, dtype=torch.int64)))


OPTIONS = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "search": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "lowered": {"mixed_precision": _MixedPrecision(param_dtype=torch.bfloat16)},
    "delayed": {"delayed": True},
    "sparse": {"sparse": True},
    "hooked": {"hook": default_hooks.fp16_compress_hook},
    "compressed": {"hook": powerSGD_hook.powerSGD_hook},
    "zero": {"zero": True},
    "overlapped": {"overlapped": True, "gradient_as_bucket_view": True},
}
# not among them: a backward that raises, after which torch itself never lets go of some parameters
ENDINGS = ("synchronised", "local", "in a context")


def build(delayed=False, sparse=False, hook=None, zero=False, overlapped=False, **options):
    net = Net(sparse)
    if delayed:
        weight = net.layers[1].weight
        options |= {"delay_all_reduce_named_params": [("layers.1.weight", weight)]}
        options |= {"param_to_hook_all_reduce": net.layers[0].weight}
    model = DistributedDataParallel(net, **options)
    optimizer = None
    if zero or overlapped:
        parameters = list(net.parameters())
        optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1, overlap_with_ddp=overlapped)
    if overlapped:
        model.register_comm_hook(None, hook_with_zero_step(default_hooks.allreduce_hook, model, optimizer))
    elif hook is powerSGD_hook.powerSGD_hook:
        model.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), hook)
    elif hook is not None:
        model.register_comm_hook(None, hook)
    return model, optimizer


def backward(model):
    model(torch.ones(1, 2)).sum().backward()


def train(model, optimizer, ending):
    for _ in range(3):
        backward(model)
        if optimizer is not None:
            optimizer.step()
    if ending == "local":
        with model.no_sync():
            backward(model)
    elif ending == "in a context":
        with Join([model]):
            backward(model)


def watched(model, optimizer):
    """Weak references to everything that must go."""
    things = [model, model.module, model.reducer, optimizer, *model.parameters(), *model.buffers()]
    things += [parameter.grad for parameter in model.parameters()]
    things += [bucket.flat for bucket in model.reducer.buckets]
    return [weakref.ref(thing) for thing in things if thing is not None]


def live_and_die(options, ending, order):
    held = dict(zip(("model", "optimizer"), build(**options), strict=True))
    held["net"] = held["model"].module
    train(held["model"], held["optimizer"], ending)
    watching = watched(held["model"], held["optimizer"])
    for name in order:
        del held[name]
    return watching


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_nothing_outlives_what_was_dropped(options):
    live_and_die(options, ENDINGS[0], ("model", "optimizer", "net"))  # torch keeps its first calls for a while
    orders = list(itertools.permutations(("model", "optimizer", "net")))
    watching = []
    gc.collect()
    gc.disable()  # as soon as the last reference is gone, as in torch
    try:
        for ending, order in zip(itertools.cycle(ENDINGS), orders):
            watching += live_and_die(options, ending, order)
    finally:
        gc.enable()
    assert len(watching) > 80
    alive = [type(found()).__name__ for found in watching if found() is not None]
    assert not alive


@pytest.mark.long
def test_five_hundred_models_leave_as_many_tensors_as_fifty():
    def after(rounds):
        for place in range(rounds):
            options = OPTIONS[("plain", "zero", "hooked", "search")[place % 4]]
            live_and_die(options, ENDINGS[place % 3], ("net", "optimizer", "model"))
        gc.collect()
        return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())

    first = after(50)
    assert after(450) == first


@pytest.mark.parametrize("way", ["plain", "delayed", "by parameter"])
def test_a_wrapper_that_is_dropped_takes_its_hooks_from_the_parameters(way):
    net = Net(sparse=False)
    for _ in range(3):
        weight = net.layers[1].weight
        late = {"delay_all_reduce_named_params": [("layers.1.weight", weight)]}
        late |= {"param_to_hook_all_reduce": net.layers[0].weight}
        model = DistributedDataParallel(net, **(late if way == "delayed" else {}))
        if way == "by parameter":
            model._register_accum_grad_hook()
        backward(model)
        del model
        gc.collect()
    assert [len(each._post_accumulate_grad_hooks or ()) for each in net.parameters()] == [0] * 5
