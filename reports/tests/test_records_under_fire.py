"""What was recorded stays, whatever happens next: a full disk, two writers, a clock set back, a torn last line."""

import json
import os
import resource
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from reports.history import add_night, scan
from reports.judging import judge
from reports.records import RecordError, Writer, identity, read
from reports.records.lines import append, loads, whole_lines

HOME = Path(__file__).parents[2]
NOW = datetime(2026, 5, 1, tzinfo=UTC)

FILLING = """
import sys
from reports.records import Writer, identity
writer = Writer(__import__("pathlib").Path(sys.argv[1]), identity("x", ["x"]))
try:
    while True:
        writer.write({"n": writer.rows, "text": "a" * 500})
except OSError as error:
    print(writer.rows, error.strerror)
"""


def record(path, rows=3):
    with Writer(path, identity("perf", ["x"], home=HOME)) as writer:
        pass
    return writer.path


@pytest.fixture
def disk(tmp_path):
    """A disk of 256 KiB where this user may mount one; elsewhere None, and files are limited instead."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)], capture_output=True)
    if done.returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))


def test_a_full_disk_loses_no_row_that_was_written_and_no_file_that_was_there(tmp_path, disk):
    place = disk or tmp_path / "files"
    place.mkdir(exist_ok=True)
    path = record(place / "run.jsonl")
    before = path.read_bytes()
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    done = subprocess.run(
        [sys.executable, "-c", FILLING, str(path)], capture_output=True, text=True, env=environment, timeout=300,
        preexec_fn=None if disk else limit_files,
    )  # fmt: skip
    rows = int(done.stdout.split()[0])
    assert rows > 10, done.stderr
    assert path.read_bytes() == before
    left = read(path.with_name("run.jsonl.part"), partial=True)
    assert [row["n"] for row in left.rows][:rows] == list(range(rows))
    assert not left.complete


def test_a_night_that_does_not_fit_on_the_disk_is_not_there_at_all_and_the_others_stay(tmp_path, disk):
    if disk is None:
        pytest.skip("this user cannot mount a small disk")
    history = disk / "h"
    history.mkdir()
    night = add_night(history, "box", NOW, {"parts": {}}, {"perf.jsonl": record(tmp_path / "a.jsonl")})
    before = {path.name: path.read_bytes() for path in night.iterdir()}
    (tmp_path / "large.jsonl").write_bytes(b"x" * 1_000_000)
    with pytest.raises(OSError, match="No space left"):
        add_night(history, "box", NOW + timedelta(days=1), {"parts": {}}, {"perf.jsonl": tmp_path / "large.jsonl"})
    assert [path.name for path in (history / "box").iterdir()] == [night.name]
    assert {path.name: path.read_bytes() for path in night.iterdir()} == before


def test_a_clock_that_was_set_back_writes_over_no_night_and_what_it_dates_ahead_is_named(tmp_path):
    history, moments = tmp_path / "h", [NOW, NOW - timedelta(days=30), NOW, NOW + timedelta(days=400)]
    for at, moment in enumerate(moments):
        header = {**identity("perf", ["x"], home=HOME), "time": f"{at}"}
        with Writer(tmp_path / f"{at}.jsonl", header) as writer:
            writer.close()
        add_night(history, "box", moment, {"parts": {}, "at": at}, {"perf.jsonl": writer.path})
    found = scan(history, NOW + timedelta(days=1))
    assert sorted(night.manifest["at"] for night in found.nights) == [0, 1, 2]
    assert [left.kind for left in found.left_out] == ["future"]
    assert found.nights[0].manifest["at"] == 1, "in the order that the clock said"


def test_two_writers_of_one_name_keep_both_records(tmp_path):
    header = identity("x", ["x"], home=HOME)
    first, second = (Writer(tmp_path / "run.jsonl", header) for _ in range(2))
    first.write({"whose": 1})
    second.write({"whose": 2})
    second.close()
    first.close()
    assert [read(one.path).rows for one in (first, second)] == [[{"whose": 1}], [{"whose": 2}]]
    assert first.path != second.path


def test_a_torn_last_line_takes_no_later_one_along(tmp_path):
    path = tmp_path / "grows.jsonl"
    append(path, {"n": 1})
    with path.open("a") as file:
        file.write('{"n": 2, "tex')  # its writer was killed
    append(path, {"n": 3})
    append(path, {"n": 4})
    assert whole_lines(path) == [{"n": 1}, {"n": 3}, {"n": 4}]


def test_a_name_that_is_no_utf_8_is_written_and_read_back(tmp_path):
    odd = os.fsdecode(b"gro\xdf.py")  # as sys.argv, paths and messages about them have it
    with Writer(tmp_path / "a.jsonl", identity("x", [odd], home=HOME)) as writer:
        writer.write({"text": f"é {odd}"})
    record = read(writer.path)
    assert (record.header["command"], record.rows) == ([odd], [{"text": f"é {odd}"}])
    assert "é" in writer.path.read_text(encoding="utf-8")
    append(tmp_path / "b.jsonl", {"text": odd})
    assert whole_lines(tmp_path / "b.jsonl") == [{"text": odd}]
    night = add_night(tmp_path / "h", "box", NOW, {"parts": {"perf": {"why": odd}}}, {})
    (found,) = scan(tmp_path / "h", NOW).nights
    assert found.manifest["parts"]["perf"]["why"] == odd
    assert json.loads((night / "night.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": NaN}', "9" * 5000, '{"a"', "", "\ufeff{}"])
def test_whatever_is_wrong_with_a_json_text_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        loads(text)


def test_every_cut_of_a_record_is_refused_or_read_as_far_as_it_goes(tmp_path):
    with Writer(tmp_path / "whole.jsonl", identity("x", ["x"], home=HOME)) as writer:
        for number in range(4):
            writer.write({"n": number})
    whole = writer.path.read_bytes()
    cut = tmp_path / "cut.jsonl"
    seen = set()
    for length in range(0, len(whole), 7):
        cut.write_bytes(whole[:length])
        with pytest.raises(RecordError):
            read(cut)
        try:
            rows = [row["n"] for row in read(cut, partial=True).rows]
        except RecordError:
            continue
        assert rows == list(range(len(rows)))
        seen.add(len(rows))
    assert seen == {0, 1, 2, 3, 4}


HOSTILE = {"parts": 3}


@pytest.mark.parametrize("manifest", [HOSTILE, [], "x", {"parts": {"perf": 3}}, {"parts": {"perf": {"status": []}}}])
def test_a_history_with_a_foreign_manifest_is_judged_all_the_same(tmp_path, manifest, capsys):
    from reports.__main__ import main

    night = add_night(tmp_path / "h", "box", NOW, {"parts": {}}, {"perf.jsonl": record(tmp_path / "a.jsonl")})
    (night / "night.json").write_text(json.dumps(manifest))
    assert main(["judge", str(tmp_path / "h")]) in (0, 1, 2)
    assert "Traceback" not in capsys.readouterr().err


ROW = {
    "series": "s", "group": "g", "subject": "impl", "axes": {}, "workload_hash": "", "unit": "step", "status": "ok",
    "reason": "", "wall_ns": [], "cpu_ns": [], "device_ns": [], "block": [], "warmup_ns": [], "derived": {},
    "verified": {},
}  # fmt: skip
ODD = {
    "no axes": {}, "axes of lists": {"axes": {"workload": [1], "subject": {}}},
    "another unit": {"unit": "parsec"}, "another status": {"status": "splendid"},
    "no time": {"wall_ns": [[0], [0]], "block": [0, 0]}, "other machines": {"subject": "", "group": ""},
}  # fmt: skip


WRONG = [[["a"]], [1, 2], [[]], [[True]], [{}], [None], [[[1]]]]


@pytest.mark.parametrize("samples", WRONG)
def test_a_history_with_samples_that_are_none_names_the_record_and_is_judged_all_the_same(tmp_path, samples, capsys):
    from reports.__main__ import main

    with Writer(tmp_path / "a.jsonl", identity("perf", ["x"], home=HOME)) as writer:
        writer.write(ROW)
    whole = writer.path.read_text().replace('"wall_ns": []', f'"wall_ns": {json.dumps(samples)}')
    writer.path.write_text(whole)
    add_night(tmp_path / "h", "box", NOW, {"parts": {}}, {"perf.jsonl": writer.path})
    assert main(["dashboard", str(tmp_path / "h"), "--out", str(tmp_path / "page")]) == 0
    (left,) = judge(tmp_path / "h").left_out
    assert left.kind == "damaged"
    assert "wall_ns holds something else than samples" in left.why


@pytest.mark.parametrize("block", [[{}], [[]], ["a"], ["a", 1], [None], [True]])
def test_a_history_with_blocks_that_are_no_numbers_names_the_record_and_is_judged_all_the_same(tmp_path, block):
    from reports.__main__ import main

    with Writer(tmp_path / "a.jsonl", identity("perf", ["x"], home=HOME)) as writer:
        writer.write({**ROW, "wall_ns": [[1]] * len(block), "block": [0] * len(block)})
    whole = writer.path.read_text().replace(f'"block": {[0] * len(block)}', f'"block": {json.dumps(block)}')
    writer.path.write_text(whole)
    add_night(tmp_path / "h", "box", NOW, {"parts": {}}, {"perf.jsonl": writer.path})
    assert main(["dashboard", str(tmp_path / "h"), "--out", str(tmp_path / "page")]) == 0
    (left,) = judge(tmp_path / "h").left_out
    assert (left.kind, left.why) == ("damaged", "line 2: block holds something else than whole numbers")


@pytest.mark.parametrize("name", ODD)
def test_a_history_with_foreign_rows_is_judged_and_shown_all_the_same(tmp_path, name, capsys):
    from reports.__main__ import main

    with Writer(tmp_path / "a.jsonl", identity("perf", ["x"], home=HOME)) as writer:
        writer.write({**ROW, **ODD[name]})
        writer.write({**ROW, **ODD[name], "subject": "torch", "series": "t"})
    add_night(tmp_path / "h", "box", NOW, {"parts": {}}, {"perf.jsonl": writer.path})
    assert main(["judge", str(tmp_path / "h")]) in (0, 1, 2)
    assert main(["dashboard", str(tmp_path / "h"), "--out", str(tmp_path / "page")]) == 0
