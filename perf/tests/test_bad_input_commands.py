"""Bad input to every command of perf: status 2, a sentence with the remedy, no traceback, no file touched."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perf.__main__ import main
from perf.tests import made_up
from reports.records import Writer, identity
from reports.tests.refusing import refused

pytestmark = pytest.mark.slow

ROW = {
    "series": "s", "group": "g", "subject": "impl", "axes": {}, "workload_hash": "", "unit": "step", "status": "ok",
    "reason": "", "wall_ns": [], "cpu_ns": [], "device_ns": [], "block": [], "warmup_ns": [], "derived": {},
    "verified": {},
}  # fmt: skip
SWEEPS = {
    "cells": ('title = "x"\n', "a sweep needs at least one [[cells]] with axes"),
    "listed": ("cells = [1]\n", "a sweep needs at least one [[cells]] with axes"),
    "prose": ("hello", "cannot be read"),
    "entry": ('tilte = "x"\n[[cells]]\n', "unknown entry 'tilte'; did you mean title?"),
    "axis": ('[[cells]]\nwrkload = "mlp"\n', "unknown axis 'wrkload'; did you mean workload"),
    "subject": ('[[cells]]\nsubject = "impl"\n', "give SUBJECT, or --subject"),
    "value": ('[[cells]]\nworkload = "mpl"\n', "workload cannot be 'mpl'; did you mean mlp?"),
    "type": ('[[cells]]\nworld = "two"\n', "world cannot be 'two'; give a number from 1 to 256"),
    "large": ("[[cells]]\nworld = 99999999999999999999\n", "give a number from 1 to 256"),
    "date": ("[[cells]]\nworld = 2020-01-01\n", "give a number from 1 to 256"),
    "nan": ("[[cells]]\nskew_fraction = nan\n", "give a number from 0 to 1"),
    "nested": ('[[cells]]\nworkload = [["mlp"]]\n', "workload cannot be ['mlp']"),
    "table": ("[[cells]]\nhook = {a = 1}\n", "hook cannot be {'a': 1}"),
    "empty": ("[[cells]]\nhook = []\n", "has no value; leave it out for its default"),
    "network": ('[[cells]]\nnetwork = "fast"\n', "write it like 100kbit"),
    "rounds": ("rounds = true\n[[cells]]\n", "rounds cannot be True; give a whole number from 1 to 1000"),
    "none": ("rounds = 0\n[[cells]]\n", "rounds cannot be 0"),
    "block": ("block = 0\n[[cells]]\n", "block cannot be 0; give a whole number from 1"),
    "prints": ("prints = [3]\n[[cells]]\n", "prints cannot be 3; there are targets, laws"),
    "beside": ('beside = ["weather"]\n[[cells]]\n', "beside cannot be 'weather'"),
    "blocks": ('blocks = {mlp = "x"}\n[[cells]]\n', "block cannot be 'x'"),
    "blocked": ("blocks = 3\n[[cells]]\n", "give a table of workloads and numbers"),
    "workload": ("blocks = {mpl = 3}\n[[cells]]\n", "blocks names no workload with 'mpl'"),
}


@pytest.fixture(scope="module")
def laid(tmp_path_factory):
    """A folder with everything that the lines below name."""
    place = tmp_path_factory.mktemp("bad")
    for name, (text, _) in SWEEPS.items():
        (place / f"{name}.toml").write_text(text)
    (place / "bytes.toml").write_bytes(b"\xff\xfe")
    (place / "in_the_way").write_text("a file")
    (place / "folder").mkdir()
    (place / "raises.py").write_text("raise RuntimeError('out of order')")
    made = made_up.rows([{"workload": "tiny", "world": 2}], lambda cell, rank: 1.0, rounds=4)
    whole = made_up.record(place / "whole.jsonl", made).path.read_text()
    lines = whole.splitlines()
    texts = {
        "empty": "", "prose": "hello\n", "list": "[1]\n", "foreign": '{"a": 1}\n{"b": 2}\n', "deep": "[" * 100_000,
        "long": '{"line": "header", "schema": ' + "9" * 6000 + "}\n",
        "later": whole.replace('"schema": 1', '"schema": 2'),
        "altered": "\n".join([*lines[:2], *lines[3:]]) + "\n", "nan": whole.replace('"copy": 1', '"copy": NaN'),
        "typed": whole.replace('"world": 2', '"world": "two"'), "axes": whole.replace('"workload": "tiny", ', ""),
        "ranks": whole.replace('"world": 2', '"world": 3'), "machine": whole.replace('"processor"', '"professor"'),
        "asked": whole.replace('"asked": {', '"asked": 3, "theirs": {'),
        "blocks": whole.replace('"block": [0', '"block": [0, 0'),
        "times": whole.replace('"wall_ns": [[', '"wall_ns": [["a", '),
    }  # fmt: skip
    for name, text in texts.items():
        (place / f"{name}.jsonl").write_text(text)
    (place / "bytes.jsonl").write_bytes(b"\xff\xfe\x00")
    for name, of, rows in (("suite", "conformance", []), ("axeless", "perf", [ROW]), ("rowless", "perf", [])):
        with Writer(place / f"{name}.jsonl", identity(of, ["x"])) as writer:
            for row in rows:
                writer.write(row)
    (place / "odd.trace.json").write_text('{"a": 1}')
    (place / "deep.trace.json").write_text("[" * 100_000)
    return place


@pytest.fixture
def place(laid, monkeypatch):
    monkeypatch.chdir(laid)
    monkeypatch.syspath_prepend(laid)
    return laid


@pytest.mark.parametrize("name", SWEEPS)
def test_a_mistake_in_a_sweep_is_named(place, capsys, name):
    err = refused(main, f"run --sweep {name}.toml --out out", SWEEPS[name][1], place, capsys)
    assert f"{name}.toml" in err


RECORDS = [
    ("absent", "cannot be read"), ("empty", "is no record file"), ("prose", "line 1 is no JSON"),
    ("list", "line 1 is no JSON object"), ("foreign", "is no record file"), ("deep", "nests too deep"),
    ("long", "is no JSON"), ("bytes", "cannot be read"), ("altered", "the file was altered"),
    ("nan", "is no number of JSON"), ("later", "use the version of the program that wrote it"),
    ("typed", "its world is 'two', which is no int"), ("axes", "its axes are no cell's"),
    ("ranks", "of 3 ranks each"), ("blocks", "as there are blocks"),
    ("times", "wall_ns holds something else than samples"),
    ("machine", "has no 'processor'; was it written by another version of perf?"),
    ("asked", "does not say what was asked"), ("axeless", "its axes are no cell's"),
    ("suite", "is a record of conformance, not of perf"),
]  # fmt: skip
READERS = ["show {}", "export {}", "table {}", "laws {}", "compare {} whole.jsonl", "trace {} --out out"]


@pytest.mark.parametrize(("name", "says"), RECORDS)
@pytest.mark.parametrize("command", READERS)
def test_what_is_no_record_of_perf_is_refused_and_named(place, capsys, command, name, says):
    (place / "out").mkdir(exist_ok=True)
    err = refused(main, command.format(f"{name}.jsonl"), says, place, capsys)
    assert f"{name}.jsonl" in err


@pytest.mark.parametrize(("name", "says"), [(f"{name}.jsonl", says) for name, says in RECORDS] + [
    ("odd.trace.json", "is no trace that `perf trace` wrote"),
    ("deep.trace.json", "is no trace that `perf trace` wrote"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_passed_over_and_named(place, capsys, name, says):
    (place / "out").mkdir(exist_ok=True)
    err = refused(main, f"chart {name} --out out", says, place, capsys)
    assert f"passed over: {name}" in err


OTHERS = [
    ("", "the following arguments are required"),
    ("nonsense", "invalid choice: 'nonsense'"),
    ("run --sweep nope --out out", "unknown sweep 'nope'; there are"),
    ("run --sweep absent.toml --out out", "there is no file absent.toml; give the path of a sweep's TOML file"),
    ("run --sweep bytes.toml --out out", "bytes.toml cannot be read"),
    ("run --sweep /absent --out out", "there is no file /absent"),
    ("run --world 0 --out out", "WORLD '0' is not a whole number above 0"),
    ("run --world none --out out", "WORLD 'none'"),
    ("run --world 2,4 --out out", "WORLD '2,4' is not a whole number above 0; give for example 2"),
    ("run --world 99999 --out out", "more than the 256 ranks"),
    ("run --subject nobody --out out", "unknown subject 'nobody'"),
    ("run --subject raises:x --out out", "RuntimeError: out of order"),
    ("run --subject '' --out out", "has an empty part"),
    ("run --backend nope --out out", "unknown backend 'nope'; there are auto, gloo, nccl"),
    ("run --budget soon --out out", "budget 'soon' is no time with its unit; give for example 90s, 10m or 1.5h"),
    ("run --budget 10 --out out", "budget '10' is no time with its unit"),
    ("run --subject impl,impl --out out", "subject 'impl' is named more than once"),
    ("run --budget 0 --out out", "budget '0'"),
    ("run --only nope --out out", "measures no series 'nope' here"),
    ("run --net 1gbit --out out", "say how many by HOSTS, or --hosts"),
    ("run --delay 3us --out out", "say how many by HOSTS, or --hosts"),
    ("run --hosts 2 --world 2 --out out", "leave WORLD out"),
    ("run --hosts 2 --backend nccl --out out", "leave the backend 'nccl' out"),
    ("run --sweep smoke --out in_the_way --judged no", "choose another folder with --out"),
    ("run --sweep smoke --out in_the_way/x --judged no", "choose another folder with --out"),
    ("run --sweep smoke --judged absent.jsonl --out new", "give a record of `make conformance`, or no"),
    ("run --sweep smoke --judged prose.jsonl --out new", "line 1 is no JSON"),
    ("run --sweep smoke --judged whole.jsonl --out new", "is no record of the suite"),
    ("run --sweep smoke --judged suite.jsonl --out new", "has no results on gloo"),
    ("show folder", "cannot be read"),
    ("export whole.jsonl --form xml", "invalid choice: 'xml'"),
    ("export whole.jsonl --out in_the_way/x.csv", "give another file with --out"),
    ("export whole.jsonl --out absent/x.csv", "give another file with --out"),
    ("table rowless.jsonl", "no cell of these records was measured; name the record of"),
    ("table whole.jsonl --suite whole.jsonl", "is no whole record of the suite"),
    ("laws rowless.jsonl", "no cost was measured at three places; name the record of"),
    ("compare rowless.jsonl rowless.jsonl", "have no series in common"),
    ("compare folder folder", "`make perf` writes some"),
    ("compare nobody torch --records absent", "name one with --records"),
    ("compare nobody torch --records whole.jsonl --by subject", "no cell of subject 'nobody'"),
    ("compare abc def --records whole.jsonl --by commit", "no commit of a record"),
    ("compare impl torch --by nonsense", "invalid choice: 'nonsense'"),
    ("trace rowless.jsonl --out folder", "has no sound step on several ranks to trace; name a --workload instead"),
    ("trace gone.jsonl --out folder", "gone.jsonl: cannot be read"),
    ("trace --only nope --out folder", "--only names series of a record: give the RECORD, too"),
    ("trace whole.jsonl --world 4 --out folder", "--world beside a RECORD, whose own cells are traced"),
    ("trace --workload nope --out folder", "workload cannot be 'nope'"),
    ("trace --world none --out folder", "WORLD 'none'"),
    ("trace --subject nobody --out folder", "unknown subject 'nobody'"),
    ("trace --hook nope --out folder", "hook cannot be 'nope'"),
    ("trace --zero maybe --out folder", "zero cannot be 'maybe'; there are off, on, views"),
    ("trace --optimizer nope --out folder", "optimizer cannot be 'nope'; there are sgd, adam"),
    ("trace --cap much --out folder", "--cap 'much' is no number of MiB"),
    ("trace --cap -1 --out folder", "give a number from 0 to 10000"),
    ("trace --cap nan --out folder", "give a number from 0 to 10000"),
    ("trace --out in_the_way", "choose another folder with --out"),
    ("chart whole.jsonl --out in_the_way", "choose another folder with --out"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "says"), OTHERS)
def test_what_cannot_be_had_is_refused(place, capsys, line, says):
    refused(main, line, says, place, capsys)


@pytest.mark.skipif(shutil.which("make") is None, reason="not run: no make")
@pytest.mark.parametrize("line", ["perf HOSTS=2 WORLD=3", "perf NET=1mbit", "perf DELAY=1ms", "conformance NET=1mbit",
                                  "conformance DELAY=1ms"])  # fmt: skip
def test_make_leaves_out_nothing_of_a_network_that_it_is_given(line):
    words = ["make", "-s", *line.split(), f"PYTHON={sys.executable}", "SETUP=0", "ARGS=--dry-run"]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "HOSTS" in done.stderr
