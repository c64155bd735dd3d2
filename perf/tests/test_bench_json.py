"""pytest-benchmark's JSON beside a record: also where the record is named from here."""

import json

import pytest

from perf.analyse import bench
from perf.tests.made_up import record, rows

pytestmark = pytest.mark.slow


def test_the_json_is_written_beside_a_record_that_is_named_from_the_present_folder(tmp_path, monkeypatch):
    path = tmp_path / "made.jsonl"
    record(path, rows([{"workload": "mlp"}], lambda cell, rank: 10.0 + rank))
    monkeypatch.chdir(tmp_path)
    written = bench.beside(path.relative_to(tmp_path))
    assert written == tmp_path / "made.benchmark.json"
    assert json.loads(written.read_text())["benchmarks"]
