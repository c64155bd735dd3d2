"""Tensors that we make for ourselves: on the device and in the dtype that we name, whatever the user's default is."""

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

import impl
from impl.ddp import DistributedDataParallel
from impl.ddp.hooks import powerSGD_hook
from impl.join import Join
from impl.tests.comm_hook_ranks import run_on_ranks
from impl.zero import ZeroRedundancyOptimizer

pytestmark = pytest.mark.slow

HOME = Path(impl.__file__).parent
#: what makes a tensor out of nothing; ``*_like`` and ``new_*`` follow another tensor, ``frombuffer`` has no device
FACTORIES = {
    "arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "normal", "ones",
    "rand", "randint", "randn", "randperm", "scalar_tensor", "sparse_coo_tensor", "tensor", "zeros",
}  # fmt: skip


def factories(text):
    """Line, name and keywords of every call of a factory."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name)) if name in FACTORIES:
                yield node.lineno, name, {keyword.arg for keyword in node.keywords}


def test_the_search_for_factories_finds_them():
    text = "import torch\nx = torch.zeros(3, device='cpu') + torch.zeros_like(y)\n"
    assert list(factories(text)) == [(2, "zeros", {"device"})]


def test_every_factory_of_tensors_names_device_and_dtype():
    paths = [path for path in HOME.rglob("*.py") if "tests" not in path.parts]
    calls = [(path.relative_to(HOME), *call) for path in paths for call in factories(path.read_text("utf-8"))]
    assert len(calls) > 20
    careless = [f"{path}:{line} torch.{name}" for path, line, name, said in calls if not {"device", "dtype"} <= said]
    assert not careless


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        at = {"dtype": torch.float32, "device": "cpu"}
        self.first, self.second = nn.Linear(4, 4, **at), nn.Linear(4, 4, **at)
        self.table = nn.Embedding(3, 4, sparse=True, **at)
        self.register_buffer("seen", torch.zeros(1, **at))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(1.0)

    def forward(self, x, rows=None):
        x = self.second(self.first(x))
        return x if rows is None else x + self.table(rows)


def train(rank, options, hook):
    """Weights after uneven inputs in a context, and after the optimizer's state was consolidated and loaded again."""
    net = Net()
    model = DistributedDataParallel(net, **options)
    if hook:
        state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    dense = [*net.first.parameters(), *net.second.parameters()]
    optimizer = ZeroRedundancyOptimizer(dense, torch.optim.SGD, lr=0.5, momentum=0.5)
    x = torch.ones(1, 4, dtype=torch.float32, device="cpu")
    rows = torch.zeros(1, dtype=torch.int64, device="cpu")
    with Join([model, optimizer]):
        for _ in range(4 - 2 * rank):
            optimizer.zero_grad()
            model(x, rows).sum().backward()
            optimizer.step()
    optimizer.consolidate_state_dict()
    if rank == 0:
        optimizer.load_state_dict(optimizer.state_dict())
    return [parameter.tolist() for parameter in net.parameters()], {(p.dtype, p.device) for p in net.parameters()}


def train_under_each_default(rank, _world):
    told = []
    for options, hook in (({}, False), ({"gradient_as_bucket_view": True}, False), ({}, True)):
        expected = train(rank, options, hook)
        torch.set_default_device("meta")
        under_meta = train(rank, options, hook)
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float64)
        under_float64 = train(rank, options, hook)
        torch.set_default_dtype(torch.float32)
        told.append((expected == under_meta, expected == under_float64, expected[1]))
    return told


def test_another_default_device_or_dtype_changes_nothing():
    as_ever = (True, True, {(torch.float32, torch.device("cpu"))})
    assert run_on_ranks(train_under_each_default, 2) == [[as_ever] * 3] * 2
