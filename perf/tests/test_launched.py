"""Under a launcher: where a process stands, and whole runs under two torchrun agents on this machine."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.bad_input import BadInput
from conformance.ranks.place import Place
from perf.measure.launched import Spot, spot
from reports.records import read

pytestmark = pytest.mark.slow

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}  # fmt: skip
SLURM = {
    "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "MASTER_ADDR": "node1", "SLURM_JOB_ID": "123456",
}  # fmt: skip


def test_torchrun_and_slurm_say_where_a_process_stands():
    assert spot(TORCHRUN) == Spot(Place(3, 4, "10.0.0.1", 29500, 1, None, "environment", "0", False), 2)
    assert spot(SLURM) == Spot(Place(5, 8, "node1", 20000 + 123456 % 20000, 1, None, "slurm", "0", False), 4)


def test_without_a_launcher_there_is_no_such_place():
    assert spot({}) is None
    assert spot({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None  # a batch script, not a task of srun


def test_an_environment_that_makes_no_sense_is_refused():
    with pytest.raises(BadInput, match="WORLD_SIZE='many'"):
        spot({**TORCHRUN, "WORLD_SIZE": "many"})


def launched(folder, subject, *more):
    """Two agents with a rank each, as on two nodes; returns what each of them printed, and whether all went well."""
    sweep = folder / "mine.toml"
    sweep.write_text('rounds = 2\nblock = 2\n[[cells]]\nworkload = "mlp"\nworld = [1, 2]\n')
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    perf = ["-m", "perf", "run", "--sweep", str(sweep), "--subject", subject, "--backend", "gloo"]
    agents = [
        subprocess.Popen(
            [*command, "--node-rank", str(node), *perf, "--out", str(folder / "out"), *more], env=environment, cwd=root,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for node in (0, 1)
    ]  # fmt: skip
    try:
        said = [agent.communicate(timeout=400)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.terminate()  # an agent ends its ranks, unlike when it is killed
            agent.wait()
    return said, not any(agent.returncode for agent in agents)


@pytest.mark.long
def test_two_agents_measure_together_and_rank_0_writes(tmp_path):
    said, well = launched(tmp_path, "torch")
    assert well, "\n".join(said)
    (path,) = (tmp_path / "out").glob("*.jsonl")
    record = read(path)
    assert record.complete
    assert [row["status"] for row in record.rows] == ["ok", "ok"]
    assert all(row["axes"]["world"] == 2 and len(row["wall_ns"][0]) == 2 for row in record.rows)
    assert record.footer["judged"]["source"] == "the suite at 2 ranks on gloo, before measuring"
    assert "written:" in said[0]
    assert "written:" not in said[1]


@pytest.mark.long
def test_a_cell_that_fails_is_recorded_with_its_rank_and_the_others_are_measured(tmp_path):
    said, well = launched(tmp_path, "perf.tests.planted:failing,torch", "--judged", "no")
    assert not well  # the status says so, the job goes on to its end
    (path,) = (tmp_path / "out").glob("*.jsonl")
    record = read(path)
    assert record.complete, "\n".join(said)
    found = {row["series"].split(" | ")[1]: row for row in record.rows}
    assert {name: row["status"] for name, row in found.items()} == {
        "failing": "failed", "torch": "ok", "failing · again": "failed",
    }  # fmt: skip
    assert "rank 1 raised RuntimeError: planted" in found["failing"]["reason"]
