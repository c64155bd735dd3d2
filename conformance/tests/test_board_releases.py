"""What the board says of several releases of torch: which clauses each of them repaired or broke."""

import json
from dataclasses import replace

from conformance.board import judge, page, releases
from conformance.board.columns import Column
from conformance.board.releases import Answer, Change
from conformance.pages.record_book import RECORD

from .made_records import lay, row

CHECK = "test_a"


def answer(release, **clauses):
    """Clauses by number; one that is broken has a check that is."""
    words = {f"DDP-{name[1:]}": word for name, word in clauses.items()}
    return Answer(release, words, {(clause, CHECK, ""): word == "broken" for clause, word in words.items()})


def test_a_release_repairs_and_breaks_clauses_against_the_one_before_it_whatever_their_order_of_judging():
    old = answer("2.9.0", _001="broken", _002="kept", _003="kept", _004="unsupported")
    new = answer("2.11.0", _001="kept", _002="broken", _003="kept", _004="kept")
    assert releases.changes([new, old]) == [
        Change("DDP-001", "2.11.0", "repaired", (CHECK,)), Change("DDP-002", "2.11.0", "broke", (CHECK,)),
    ]  # fmt: skip


def test_a_clause_that_stays_broken_is_repaired_in_part_where_checks_of_it_pass_now():
    old, new = answer("2.9.0", _001="broken"), answer("2.11.0", _001="broken")
    old = replace(old, checks={**old.checks, ("DDP-001", "test_b", ""): True, ("DDP-001", "test_c", ""): True})
    new = replace(new, checks={**new.checks, ("DDP-001", "test_b", ""): False})  # and test_c was not run
    assert releases.changes([old, new]) == [Change("DDP-001", "2.11.0", "repaired in part", ("test_b",))]


def test_what_a_check_decides_that_the_other_release_was_not_asked_is_no_change_of_the_release():
    old, new = answer("2.9.0", _001="kept", _002="broken"), answer("2.11.0", _001="broken", _002="kept")
    new = replace(new, checks={(clause, "test_new", ""): broken for (clause, *_), broken in new.checks.items()})
    assert releases.changes([old, new]) == []


def test_spans_say_since_when_and_until_when_a_clause_is_broken():
    words = {
        "DDP-001": ("broken", "kept", "kept"), "DDP-002": ("kept", "broken", "broken"),
        "DDP-003": ("broken", "broken", "broken"), "DDP-004": ("broken", "broken", "kept"),
        "DDP-005": ("broken", "kept", "broken"), "DDP-006": ("unsupported", "kept", "kept"),
    }  # fmt: skip
    answers = [Answer(release, {clause: word[place] for clause, word in words.items()}, {})
               for place, release in enumerate(("2.9.0", "2.11.0", "2.13.0"))]  # fmt: skip
    assert {clause: releases.spans(clause, answers) for clause in words} == {
        "DDP-001": "2.9.0 alone", "DDP-002": "since 2.11.0", "DDP-003": "all", "DDP-004": "2.9.0 until 2.11.0",
        "DDP-005": "2.9.0 alone, since 2.13.0", "DDP-006": "",
    }  # fmt: skip


def test_the_page_compares_a_subject_that_was_judged_on_several_releases(tmp_path):
    shown = []
    for name, torch, outcome in (("old", "2.9.0", "failed"), ("new", "2.11.0+cpu", "passed")):
        (tmp_path / name).mkdir()
        rows = [row("DDP-001", outcome, witness="x", deviation="known" if outcome == "failed" else "")]
        source = judge.read_source(lay(tmp_path / name / RECORD, rows))
        source = replace(source, header={**source.header, "versions": {**source.header["versions"], "torch": torch}})
        shown.append(page.Judged(Column(name, "torch", "about"), source))
    page.publish(shown[:1], tmp_path)
    assert not (tmp_path / "releases.html").exists(), "one release is compared with nothing"
    page.publish(shown, tmp_path)
    told = json.loads((tmp_path / "board.json").read_text())["releases"]["torch"]
    assert told["rows"] == [{"clause": "DDP-001", "answers": ["broken", "kept"], "broken": "2.9.0 alone"}]
    assert 'href="releases.html"' in (tmp_path / "index.html").read_text()
    assert "DDP-001</a> repaired" in (tmp_path / "releases.html").read_text()
    assert "| 2.11.0 | repaired | DDP-001 |" in (tmp_path / "releases.md").read_text()
    assert "(releases.md)" in (tmp_path / "board.md").read_text()
