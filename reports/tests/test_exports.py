"""What exports say, and that nothing in a name or a note is more than text."""

import csv
import io
import json
import shutil
from dataclasses import replace
from datetime import datetime, timedelta
from xml.etree import ElementTree

import pytest

from reports.__main__ import main
from reports.exports import FORMS, VIEWS, export, export_all, machine_of
from reports.exports.otava import otava_config, otava_csv
from reports.findings import Urgency, findings
from reports.history import HistoryError
from reports.judging import judge
from reports.simulate.made_histories import HOSTILE, hostile, plain


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """30 nights; one cell became slower four nights ago."""
    return judge(plain(tmp_path_factory.mktemp("plain")))


@pytest.fixture(scope="module")
def hostile_one(tmp_path_factory):
    return judge(hostile(tmp_path_factory.mktemp("hostile")))


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))



@pytest.mark.parametrize("clock", ["00:00", "00:21", "01:30", "12:00", "23:59"])
def test_the_made_history_is_whole_at_every_hour(tmp_path, clock):
    """Its night is not taken for missed whatever the hour at which the tests run, midnight in between included."""
    moment = datetime.fromisoformat(f"2026-03-02T{clock}:30+00:00")
    history = plain(tmp_path, nights=12, cells=1, now=moment)
    (machine,) = judge(history, now=moment + timedelta(minutes=2)).machines
    assert [night.status for night in machine.nights].count("missed") == 1
    assert machine.nights[-1].status == "whole"


def test_the_planted_slow_down_is_the_one_alarm(judged):
    (alarm,) = [one for one in findings(judged) if one.urgency is Urgency.ALARM]
    assert alarm.series.axes["workload"] == "cell000"
    assert 0.05 < alarm.change.effect < 0.15


@pytest.mark.parametrize("view", VIEWS)
def test_csv_and_json_of_a_view_hold_the_same_rows(judged, view):
    table, told = rows(export(judged, "csv", view=view)), json.loads(export(judged, "json", view=view))
    assert told["view"] == view
    assert told["health"] == "regressed"
    assert len(table) == len(told["rows"])
    if table:
        assert list(table[0]) == list(told["rows"][0])


def test_points_hold_every_night_of_every_series(judged):
    assert len(rows(export(judged, "csv", view="points"))) == sum(len(one.points) for one in judged.series)


def test_a_text_that_a_spreadsheet_would_calculate_is_quoted_in_csv_and_exact_in_json(hostile_one):
    assert HOSTILE.startswith("=")
    names = {row["name"] for row in rows(export(hostile_one, "csv"))}
    assert names
    assert all(name.startswith("'=") for name in names)
    assert all(row["name"].startswith("=") for row in json.loads(export(hostile_one, "json"))["rows"])


def test_openmetrics_has_each_family_once_and_ends_as_it_must(hostile_one):
    lines = export(hostile_one, "openmetrics").split("\n")
    assert lines[-2:] == ["# EOF", ""]
    types = [line for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types)) == 10
    names = [line.split()[2] for line in types]
    seen = [line.partition("{")[0].split()[0] for line in lines if line and not line.startswith("#")]
    assert [name for at, name in enumerate(seen) if at == 0 or seen[at - 1] != name] == [n for n in names if n in seen]
    assert 'joinery_health{machine="' in export(hostile_one, "openmetrics")
    escaped = [line for line in lines if '\\"' in line]
    assert escaped, "the hostile name holds a quotation mark"
    assert all(line.replace('\\"', "").count('"') % 2 == 0 for line in escaped)


def test_junit_fails_what_alarms_and_skips_what_has_no_answer(judged, hostile_one):
    root = ElementTree.fromstring(export(judged, "junit"))
    (suite,) = root
    failed = [case for case in suite if case.find("failure") is not None]
    assert suite.get("failures") == str(len(failed)) == "1"
    assert "cell000" in failed[0].get("name")
    assert "slower +" in failed[0].find("failure").get("message")
    series = [case for case in suite if case.get("classname") == "nightly.series"]
    silent = [one for one in judged.series if one.state.value in ("missing", "learning")]
    assert sum(case.find("skipped") is not None for case in series) == len(silent)
    ElementTree.fromstring(export(hostile_one, "junit"))  # control characters and all


def test_of_a_machine_that_is_silent_nothing_has_passed_and_missed_nights_do_not_count(tmp_path):
    moment = datetime.fromisoformat("2026-03-02T12:00:00+00:00")
    history = plain(tmp_path, nights=12, cells=1, now=moment)
    late = judge(history, now=moment + timedelta(days=5))
    cases = ElementTree.fromstring(export(late, "junit")).findall("testsuite/testcase")
    assert len(cases) > 8
    assert not [case.get("name") for case in cases if not len(case)]
    assert "builder: could not judge, 11 nights; no run for 4 nights" in export(late, "markdown")


def test_markdown_keeps_a_name_from_being_markup(judged, hostile_one):
    assert export(judged, "markdown").startswith("## ❌ Nightly: regressed")
    text = export(hostile_one, "markdown")
    prose, commands = text.split("\nReproduce:\n")
    assert "<script" in prose
    assert "<script" not in prose.replace("\\<", "")
    assert commands.strip().startswith("```sh\n")  # what stands in a fence is only shown
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in tables} == {6}


def test_otava_gets_a_row_for_each_night_that_measured_and_a_column_for_each_series(judged):
    table = rows(export(judged, "otava"))
    (machine,) = judged.machines
    measured = {p.night for one in judged.series for p in one.points if p.value is not None}
    assert [row["night"] for row in table] == [night.name for night in machine.nights if night.name in measured]
    keys = [one.key for one in judged.series]
    assert list(table[0]) == ["time", "night", "commit", *keys]
    assert any(row[keys[0]] for row in table)
    config = otava_config(judged, {machine.name: "it.csv"})
    assert all(f'column: "{key}"' in config for key in keys)


def test_otava_gets_an_empty_table_of_a_machine_that_measured_nothing(judged):
    (machine,) = judged.machines
    assert otava_csv(replace(judged, series=[]), machine) == "time,night,commit\n"


def test_the_badge_says_how_many_alarms(judged):
    root = ElementTree.fromstring(export(judged, "badge"))
    assert root.get("aria-label") == "nightly: regressed: 1"


def test_an_empty_history_exports_too(tmp_path):
    (tmp_path / "h").mkdir()
    places = export_all(judge(tmp_path / "h"), tmp_path / "out")
    assert all(place.is_file() for place in places)
    assert "could not judge" in (tmp_path / "out" / "summary.md").read_text()


def test_the_command_line_writes_one(tmp_path, capsys):
    history = plain(tmp_path, nights=3)
    for form in FORMS:
        assert main(["export", str(history), form, "--out", str(tmp_path / form)]) == 0
        assert (tmp_path / form).stat().st_size
    assert main(["export", str(history), "badge", "--out", str(tmp_path / "none" / "badge")]) == 2
    assert "choose another --out" in capsys.readouterr().err


def test_an_export_may_be_of_one_machine(tmp_path, capsys):
    history = plain(tmp_path, nights=3)
    (machine,) = judge(history).machines
    shutil.copytree(history / machine.name, history / "another", ignore=shutil.ignore_patterns("*.jsonl"))
    both = judge(history)
    assert {row["machine"] for row in rows(export(both, "csv", view="machines"))} == {machine.name, "another"}
    for form in FORMS:
        assert main(["export", str(history), form, "--machine", "nobody"]) == 2
        assert f"no machine 'nobody'; it holds another, {machine.name}" in capsys.readouterr().err
    assert main(["export", str(history), "csv", "--view", "nights", "--machine", "another"]) == 0
    assert {row["machine"] for row in rows(capsys.readouterr().out)} == {"another"}
    with pytest.raises(HistoryError, match="use --machine"):
        export(both, "otava")
    assert rows(export(machine_of(both, machine.name), "otava"))
