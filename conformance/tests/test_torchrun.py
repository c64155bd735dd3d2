"""The suite under a launcher: on the ranks that it is given, with every outcome, and without leaving a process."""

import os
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from conformance.__main__ import main
from conformance.api.checking import NotRun
from conformance.bad_input import BadInput
from conformance.fixtures.rpc import remote_calls
from conformance.ranks import RankContext
from conformance.ranks.agent_group import AgentGroup, Member
from conformance.ranks.place import forget, placed
from reports.records import read

from . import fakes
from .test_runs_whole import marked, wait_for

pytestmark = pytest.mark.slow

PATIENCE_S = 420  # two launchers, two agents, two fork servers, each of which loads torch, on a busy machine
needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def surroundings(folder, **more):
    """An environment without traces of any launcher, in which the fakes can be imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC", "SLURM"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        kept.pop(name, None)
    return kept | {"PYTHONPATH": f"{fakes.HOME}{os.pathsep}{folder}"} | more


def start(command, folder, environment):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **pipes)


def torchrun(folder, *words, nodes=2, mark=""):
    """One launcher for each of two nodes, which are both this machine."""
    port = free_port()
    for node in range(nodes):
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes), "--nproc-per-node", "1"]
        command += ["--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port)]
        command += ["-m", "conformance", "run", "--out", "out", *words]
        yield start(command, folder, surroundings(folder, JOINERY_TEST_MARK=mark))


def by_hand(folder, *words, mark="", world=2):
    """A launcher of one's own: processes with the four variables, and nothing else."""
    place = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "conformance", "run", "--out", "out", *words]
    for rank in range(world):
        yield start(command, folder, surroundings(folder, RANK=str(rank), JOINERY_TEST_MARK=mark, **place))


def ends(processes):
    """Exit status and output of each, in order of rank."""
    deadline = time.monotonic() + PATIENCE_S
    try:
        told = [process.communicate(timeout=max(1, deadline - time.monotonic()))[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, told, strict=True)]


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_two_nodes_of_torchrun_judge_ours_and_torch(tmp_path):
    words = ("--subject", "impl,torch", "--select", "JOIN-025,DDP-024,ZERO-001", "--jobs", "2")
    first, second = ends(list(torchrun(tmp_path, *words)))
    assert first[0] == second[0] == 0, first[1] + second[1]
    record = read(tmp_path / "out/conformance.jsonl")
    assert record.header["launcher"]["name"] == "torchrun"
    assert (record.header["launcher"]["nodes"], record.header["launcher"]["world"]) == (2, 2)
    assert {row["world"] for row in record.rows} == {2}
    assert {(row["clause"], row["subject"]) for row in record.rows if row["outcome"] == "passed"} >= {
        ("JOIN-025", "impl"), ("JOIN-025", "torch"), ("ZERO-001", "impl"), ("ZERO-001", "torch")
    }  # fmt: skip
    assert "launcher" in (tmp_path / "out/index.html").read_text()
    assert "kept" not in second[1]  # one report, by rank 0


TENSORS = """
import torch

def tensors(ctx, argument):
    return argument + torch.full((1000,), float(ctx.rank))


@check("FAKE-020", worlds=(2,))
def test_tensors_travel_both_ways(ranks):
    got = ranks(tensors, torch.ones(1000))
    assert [each.sum().item() for each in got] == [1000.0, 2000.0]
"""


@pytest.mark.long
def test_every_way_of_ending_is_what_it_is_without_a_launcher(tmp_path):
    fakes.lay(tmp_path)
    (tmp_path / "test_fake.py").write_text(fakes.CHECKS + TENSORS)
    words = ("--checks", "test_fake.py", "--subject", "fake_subject:subject", "--worlds", "1,2")
    first, second = ends(list(by_hand(tmp_path, *words)))
    assert (first[0], second[0]) == (3, 0), first[1] + second[1]  # one of the checks falls over by itself
    record = read(tmp_path / "out/conformance.jsonl")
    found = {(row["clause"], row["scenario"]): row["outcome"] for row in record.rows if row["world"] == 2}
    assert found == {key: str(end) for key, end in fakes.EXPECTED.items()} | {("FAKE-020", ""): "passed"}
    rows = {row["clause"]: row for row in record.rows if row["world"] == 2}
    assert rows["FAKE-003"]["witness"].startswith("rank 0 hung at test_fake.py:")
    assert "rank 1 died with exit status 7" in rows["FAKE-004"]["witness"]
    assert [row["clause"] for row in record.rows if row["world"] == 1] == ["FAKE-001"]
    assert record.header["launcher"]["name"] == "environment"


# --- ends in the middle -----------------------------------------------------------------------------------------------


def at_work(folder, launch):
    """Start a run whose second check works for minutes; returns when that has begun."""
    fakes.lay(folder)
    checks = fakes.CHECKS.replace("deadline_s=1.0", "deadline_s=300").replace("time.sleep(seconds", "work(seconds")
    busy = (
        "def work(seconds):\n    open(f'begun-{os.getpid()}', 'w').close()\n"
        "    for _ in range(100 * seconds):\n        time.sleep(0.01)\n"
    )
    (folder / "test_fake.py").write_text(checks.replace("def answer(ctx)", busy + "\n\ndef answer(ctx)"))
    mark = uuid.uuid4().hex
    words = ("--checks", "test_fake.py", "--subject", "fake_subject:subject", "--select", "FAKE-001,FAKE-003")
    processes = list(launch(folder, *words, mark=mark))
    try:
        wait_for(lambda: list(folder.glob("begun-*")) or any(p.poll() is not None for p in processes), PATIENCE_S)
        assert all(process.poll() is None for process in processes), [process.communicate() for process in processes]
    except BaseException:
        for process in processes:
            process.kill()
        raise
    return processes, mark


@pytest.mark.long
@needs_proc
def test_a_lost_agent_ends_the_run_with_a_sentence_and_what_was_finished(tmp_path):
    (driver, agent), mark = at_work(tmp_path, by_hand)
    agent.kill()
    (status, text), _ = ends([driver, agent])
    assert status == 3, text
    assert "the agent of rank 1" in text
    assert "has ended" in text
    assert "Traceback" not in text
    record = read(tmp_path / "out/conformance.jsonl")
    assert record.footer["interrupted"]
    assert [row["clause"] for row in record.rows] == ["FAKE-001"]
    wait_for(lambda: marked(mark) == [], 60)


@pytest.mark.long
@needs_proc
def test_the_drivers_death_ends_the_agents(tmp_path):
    (driver, agent), mark = at_work(tmp_path, by_hand)
    driver.kill()
    _, (status, text) = ends([driver, agent])
    assert status == 3
    assert "rank 1 lost rank 0" in text
    wait_for(lambda: marked(mark) == [], 60)


@pytest.mark.long
@needs_proc
def test_nothing_is_left_when_the_launchers_are_killed(tmp_path):
    launchers, mark = at_work(tmp_path, torchrun)
    for launcher in launchers:
        launcher.kill()
    ends(launchers)
    wait_for(lambda: marked(mark) == [], 90)


def test_what_needs_one_machine_is_not_run_on_several():
    ctx = RankContext(0, 2, None, "gloo", None, None, one_machine=False)
    with pytest.raises(NotRun, match="several machines"), remote_calls(ctx):
        pass


def test_hosts_that_a_machine_plays_are_not_one_machine():
    about = {"host": "box", "machine": "box 1", "network": "net:[1]"}
    members = [Member(rank, {**about, "network": network}, None) for rank, network in enumerate(("net:[1]", "net:[2]"))]
    assert AgentGroup(None, members[:1]).one_machine
    assert not AgentGroup(None, members).one_machine
    assert AgentGroup(None, members).here == 2


# --- what the environment says ----------------------------------------------------------------------------------------

PLACE = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "there", "MASTER_PORT": "29500"}


def test_a_place_is_read_from_the_launchers_variables():
    assert placed({}) is None
    assert placed({"RANK": "0", "WORLD_SIZE": "2"}) is None  # left over from something else
    found = placed(PLACE | {"LOCAL_RANK": "3", "SLURM_JOB_ID": "7"})
    assert (found.rank, found.world, found.local_rank, found.launcher) == (1, 4, 3, "slurm")
    elastic = placed(PLACE | {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "2"})
    assert (elastic.launcher, elastic.prefix) == ("torchrun", "joinery/2/")


@pytest.mark.parametrize(
    ("change", "says"), [({"RANK": "one"}, "RANK='one'"), ({"RANK": "4"}, "RANK=4 is not below WORLD_SIZE=4")]
)
def test_a_place_that_cannot_be_is_bad_input(change, says):
    with pytest.raises(BadInput, match=says):
        placed(PLACE | change)


def test_ranks_get_none_of_the_launchers_variables(monkeypatch):
    for name in [*PLACE, "LOCAL_RANK", "TORCHELASTIC_RUN_ID"]:
        monkeypatch.setenv(name, "1")
    forget()
    assert not [name for name in os.environ if name in PLACE or name.startswith(("LOCAL_", "TORCHELASTIC"))]


def test_more_ranks_than_the_launcher_gave_are_bad_input(monkeypatch, capsys, tmp_path):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main(["run", "--worlds", "1,2", "--out", str(tmp_path)]) == 2
    assert "the launcher gave 1 ranks" in capsys.readouterr().err
