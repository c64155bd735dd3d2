"""``--only``: just the named cells and what they are compared with, in plans, on the command line and on real ranks."""

import pytest

from conformance.bad_input import BadInput
from perf.__main__ import main
from perf.plan import sweep as sweeps
from perf.plan.only import narrowed
from perf.plan.planning import Place, plan
from reports.records import read

pytestmark = pytest.mark.slow

CELLS = [
    {"workload": "convnet", "strategy": ["plain", "join"]},
    {"workload": "tiny", "settings": ["default", "best"]},
]
CONVNET, TINY = (f"{name} · cpu · world 2 · gloo · even · step · sgd | " for name in ("convnet", "tiny"))


def series(*names):
    sweep = sweeps._checked("mine", {"cells": CELLS}, "mine.toml")
    whole = plan(sweep, ["impl", "torch"], 2, lambda _world: Place("gloo", "cpu"))
    return [[cell.series for cell in group] for group in narrowed(whole, names).groups]


@pytest.mark.parametrize("name", ["impl · join", "torch · join", "impl · join / torch"])
def test_a_cell_comes_with_the_other_subjects_and_without_the_rest_of_its_group(name):
    assert series(CONVNET + name) == [[CONVNET + "impl · join", CONVNET + "torch · join"]]


@pytest.mark.parametrize("name", ["impl", "impl / torch", "impl · again / itself"])
def test_one_that_is_measured_twice_comes_with_its_copy(name):
    (found,) = series(CONVNET + name)
    assert {CONVNET + "impl", CONVNET + "impl · again"} <= set(found)
    assert not any("join" in one for one in found)


def test_settings_that_only_one_subject_knows_are_no_reason_to_part_a_pair():
    (found,) = series(TINY + "torch · best")
    assert set(found) == {TINY + "impl", TINY + "torch", TINY + "torch · best"}


def test_several_series_of_several_groups():
    found = series(TINY + "torch", CONVNET + "impl · join", CONVNET + "torch")
    assert [group[0].split(" ")[0] for group in found] == ["convnet", "tiny"]
    assert len(found[0]) == 4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (CONVNET + "impl · joined", f"did you mean '{CONVNET}impl · join'"),
        ("x", "there are 'convnet · cpu"),
        ("", "measures no series ''"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_ones(name, words):
    with pytest.raises(BadInput) as error:
        series(name)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_run_measures_just_the_named_pair_and_its_record_says_how_to_do_it_again(tmp_path, capsys):
    sweep = tmp_path / "mine.toml"
    sweep.write_text('rounds = 2\nblock = 2\n[[cells]]\nworkload = ["mlp", "tiny"]\nstrategy = ["plain", "join"]\n')
    words = ["run", "--sweep", str(sweep), "--out", str(tmp_path / "out"), "--backend", "gloo"]
    assert main([*words, "--judged", "no", "--only", TINY + "impl · join / torch"]) == 0
    (path,) = (tmp_path / "out").glob("*.jsonl")
    record = read(path)
    assert [row["series"] for row in record.rows] == [TINY + "impl · join", TINY + "torch · join"]
    assert all(row["status"] == "ok" for row in record.rows)
    again = [TINY + "impl" if word == "{series}" else word for word in record.header["again"]]
    assert again[:4] == ["python", "-m", "perf", "run"]
    capsys.readouterr()
    assert main([*again[3:], "--dry-run"]) == 0
    assert "3 cells in 1 group," in capsys.readouterr().out
    assert main([*words, "--only", TINY + "impl · joy"]) == 2
    assert "did you mean" in capsys.readouterr().err
