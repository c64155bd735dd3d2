"""A user's training script runs with only its import lines changed, and trains the same model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conformance.examples import train_uneven as example

pytestmark = pytest.mark.slow

SOURCE = Path(example.__file__)
ROOT = SOURCE.parents[2]
TORCH_LINES = (
    "from torch.distributed.algorithms.join import Join  # <- import line 1\n",
    "from torch.nn.parallel import DistributedDataParallel  # <- import line 2\n",
)
#: torch 2.13's Gloo now and then aborts a process that ends while a future of its own still has a callback; seen with
#: torch's own classes, after training. Such an ending says nothing of the script, so it is run again.
GLOO_ABORT = "terminate called without an active exception"
OUR_LINE = "from impl import DistributedDataParallel, Join\n"


def run(script: Path, weights: Path) -> dict:
    """Run a script under torchrun on two ranks, as its user would; returns the weights it saved."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command += [str(script), str(weights)]
    for _ in range(3):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        if GLOO_ABORT not in done.stderr:
            break
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(weights)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict]:
    """The weights that the script leaves with torch's classes and with ours."""
    folder = tmp_path_factory.mktemp("example")
    text = SOURCE.read_text()
    for line in TORCH_LINES:
        assert line in text
    changed = text.replace(TORCH_LINES[0], OUR_LINE).replace(TORCH_LINES[1], "")
    ours = folder / "ours.py"
    ours.write_text(changed)
    return run(SOURCE, folder / "torch.pt"), run(ours, folder / "ours.pt")


def alone() -> dict[str, torch.Tensor]:
    """The MLP trained in one process: absent ranks add nothing, every step divides by two."""
    torch.manual_seed(0)
    model = example.mlp()
    for parameter in model.parameters():
        parameter.data.mul_(4).round_()
    optimizer = torch.optim.SGD(model.parameters(), lr=2**-10)
    for step in range(max(example.STEPS.values())):
        optimizer.zero_grad()
        for rank, steps in example.STEPS.items():
            if step < steps:
                for number in (2 * step, 2 * step + 1):
                    (model(example.data(rank, number, 2, 4)).sum() / 2).backward()
        optimizer.step()
    return model.state_dict()


def test_uneven_accumulated_training_leaves_one_processs_weights_to_the_bit(trained):
    _, ours = trained
    expected = alone()
    assert all(torch.equal(ours["train_mlp"][name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("which", ["train_mlp", "train_convnet", "train_transformer"])
def test_the_changed_import_trains_what_torch_trains(trained, which):
    theirs, ours = trained
    assert theirs[which].keys() == ours[which].keys()
    for name, tensor in theirs[which].items():
        torch.testing.assert_close(ours[which][name], tensor, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
