"""Records as data frames: nothing is lost or doubled on the way, and exports read back as what they were."""

import json
import math
import subprocess
import sys
from io import StringIO

import pandas as pd
import pytest

from perf.__main__ import main
from perf.analyse import derived, noise
from perf.analyse.frames import cells, samples
from perf.analyse.ratio import median_ns
from perf.commands.export import _inert
from perf.measure.rows import FAILED
from perf.tests.made_up import record, rows

CELLS = [
    {"workload": ["mlp", "tiny"], "strategy": ["plain", "join"]},
    {"workload": "mlp", "hook": ["no_sync", "local"]},
]
FORMULA = "=1+1"


@pytest.fixture(scope="module")
def made():
    """Sound cells with figures, of which one came to nothing."""
    found = derived.noted(noise.noted(rows(CELLS, lambda cell, rank: 10.0 + rank)))
    nothing = {"wall_ns": [], "cpu_ns": [], "block": [], "phases": {}, "derived": {}, "verified": {"gap": "not finite"}}
    found[1] |= {"status": FAILED, "reason": FORMULA, **nothing}
    return found


def test_a_row_for_each_cell_with_its_axes_and_medians(made):
    frame = cells(made)
    assert list(frame["series"]) == [row["series"] for row in made]
    for name in made[0]["axes"]:
        assert list(frame[name]) == [row["axes"][name] for row in made]
    for place, row in enumerate(made):
        assert frame["time_ns"][place] == pytest.approx(median_ns(row), rel=0, nan_ok=True)


def test_every_derived_figure_is_there_and_a_missing_one_is_nan(made):
    frame, row = cells(made), made[0]
    assert frame["exposed_ns"][0] == row["derived"]["exposed_ns"]
    assert [frame["exposed_low_ns"][0], frame["exposed_high_ns"][0]] == row["derived"]["exposed_interval_ns"]
    assert [frame["min_wait_ns"][0], frame["max_wait_ns"][0]] == sorted(row["derived"]["wait_ns"])
    assert frame["noise_ratio_point"][0] == row["derived"]["noise_ratio"]["point"]
    assert math.isnan(frame["exposed_ns"][1])
    assert frame["gap_of_allowed"][1] == math.inf


def test_a_row_for_each_sample_rank_and_phase(made):
    frame = samples(made)
    times = frame.reset_index().set_index(["cell", "phase", "sample", "rank"])["wall_ns"]
    assert times.index.is_unique
    for place, row in enumerate(made):
        for phase, nested in (("all", row["wall_ns"]), ("step", row["phases"].get("step_wall", []))):
            expected = {(at, rank): time for at, sample in enumerate(nested) for rank, time in enumerate(sample)}
            assert (times[place][phase].to_dict() if expected else {}) == expected
    assert 1 not in frame.index  # the cell that came to nothing
    assert frame["device_ns"].isna().all()


def test_medians_of_the_samples_are_those_of_the_cells(made):
    whole = samples(made).query("phase == 'all'")
    slowest = whole.groupby(["cell", "round", "sample"])["wall_ns"].max()
    medians = slowest.groupby(["cell", "round"]).median().groupby("cell").median()
    assert medians.to_dict() == {place: median_ns(row) for place, row in enumerate(made) if row["wall_ns"]}


def test_warm_up_has_no_rounds(made):
    frame = samples([{**made[0], "warmup_ns": [[7, 8], [9, 10]]}])
    warm = frame[frame["phase"] == "warmup"]
    assert list(warm["wall_ns"]) == [7, 8, 9, 10]
    assert warm["round"].isna().all()
    assert frame[frame["phase"] == "all"]["round"].notna().all()


def test_a_record_without_cells_has_empty_frames():
    assert cells([]).empty
    assert samples([]).empty
    assert "workload" in cells([])


@pytest.fixture
def place(made, tmp_path):
    return str(record(tmp_path / "mine.jsonl", made).path)


def test_a_csv_reads_back_and_holds_no_formula(made, place, capsys):
    assert main(["export", place]) == 0
    frame = pd.read_csv(StringIO(capsys.readouterr().out))
    assert list(frame["series"]) == [row["series"] for row in made]
    assert set(frame["record"]) == {"mine.jsonl"}
    assert frame["time_ns"][0] == median_ns(made[0])
    assert frame["reason"][1] == f"'{FORMULA}"


def test_no_text_is_a_formula_whatever_pandas_calls_its_type():
    kept = pd.DataFrame({"word": [FORMULA, None], "number": [-1.5, math.nan]})
    for frame in (kept, kept.astype(object)):  # before pandas 3 a text is an object
        assert _inert(frame)["word"][0] == f"'{FORMULA}"
        assert _inert(frame)["number"][0] == -1.5


def test_json_is_exact_and_strict(made, place, tmp_path):
    out = tmp_path / "cells.json"
    assert main(["export", place, "--form", "json", "--out", str(out)]) == 0
    told = json.loads(out.read_text(), parse_constant=pytest.fail)
    assert told[0]["noise"] == made[0]["derived"]["noise"]
    assert told[0]["host_ns_per_parameter"] == made[0]["derived"]["host_ns_per_parameter"]
    assert told[1]["reason"] == FORMULA
    assert told[1]["time_ns"] is told[1]["gap_of_allowed"] is None


def test_samples_of_several_records_make_one_table(place, tmp_path):
    out = tmp_path / "samples.csv.gz"
    assert main(["export", place, place, "--samples", "--out", str(out)]) == 0
    frame = pd.read_csv(out)
    assert {"round", "sample", "rank", "phase", "wall_ns", "cpu_ns", "device_ns"} <= set(frame)
    assert len(frame) == 2 * len(frame[["series", "phase", "sample", "rank"]].drop_duplicates())


def test_what_cannot_be_exported_says_why(place, tmp_path, capsys, monkeypatch):
    assert main(["export", place, "--out", str(tmp_path / "none" / "out.csv")]) == 2
    assert "give another file with --out" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "none.jsonl")]) == 2
    monkeypatch.setattr("perf.commands.export.find_spec", lambda name: None)
    assert main(["export", place, "--form", "parquet", "--out", str(tmp_path / "out.parquet")]) == 2
    assert "pip install pyarrow" in capsys.readouterr().err


def test_commands_that_only_list_or_plan_do_not_load_pandas():
    code = "import sys; from perf.__main__ import main; main({}); print('pandas' in sys.modules, file=sys.stderr)"
    for words in (["list"], ["run", "--sweep", "smoke", "--dry-run"]):
        done = subprocess.run([sys.executable, "-c", code.format(words)], capture_output=True, text=True, timeout=120)
        assert done.stderr.endswith("False\n"), done.stderr
