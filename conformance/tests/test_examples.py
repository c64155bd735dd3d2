"""The examples run by the commands that they name, from the folder of the sources."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def said(*words):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_state_is_shared_equally():
    assert "rank 1 holds" in said("conformance.examples.zero_memory")


@pytest.mark.long
@pytest.mark.parametrize(("how", "told"), [([], "in pieces"), (["--whole"], "whole")], ids=["pieces", "whole"])
def test_a_compiled_step_is_timed_beside_an_eager_one(how, told):
    assert f"ms, and compiled {told}" in said("conformance.examples.compiled_overlap", "--steps", "1", *how)
