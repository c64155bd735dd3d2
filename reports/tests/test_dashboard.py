"""The page as a file: what it says, that texts stay texts, and that a spoiled history still gets one."""

import json
import os
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from reports.__main__ import main
from reports.dashboard import build
from reports.dashboard.data import runs
from reports.history import HistoryError
from reports.judging import ClauseState, judge
from reports.records import Writer, identity
from reports.simulate.made_histories import acknowledged, hostile, plain, spoiled


class Page(HTMLParser):
    """Elements, addresses and text of a page."""

    def __init__(self, place):
        super().__init__()
        self.tags, self.addresses, self.attributes, self.texts, self.ids = [], [], set(), [], []
        self.feed(place.read_text(encoding="utf-8"))
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.addresses += [value for name, value in attrs if name in ("href", "src")]
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(judged, history, folder of the page)"""
    folder = tmp_path_factory.mktemp("page")
    history = plain(folder)
    judged = judge(history)
    build(judged, history, folder / "out")
    return judged, history, folder / "out"


def test_it_says_first_what_is_wrong_and_how_to_see_it_again(made):
    page = Page(made[2] / "index.html")
    assert "1 series slower" in page.text
    assert "cell000 · cpu · world 2" in page.text
    assert "python -m perf run --sweep nightly" in page.text
    for sentence in made[0].parameters.sentences():
        assert " ".join(sentence.split()) in page.text
    assert len(page.ids) == len(set(page.ids))


def test_a_healthy_night_is_said_to_be_healthy(tmp_path):
    history = plain(tmp_path, nights=6, cells=2)
    judged = judge(history)
    page = Page(build(judged, history, tmp_path / "out"))
    assert judged.health.exit_status == 0
    assert "Healthy" in page.text
    assert "Nothing has regressed" in page.text


def test_every_address_is_inside_the_folder_and_there(made):
    out = made[2]
    addresses = [each for each in Page(out / "index.html").addresses if not each.startswith(("#", "data:"))]
    assert any("/raw/" in each and each.endswith("perf.jsonl") for each in addresses)
    for address in addresses:
        assert not address.startswith(("/", "http", ".."))
        assert (out / address).is_file(), address


def test_the_page_says_how_many_changes_of_clauses_it_leaves_to_the_export(made, tmp_path):
    judged, history, _ = made
    many = replace(judged, clause_changes=judged.clause_changes[:1] * 201)
    assert "The newest 200 of 201;" in Page(build(many, history, tmp_path)).text
    assert "The newest" not in Page(build(judged, history, tmp_path)).text


def test_the_power_of_the_suite_is_shown_where_it_was_measured(tmp_path):
    history = plain(tmp_path, nights=5, cells=1)
    (history / "power").mkdir()
    rate = {"part": "all", "killed": 190, "counted": 200, "rate": 0.95, "low": 0.9104, "high": 0.9726}
    for seed, time in ((7, "2026-11-22T10:00:00+00:00"), (8, "2026-11-21T10:00:00+00:00")):
        with Writer(history / "power" / f"{seed}.jsonl", {**identity("power"), "time": time, "seed": seed}) as writer:
            writer.close({"rates": [rate], "in_sample": {"killed": 621, "of": 621}})
    (history / "power" / "cut.jsonl").write_text("{")
    judged = judge(history)
    page = Page(build(judged, history, tmp_path / "out"))
    assert "seed 7" in page.text
    assert "621 of 621 planted defects" in page.text
    assert "190 200 95.0% 91.0% to 97.3%" in page.text
    assert judged.left_out == ()
    assert page.tags.count("table") == page.tags.count("caption")


def test_every_table_has_a_caption_and_every_field_a_label(made):
    page = Page(made[2] / "index.html")
    assert page.tags.count("table") == page.tags.count("caption")
    assert page.tags.count("select") + page.tags.count("input") <= page.tags.count("label")


def test_data_files_hold_every_number(made):
    judged, _, out = made
    (data,) = out.glob("page-*/data")
    for number, series in enumerate(judged.series):
        text = (data / f"series-{number}.js").read_text()
        name, told = json.loads("[" + text.removeprefix("joinery(").removesuffix(");\n") + "]")
        assert name == f"series-{number}"
        values = [point.value for point in series.points]
        assert told["columns"]["value"] == [pytest.approx(v, rel=1e-4) if v is not None else None for v in values]
        assert len(told["states"]) == len(values)


def test_runs_of_states_are_short_and_whole():
    kept, broken = ClauseState.KEPT, ClauseState.BROKEN
    assert runs((kept, kept, broken, kept)) == "k2b1k1"
    assert runs(()) == ""


def test_texts_that_are_markup_stay_texts(tmp_path):
    history = hostile(tmp_path)
    acknowledged(history, "<b onmouseover=x>note</b>")
    page = Page(build(judge(history), history, tmp_path / "out"))
    assert "<script>window.hacked=1</script>" in page.text
    assert "{{7*7}}" in page.text
    assert "img" not in page.tags
    assert "b" not in page.tags
    assert page.tags.count("script") == 4
    assert not {name for name in page.attributes if name.startswith("on")}
    for place in (tmp_path / "out").glob("page-*/data/*.js"):
        assert place.read_bytes().isascii()


def test_a_spoiled_history_gets_a_page_that_says_what_was_left_out(tmp_path):
    history = plain(tmp_path, nights=8, cells=2)
    expected = spoiled(history)
    judged = judge(history)
    page = Page(build(judged, history, tmp_path / "out"))
    for name, kind in expected.items():
        assert [one.kind for one in judged.left_out if name in one.path] == [kind], name
    for one in judged.left_out:
        assert " ".join(one.path.split()) in page.text
        assert " ".join(one.why.split()) in page.text
    assert "img" not in page.tags


def test_an_empty_history_gets_a_page_that_does_not_say_healthy(tmp_path):
    (tmp_path / "h").mkdir()
    page = Page(build(judge(tmp_path / "h"), tmp_path / "h", tmp_path / "out"))
    assert "Could not judge" in page.text
    assert "Healthy" not in page.text


def test_building_again_replaces_the_page_and_nothing_else(tmp_path):
    history = plain(tmp_path, nights=4, cells=1)
    out = tmp_path / "out"
    (out / "work-of-somebody").mkdir(parents=True)
    build(judge(history), history, out)
    first = list(out.glob("page-*"))
    acknowledgeable = next(history.glob("*/*/perf.jsonl"))
    before = acknowledgeable.read_bytes()
    build(judge(history), history, out)
    build(judge(plain(tmp_path / "b", nights=5, cells=1)), tmp_path / "b" / "history", out)
    assert len(list(out.glob("page-*"))) == len(first) == 1
    assert sorted(path.name for path in out.iterdir() if not path.name.startswith("page-")) == [
        ".page.lock", "exports", "index.html", "work-of-somebody",
    ]  # fmt: skip
    assert acknowledgeable.read_bytes() == before


def test_records_can_be_linked_where_they_lie(tmp_path):
    history = plain(tmp_path, nights=3, cells=1)
    assert main(["dashboard", str(history), "--out", str(tmp_path / "out"), "--raw", "link"]) == 0
    links = [each for each in Page(tmp_path / "out" / "index.html").addresses if each.endswith("perf.jsonl")]
    assert links
    assert all((tmp_path / "out" / link).is_file() for link in links)
    assert not list((tmp_path / "out").glob("page-*/raw"))


def test_a_folder_that_cannot_be_written_is_said_in_one_sentence(tmp_path, capsys):
    history = plain(tmp_path, nights=3, cells=1)
    (tmp_path / "file").write_text("")
    assert main(["dashboard", str(history), "--out", str(tmp_path / "file" / "out")]) == 2
    assert "choose another folder" in capsys.readouterr().err
    with pytest.raises(HistoryError, match="cannot write the page"):
        build(judge(history), history, tmp_path / "file")
    assert main(["dashboard", str(tmp_path / "nothing")]) == 2
    assert not os.path.exists(tmp_path / "nothing")
