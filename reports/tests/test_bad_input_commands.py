"""Bad input to every command of reports: status 2, a sentence with the remedy, no traceback, no file touched."""

import os
from pathlib import Path

import pytest

from reports.__main__ import main
from reports.tests.refusing import refused


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "in_the_way").write_text("a file")
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes-only" / "notes").mkdir(parents=True)
    (tmp_path / "notes-only" / "notes" / "a.json").write_text("[" * 100_000)
    monkeypatch.chdir(tmp_path)
    # the suite is asked as a process
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return tmp_path


HERE = Path(__file__).parents[2]
NIGHT = "nightly --history h --out out"
OWN = "--conformance 'x {out}' --perf ''"  # commands of one's own know their subjects
LINES = [
    ("", "the following arguments are required"),
    ("nonsense", "invalid choice: 'nonsense'"),
    ("judge absent", "there is no history at absent: name the folder that `nightly` was given"),
    ("judge in_the_way", "there is no history at in_the_way"),
    ("judge folder", "holds no night that can be read"),
    ("judge notes-only", "holds no night that can be read"),
    ("dashboard absent", "there is no history at absent"),
    ("dashboard folder --out in_the_way", "cannot write into in_the_way: File exists; choose another folder"),
    ("dashboard folder --out folder/page", "folder/page lies in the history"),
    (f"nightly --history new --out new {OWN}", "lies in the history, whose folders are machines and nights"),
    ("dashboard folder --raw maybe", "invalid choice: 'maybe'"),
    ("export folder nope", "invalid choice: 'nope'"),
    ("export folder csv --view nope", "invalid choice: 'nope'"),
    ("export absent csv", "there is no history at absent"),
    ("export folder otava --machine nobody", "holds no night that can be read"),
    ("export folder csv", "holds no night that can be read; `export folder csv --view left-out` says why"),
    ("export folder csv --view left-out --out in_the_way/x", "choose another --out"),
    ("ack nobody --note x --history absent", "there is no history at absent"),
    ("ack nobody --note x --history folder", "there is no series or clause 'nobody' in this history"),
    ("ack nobody --note '' --history folder", "an acknowledgement needs a note: say why with --note"),
    ("ack nobody --history folder", "the following arguments are required: --note"),
    ("simulate folder", "name a new folder"),
    ("simulate new --nights 0", "nights 0 is not a whole number above 0; give for example --nights 2"),
    ("simulate new --nights x", "invalid int value: 'x'"),
    ("simulate new --cells 0", "cells 0 is not a whole number above 0"),
    ("simulate in_the_way/x --nights 2 --cells 1", "cannot write into in_the_way/x"),
    ("simulate new --nights 2 --seed -1", "seed -1 is below 0; give for example --seed 7"),
    ("power --series 1 --seed -1", "seed -1 is below 0"),
    ("power --series 0", "series 0 is not a whole number above 0"),
    ("power --series x", "invalid int value: 'x'"),
    ("power --series 1 --out in_the_way/x", "cannot write into in_the_way"),
    ("power --series 1 --out folder", "is a folder; name a file with --out"),
    (f"{NIGHT} --budget soon", "'soon' is no budget: say, for example, 90s, 30m or 1.5h"),
    (f"{NIGHT} --budget 0m", "'0m' is no budget"),
    (f"{NIGHT} --budget -3m", "expected one argument"),
    (f"{NIGHT} --subject nobody", "--subject nobody: unknown subject 'nobody': use one of impl, torch"),
    (f"{NIGHT} --clauses-within never", "'never' is no budget"),
    (f"{NIGHT} --world 0", "world 0 is not a whole number above 0"),
    (f"{NIGHT} --world x", "invalid int value: 'x'"),
    (f"{NIGHT} --conformance '' --perf ''", "there is nothing to do: both --conformance and --perf are empty"),
    (f"{NIGHT} --conformance '{{nope}} {{out}}'", "it may use {python} {out}"),
    (f"{NIGHT} --perf 'x'", "does not say {out}: its record would not be found"),
    (f"{NIGHT} --perf \"x ' {{out}}\"", "cannot be filled in"),
    (f"{NIGHT} --machine '///'", "use letters and digits, e.g. --machine builder-1"),
    (f"{NIGHT} --machine ..", "use letters and digits"),
    (f"{NIGHT} --machine notes", "'notes' cannot name a machine"),
    (f"nightly --history in_the_way --out out {OWN}", "cannot write into in_the_way"),
    (f"nightly --history folder --out in_the_way {OWN}", "cannot write into in_the_way"),
    ("gpu --minutes 0 --out out", "0 minutes are no time; give for example --minutes 25"),
    ("gpu --minutes nan --out out", "nan minutes are no time"),
    ("gpu --minutes inf --out out", "inf minutes are no time"),
    ("gpu --minutes x --out out", "invalid float value: 'x'"),
    ("gpu --only nope --out out", "no part 'nope'"),
    ("gpu --list --only nope", "no part 'nope'"),
    ("gpu --select x --out out", "--select shortens a rehearsal"),
]


@pytest.mark.parametrize(("line", "says"), LINES)
def test_what_cannot_be_had_is_refused(place, capsys, line, says):
    refused(main, line, says, place, capsys)


def test_a_command_that_fails_itself_gives_no_verdict(place, monkeypatch, capsys):
    monkeypatch.setattr("reports.__main__._judge", lambda history: history / 0)
    assert main(["judge", "folder"]) == 2
    said = capsys.readouterr().err
    assert "TypeError" in said
    assert said.endswith("reports: the command itself failed, which says nothing of what it was asked\n")
