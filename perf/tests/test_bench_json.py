"""pytest-benchmark's JSON beside a record: also where the record is named from the present folder."""

import subprocess
from pathlib import Path

from perf.analyse import bench


def test_the_process_that_writes_the_json_runs_elsewhere_and_is_told_whole_paths(tmp_path, monkeypatch):
    def run(command, *, env, cwd, **_):
        (told,) = [word.partition("=")[2] for word in command if word.startswith("--benchmark-json=")]
        assert Path(cwd) != tmp_path
        assert Path(env[bench.RECORD]) == tmp_path / "made.jsonl"
        Path(cwd, told).write_text("{}")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(bench.subprocess, "run", run)
    monkeypatch.chdir(tmp_path)
    assert bench.beside(Path("made.jsonl")) == tmp_path / "made.benchmark.json"
    assert (tmp_path / "made.benchmark.json").exists()
