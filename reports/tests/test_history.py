"""The history folder: nights come back, two histories merge by copying, and what is of no use is named."""

import json
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from reports.history import HistoryError, add_file, add_night, add_note, hardware, machine_name, named, opened, scan
from reports.simulate import made_rows as fakes

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def stored(history, tmp_path, day=1, seed=0, machine="box", part="conformance"):
    rows = fakes.conformance_rows() if part == "conformance" else fakes.perf_rows({"mlp": {"impl": 5.0}}, seed)
    rows = [{**row, "day": f"{day}.{seed}"} for row in rows]
    source = fakes.write(tmp_path / f"{part}-{day}-{seed}.jsonl", part, rows)
    began = datetime(2026, 2, day, 2, tzinfo=UTC)
    return add_night(history, machine, began, {"parts": {}}, {f"{part}.jsonl": source})


def test_nights_come_back_in_order_of_time(tmp_path):
    history = opened(tmp_path / "h")
    for day in (3, 1, 2):
        stored(history, tmp_path, day)
    found = scan(history, NOW)
    assert [night.time[:10] for night in found.nights] == ["2026-02-01", "2026-02-02", "2026-02-03"]
    assert [len(night.records("conformance", [], history)[0].rows) for night in found.nights] == [6, 6, 6]
    assert found.left_out == []


def test_two_runs_that_begin_in_the_same_second_lose_nothing(tmp_path):
    history = opened(tmp_path / "h")
    assert stored(history, tmp_path, 1, seed=1) != stored(history, tmp_path, 1, seed=2)
    assert len(scan(history, NOW).nights) == 2


def test_histories_merge_by_copying_one_over_the_other(tmp_path):
    one, other = opened(tmp_path / "one"), opened(tmp_path / "other")
    stored(one, tmp_path, 1)
    stored(other, tmp_path, 2)
    stored(other, tmp_path, 2, machine="second box", seed=9)
    shutil.copytree(other, one, dirs_exist_ok=True)
    shutil.copytree(other, one, dirs_exist_ok=True)  # again: nothing changes
    assert [night.machine for night in scan(one, NOW).nights] == ["box", "box", "second-box"]


def test_what_is_of_no_use_is_left_out_and_named(tmp_path):
    history = opened(tmp_path / "h")
    good = stored(history, tmp_path, 1)
    (history / "README").write_text("hello")
    (history / "box" / "notes.txt").write_text("hello")
    (history / "box" / ".draft-77").mkdir()
    shutil.copytree(good, history / "box" / "2026-02-02T020000Z-abcd")
    (good / "core.1234").write_text("hello")
    stored(history, tmp_path, 20).rename(history / "box" / "2027-02-01T020000Z-abcd")
    (history / "box" / "2026-02-03T020000Z-abcd").mkdir()
    (history / "box" / "2026-99-03T020000Z-abcd").mkdir()
    (history / "box" / "2026-99-03T020000Z-abcd" / "night.json").write_text('{"parts": {}}')
    broken = stored(history, tmp_path, 5)
    (broken / "night.json").write_text("{")
    found = scan(history, NOW)
    assert [night.name for night in found.nights] == [good.name, broken.name]
    assert {(one.path.removeprefix("box/"), one.kind) for one in found.left_out} == {
        ("README", "foreign"),
        ("notes.txt", "foreign"),
        (f"{good.name}/core.1234", "foreign"),
        (".draft-77", "damaged"),
        ("2026-02-02T020000Z-abcd", "duplicate"),
        ("2027-02-01T020000Z-abcd", "future"),
        ("2026-02-03T020000Z-abcd", "damaged"),
        ("2026-99-03T020000Z-abcd", "foreign"),
        (f"{broken.name}/night.json", "damaged"),
    }


def test_a_damaged_record_is_named_and_the_night_stays(tmp_path):
    history = opened(tmp_path / "h")
    night = stored(history, tmp_path, 1)
    (night / "conformance.jsonl").write_bytes(b"\xff\xfe")
    left_out = []
    found = scan(history, NOW)
    assert found.nights[0].records("conformance", left_out, history) == ()
    assert [(one.path, one.kind) for one in left_out] == [(f"box/{night.name}/conformance.jsonl", "damaged")]


def test_a_record_under_another_parts_name_is_refused(tmp_path):
    history = opened(tmp_path / "h")
    night = stored(history, tmp_path, 1)
    (night / "conformance.jsonl").rename(night / "perf.jsonl")
    left_out = []
    assert scan(history, NOW).nights[0].records("perf", left_out, history) == ()
    assert "under the name of perf" in left_out[0].why


def test_reruns_come_after_the_first_run_whatever_their_number(tmp_path):
    history = opened(tmp_path / "h")
    night = stored(history, tmp_path, 1, part="perf")
    for number in (10, 2):
        add_file(night, f"perf-{number}.jsonl", night / "perf.jsonl")
    (found,) = scan(history, NOW).nights
    assert [path.name for path in found.files["perf"]] == ["perf.jsonl", "perf-2.jsonl", "perf-10.jsonl"]


def test_a_night_that_cannot_be_stored_leaves_nothing_behind(tmp_path):
    history = opened(tmp_path / "h")
    with pytest.raises(FileNotFoundError):
        add_night(history, "box", NOW, {"parts": {}}, {"perf.jsonl": tmp_path / "gone"})
    assert list((history / "box").iterdir()) == []


def test_notes_come_back_and_bad_ones_are_named(tmp_path):
    history = opened(tmp_path / "h")
    note = {"machine": "box", "key": "k", "since": "n", "time": NOW.isoformat(), "who": "me", "text": "<b>known"}
    add_note(history, note)
    add_note(history, {**note, "time": (NOW + timedelta(days=2)).isoformat()})
    for number, text in enumerate(("{", "[]", json.dumps({**note, "time": "yesterday"}), json.dumps({"key": "k"}))):
        (history / "notes" / f"{number}.json").write_text(text)
    found = scan(history, NOW)
    assert [(one.key, one.text) for one in found.notes] == [("k", "<b>known")]
    assert sorted(one.kind for one in found.left_out) == ["damaged"] * 4 + ["future"]


def test_a_history_that_cannot_be_written_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match=r"cannot write into .*file"):
        opened(tmp_path / "file")


@pytest.mark.parametrize("name", ["", "…", "notes", "../"])
def test_names_that_cannot_name_a_machine_are_refused(name):
    with pytest.raises(HistoryError, match="cannot name a machine"):
        named(name)


def test_the_machines_name_follows_its_hardware_and_not_its_host():
    facts = {"host": "a", "processor": "Intel(R) Xeon(R) Gold 6", "cores": 8, "gpus": [{"name": "NVIDIA H200"}]}
    assert machine_name(facts) == machine_name({**facts, "host": "b", "kernel": "7"})
    assert machine_name(facts).startswith("intel-r-xeon-r-gold-6-8-cores-nvidia-h200-")
    assert hardware(facts) != hardware({**facts, "cores": 4})
    assert hardware({**facts, "gpus": []}) == hardware({k: v for k, v in facts.items() if k != "gpus"})
