"""Whole runs on real ranks: wrong subjects are void, hangs and errors are recorded, and what was killed goes on."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from perf.__main__ import main
from perf.commands import run
from perf.measure import records, runner
from perf.measure.links import Links
from perf.measure.rows import blank
from perf.plan.planning import Place, plan
from perf.plan.sweep import _checked
from perf.tests import made_up
from reports.records import read

pytestmark = pytest.mark.slow

SWEEP = """
rounds = 3
block = 2
epoch = 2
[[cells]]
workload = "{workload}"
"""


def sweep_in(folder, *workloads, **more):
    path = folder / "mine.toml"
    text = SWEEP.format(workload=workloads[0])
    for other in workloads[1:]:
        text += f'[[cells]]\nworkload = "{other}"\n'
    for axis, value in more.items():
        text += f"{axis} = {json.dumps(value)}\n"
    path.write_text(text)
    return path


def measured(folder, subjects, *workloads, world=2, **more):
    """The exit status and the rows of a run."""
    out = folder / "out"
    sweep = sweep_in(folder, *workloads, **more)
    arguments = ["run", "--sweep", str(sweep), "--world", str(world), "--subject", subjects, "--out", str(out)]
    status = main([*arguments, "--backend", "gloo", "--judged", "no"])
    (path,) = out.glob("*.jsonl")
    return status, read(path).rows


def test_wrong_hanging_and_failing_subjects_are_recorded_and_the_others_are_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "SILENCE_S", 3.0)
    subjects = "torch,perf.tests.planted:stuck,perf.tests.planted:lossy,perf.tests.planted:failing"
    status, rows = measured(tmp_path, subjects, "mlp")
    assert status == 1
    found = {(row["subject"], row["axes"]["copy"]): row for row in rows}
    assert {key: row["status"] for key, row in found.items()} == {
        ("torch", 1): "ok", ("torch", 2): "ok", ("lossy", 1): "void", ("stuck", 1): "hung", ("failing", 1): "failed",
    }  # fmt: skip
    assert "times as far from what one process computes" in found["lossy", 1]["reason"]
    assert found["lossy", 1]["wall_ns"] == []
    assert found["lossy", 1]["verified"]["gap"] > 1
    assert "nothing moved any more" in found["stuck", 1]["reason"]
    assert "planted.py" in found["stuck", 1]["witness"], "the stacks of who hangs are in the record"
    assert "planted: the second forward fails" in found["failing", 1]["reason"]
    assert "Traceback" in found["failing", 1]["witness"]
    sound = found["torch", 1]
    assert len(sound["wall_ns"]) == len(sound["cpu_ns"]) == len(sound["block"]) == 3 * 2
    assert all(len(sample) == 2 and min(sample) > 0 for sample in sound["wall_ns"])
    assert len(sound["warmup_ns"]) >= 2 * 3
    assert sound["verified"]["turns"] == 2 * 3
    assert sound["verified"]["gap"] <= 1
    phases = ("forward", "backward", "step")
    assert set(sound["phases"]) == {f"{phase}_{kind}" for phase in phases for kind in ("wall", "cpu")}
    assert sound["derived"]["noise"] >= 0
    assert "1 cell is void: the result" in capsys.readouterr().out
    (record,) = (tmp_path / "out").glob("*.jsonl")
    assert main(["show", str(record)]) == 0
    told = capsys.readouterr().out
    assert "hung: mlp" in told
    assert "planted.py" in told


@pytest.mark.long
def test_a_subject_that_ends_its_process_loses_its_own_cells_only(tmp_path, capsys):
    status, rows = measured(tmp_path, "perf.tests.planted:crashing,torch", "tiny", "mlp")
    assert status == 1
    torchs, crashed = ([row for row in rows if row["subject"] == name] for name in ("torch", "crashing"))
    for some in (torchs, crashed):
        assert {row["axes"]["workload"] for row in some} == {"tiny", "mlp"}
    for row in crashed:
        assert row["status"] == "failed"
        assert "rank 1 died by signal 11" in row["reason"], "who died is told, not who lost the connection"
        assert row["wall_ns"] == []
    for row in torchs:
        assert row["status"] == "ok"
        assert row["verified"]["gap"] <= 1
        assert len(row["wall_ns"]) == 3 * 2, "the rounds of the others are measured anew, and whole"
    assert "4 failed, 2 ok" in capsys.readouterr().err


def test_uneven_runs_sharded_optimizers_and_overlapped_steps_are_verified(tmp_path):
    sweep = tmp_path / "mine.toml"
    sweep.write_text(textwrap.dedent("""
        rounds = 2
        block = 3
        epoch = 3
        [[cells]]
        workload = "mlp"
        skew = "linear"
        strategy = ["join", "flag", "drop_last"]
        zero = ["off", "on"]
        [[cells]]
        workload = "mlp"
        skew = "linear"
        hook = "local"
        [[cells]]
        workload = "mlp"
        optimizer = "adam"
        zero = "on"
        cap_mib = 0.3
        shard_buckets = [false, true]
        hook = ["none", "sequential", "interleaved", "reduce_scatter"]
        [[cells]]
        workload = "mlp"
        optimizer = "adam"
        strategy = ["join", "throwing", "after_join"]
    """))
    out = tmp_path / "out"
    arguments = ["run", "--sweep", str(sweep), "--world", "3", "--subject", "impl", "--out", str(out)]
    assert main([*arguments, "--backend", "gloo", "--judged", "no"]) == 0
    (path,) = out.glob("*.jsonl")
    rows = read(path).rows
    assert {row["status"] for row in rows} == {"ok"}
    epochs = [row for row in rows if row["unit"] == "epoch" and row["axes"]["strategy"] == "join"]
    assert all(row["derived"]["iterations"] == [1, 2, 3] for row in epochs)
    assert all(len(row["wall_ns"]) == 2 * 2 for row in epochs)
    sharded = [row for row in rows if row["axes"]["hook"] == "none" and row["axes"]["optimizer"] == "adam"]
    assert min(max(row["derived"]["optimizer_bytes"]) for row in sharded) < max(
        min(row["derived"]["optimizer_bytes"]) for row in sharded
    )


def test_buffers_that_are_not_shared_make_a_cell_void(tmp_path):
    strategies = ["plain", "join", "after_join"]
    status, rows = measured(tmp_path, "torch,perf.tests.planted:stale", "normed", strategy=strategies)
    assert status == 1
    found = {(row["subject"], row["axes"]["strategy"]): row for row in rows}
    assert {key: row["status"] for key, row in found.items()} == {
        ("torch", "plain"): "ok", ("torch", "join"): "ok", ("torch", "after_join"): "ok",
        ("stale", "plain"): "void", ("stale", "join"): "void", ("stale", "after_join"): "void",
    }  # fmt: skip
    assert "running_" in found["stale", "plain"]["reason"]


# A killed run goes on only at the same state of the source; other people may be changing it while this test runs.
KILLED = """
    import sys
    from perf.measure import records
    identity = records.identity
    records.identity = lambda *given, **more: {**identity(*given, **more), "commit": "of the test"}
    records.changes = lambda: ""
    from perf.__main__ import main
    if __name__ == "__main__":
        sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.long
def test_a_killed_run_goes_on_with_what_is_missing(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(KILLED))
    out = tmp_path / "out"
    sweep = sweep_in(tmp_path, "mlp", "light")
    command = [
        sys.executable, str(script), "run", "--sweep", str(sweep), "--world", "2", "--subject", "torch", "--backend",
        "gloo", "--out", str(out), "--judged", "no",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    first = subprocess.Popen(command, env=environment, cwd=tmp_path, **quiet)
    try:
        before = _rows_of_first_group(out, first)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    second = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert second.returncode == 0, second.stderr
    assert "took over" in second.stderr
    (path,) = out.glob("*.jsonl")
    assert not list(out.glob("*.part"))
    record = read(path)
    assert record.complete
    assert record.rows[: len(before)] == before
    assert len({row["series"] for row in record.rows}) == len(record.rows) == 4


def _rows_of_first_group(out, process):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert process.poll() is None, "the run ended before it was killed"
        for part in out.glob("*.part"):
            rows = read(part, partial=True).rows if part.stat().st_size else []
            if len(rows) >= 2:
                return rows[:2]
        time.sleep(0.02)
    raise AssertionError("no group was finished in time")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sweep", "defualt"], "did you mean default"),
        (["--world", "0"], "not a whole number above 0"),
        (["--world", "9999"], "more than the 256 ranks"),
        (["--backend", "glo"], "did you mean gloo"),
        (["--budget", "soon"], "is no time"),
        (["--subject", "trch"], "unknown subject"),
        (["--out", "/proc/nowhere"], "cannot write into"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_sentence(arguments, words, capsys):
    assert main(["run", "--sweep", "smoke", "--backend", "gloo", "--subject", "torch", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.startswith("perf: ")
    assert said.count("\n") == 1


def test_a_budget_that_is_used_up_before_the_first_cell_is_a_reason_of_its_own(capsys, tmp_path):
    arguments = ["--sweep", "smoke", "--backend", "gloo", "--subject", "impl", "--judged", "no", "--budget", "1s"]
    assert main(["run", *arguments, "--out", str(tmp_path)]) == 1
    assert "nothing measured: the budget was used up before the first cell" in capsys.readouterr().out


def test_a_dry_run_shows_every_cell_and_starts_nothing(capsys, tmp_path):
    arguments = ["run", "--sweep", "overlap", "--world", "4", "--backend", "gloo", "--dry-run"]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "torch · sequential · zero · cap 1 · shard" in told
    assert "known: torch's interleaved hook" in told
    assert "left out:" in told
    assert not (tmp_path / "out").exists()


def test_lists_and_shows(tmp_path, capsys):
    assert main(["list"]) == 0
    assert "skew_fraction" in capsys.readouterr().out
    assert main(["show", str(tmp_path / "gone.jsonl")]) == 2
    assert "cannot be read" in capsys.readouterr().err


class FullDisk:
    """A writer's file that takes the first lines and then no more."""

    def __init__(self, file, lines):
        self._file, self._left = file, lines

    def write(self, text):
        self._left -= 1
        if self._left < 0:
            raise OSError(28, "No space left on device")
        return self._file.write(text)

    def __getattr__(self, name):
        return getattr(self._file, name)


class Quick:
    """A runner that measures nothing and so needs no ranks."""

    def __init__(self, clusters):
        pass

    def links(self, order):
        return Links()

    def measure(self, order, limit):
        for cell in order.group:
            yield blank(cell, order.group, "failed", "planted")

    def measured_links(self):
        return []


def test_on_a_full_disk_the_finished_cells_are_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "Runner", Quick)
    begin = records.begin

    def on_a_small_disk(*given, **more):
        record = begin(*given, **more)
        record.writer._file = FullDisk(record.writer._file, 2)
        return record

    monkeypatch.setattr(records, "begin", on_a_small_disk)
    arguments = ["run", "--sweep", str(sweep_in(tmp_path, "mlp")), "--subject", "torch", "--backend", "gloo"]
    assert main([*arguments, "--judged", "no", "--out", str(tmp_path / "out")]) == 3
    (part,) = (tmp_path / "out").glob("*.part")
    assert str(part) in capsys.readouterr().err
    assert len(read(part, partial=True).rows) == 2


def test_what_a_run_that_is_still_going_on_has_written_is_left_to_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "Runner", Quick)
    arguments = ["run", "--sweep", str(sweep_in(tmp_path, "mlp")), "--subject", "torch", "--backend", "gloo"]
    header, planned = {}, None

    def begin(out, first, plan, fresh=False):
        nonlocal header, planned
        header, planned = first, plan
        return opened(out, first, plan, fresh)

    opened = records.begin
    monkeypatch.setattr(records, "begin", begin)
    out = tmp_path / "out"
    assert main([*arguments, "--judged", "no", "--out", str(out)]) == 1  # all cells failed
    going_on = opened(out, header, planned)
    beside = opened(out, header, planned)
    assert going_on.taken == beside.taken == []  # the first is complete, the second alive
    beside.writer.abandon()
    going_on.writer.write(blank(planned.groups[0].cells[0], planned.groups[0], "failed", "planted"))
    going_on.writer._file.close()  # as if it had been killed
    after = opened(out, header, planned)
    assert [row["reason"] for row in after.taken] == ["planted"]
    after.writer.abandon()
    (out / "torn.jsonl").write_text("{no json")
    assert [trouble for trouble in opened(out, header, planned).troubles if "torn.jsonl" in trouble]


@pytest.mark.parametrize("other", [
    {}, {"machine": {"processor": "another", "cores": 96}}, {"environment": {"OMP_NUM_THREADS": "32"}},
])  # fmt: skip
def test_what_was_measured_elsewhere_is_not_taken_over(tmp_path, other):
    made = made_up.rows([{"workload": "mlp"}], lambda cell, rank: 10.0)
    sweep = _checked("mine", {"cells": [{"workload": "mlp"}]}, "mine")
    planned = plan(sweep, ["impl", "torch"], 2, lambda _: Place("gloo", "cpu"))
    first = records.header({"sweep": "mine"}, [], ["x"])
    killed = records.begin(tmp_path, {**first, **other}, planned)
    for row in made:
        killed.writer.write(row)
    killed.writer._file.close()  # as if it had been killed
    after = records.begin(tmp_path, first, planned)
    assert len(after.taken) == (0 if other else len(made))
    after.writer.abandon()
