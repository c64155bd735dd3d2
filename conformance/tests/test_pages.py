"""Pages made from records: what they show, what merges, what is left out, and that no text can break out of them."""

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from html.parser import HTMLParser

import pytest

from conformance.__main__ import main
from conformance.clauses import load
from conformance.engine.judgement import Standing
from conformance.pages import badge, view
from conformance.pages.record_book import open_book
from conformance.pages.rows import rows
from conformance.pages.write import write

from .made_records import ROWS, lay, row

HOSTILE = "</script></style><img src=x onerror=alert(1)>\"'&| `a``b` [x](javascript:alert()) {{ 7 * 7 }} \u2028\nsecond"


class Parts(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def count(self, tag):
        return sum(name == tag for name, _ in self.elements)


def made(tmp_path, *records):
    paths, damaged = write(list(records), tmp_path / "pages")
    return {path.name: path.read_text(encoding="utf-8") for path in paths}, damaged


def table_of(*paths):
    book = open_book(list(paths))
    return book, rows(book, load())


def test_a_page_shows_every_state_with_its_evidence(tmp_path):
    pages, _ = made(tmp_path, lay(tmp_path / "a.jsonl", stale=["torch: deviation 3 did not show"]))
    text = Parts(pages["index.html"]).text
    for words in (
        "1 clause broken that no list expects", "assert 1 == 2", "at test_x.py:3", "Listed: it is known",
        "https://example.org/7", "it stops at 42", "torch lacks it", "no such device", "deviation 3 did not show",
        "--subject package.torch:subject --backend gloo --worlds 2 --select JOIN-002 --check test_something",
        "a processor", "2.0 GiB", "0123456789abcdef", "RAISES TypeError",
        "exposes exactly three public names",  # the statement, from the suite's own catalogue
        "conformance/checks/test_join_interfaces.py:",
    ):  # fmt: skip
        assert words in text, words


def test_the_command_of_a_break_repeats_all_that_the_run_was_told_of_its_ranks(tmp_path):
    asked = {"backend": "gloo", "worlds": [2, 3], "select": ["*"], "poison": True, "deadline": 2.5}
    pages, _ = made(tmp_path, lay(tmp_path / "a.jsonl", asked=asked))
    for name in ("index.html", "summary.md"):
        assert "--check test_something --poison --deadline 2.5" in Parts(pages[name]).text, name


def test_states_of_cells_and_marks_follow_the_judgement(tmp_path):
    _, table = table_of(lay(tmp_path / "a.jsonl"))
    cells = {each.id: each.cells[0] for each in table}
    assert {name: cell.state for name, cell in cells.items()} == {
        "JOIN-001": "kept", "JOIN-002": "broken", "ZERO-001": "unsupported", "ZERO-002": "limit"
    }  # fmt: skip
    assert [(mark.world, mark.state) for mark in cells["JOIN-002"].marks] == [(2, "broken"), (3, "listed")]
    assert cells["ZERO-002"].words == "limit ended-not-run ended-passed"


def test_a_card_counts_clauses_as_the_run_itself_did(tmp_path):
    book, table = table_of(lay(tmp_path / "a.jsonl", clauses=["JOIN-001", "JOIN-002", "ZERO-001", "ZERO-002", "X-001"]))
    (card,) = view.cards(book, table)
    assert (card.total, card.kept, card.limit, card.counts["not-run"]) == (5, 2, 1, 1)
    assert Counter(book.standings(book.columns[0]).values())[Standing.KEPT] == card.kept
    cover = card.coverage["D"]
    assert (cover["MUST"].total, cover["MUST"].asked, cover["MUST"].answered) == (1, 1, 0)  # untestable: not counted
    assert sum(part.width for part in card.parts) == pytest.approx(1000, abs=0.1)


# --- hostile texts ----------------------------------------------------------------------------------------------------


@pytest.fixture
def hostile(tmp_path):
    evil = row(
        HOSTILE, "failed", subject=HOSTILE, witness=HOSTILE, detail=HOSTILE, deviation=HOSTILE, check=HOSTILE,
        scenario=HOSTILE, level=HOSTILE, backend=HOSTILE,
    )  # fmt: skip
    news = evil | {"clause": "X", "deviation": ""}
    quiet = evil | {"clause": "Y", "outcome": "passed", "notes": [HOSTILE]}
    told = {HOSTILE: {"title": HOSTILE, "level": HOSTILE, "error": HOSTILE, "area": HOSTILE}}
    return lay(
        tmp_path / "evil.jsonl", [evil, news, quiet], host=HOSTILE, stale=[HOSTILE], catalogue=told,
        areas={HOSTILE: HOSTILE},
        deviations={HOSTILE: [{"reason": HOSTILE, "link": "javascript:alert(1)"}]}, command=[HOSTILE], commit=HOSTILE,
        environment={"TORCH_X": HOSTILE}, launcher={HOSTILE: HOSTILE},
    )  # fmt: skip


def test_no_text_of_a_record_becomes_markup(tmp_path, hostile):
    plain, _ = made(tmp_path / "plain", lay(tmp_path / "a.jsonl"))
    pages, _ = made(tmp_path / "evil", hostile)
    found = Parts(pages["index.html"])
    assert found.count("script") == Parts(plain["index.html"]).count("script") == 1
    assert found.count("img") == 0
    assert not [name for _, attrs in found.elements for name in attrs if name.startswith("on")]
    assert not [attrs for _, attrs in found.elements if (attrs.get("href") or "").startswith("javascript")]
    assert HOSTILE.splitlines()[0].split("\u2028")[0] in found.text


def test_the_page_forbids_itself_to_load_anything(tmp_path, hostile):
    pages, _ = made(tmp_path, hostile)
    found = Parts(pages["index.html"])
    policy = next(attrs["content"] for tag, attrs in found.elements if attrs.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not [attrs for _, attrs in found.elements if "src" in attrs]
    assert [attrs["href"] for tag, attrs in found.elements if tag == "link"] == ["data:,"]


def test_a_summary_keeps_its_tables_and_holds_no_markup(tmp_path, hostile):
    pages, _ = made(tmp_path, hostile)
    text = next(content for name, content in pages.items() if name == "summary.md")
    outside = re.sub(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)  # what code spans hold is shown as it is
    assert outside.count("`") == outside.count("\\`")
    assert "<img" not in outside
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert tables
    for line in tables:
        bars = line.replace("\\|", "").count("|")
        assert bars in (11, 8, 6, 5), line


def test_a_badge_is_a_picture_whatever_the_name(tmp_path, hostile):
    pages, _ = made(tmp_path, hostile)
    (name,) = [name for name in pages if name.endswith(".svg")]
    assert "/" not in name
    assert ElementTree.fromstring(pages[name]).get("aria-label") == "conformance: 1 kept, 2 broken"
    assert ElementTree.fromstring(badge.picture(HOSTILE, "<1>", "#000")).tag.endswith("svg")


# --- several records --------------------------------------------------------------------------------------------------


def test_records_of_two_machines_stand_side_by_side(tmp_path):
    here = lay(tmp_path / "a.jsonl")
    there = lay(tmp_path / "b.jsonl", [row("JOIN-001", "crashed", witness="signal 11")], host="there")
    book, table = table_of(here, there)
    assert [(column.subject, column.host) for column in book.columns] == [("torch", "here"), ("torch", "there")]
    assert view.abouts(book.columns) == ["1.0 · gloo · on here", "1.0 · gloo · on there"]
    assert [cell.state for cell in table[0].cells] == ["kept", "broken"]
    assert not book.was_asked("JOIN-002", book.columns[1])
    pages, _ = made(tmp_path, here, there)
    assert {"badge-torch-1.0-gloo-on-here.svg", "badge-torch-1.0-gloo-on-there.svg"} <= set(pages)


def test_parts_of_one_question_make_one_column_and_the_later_answer_counts(tmp_path):
    first = lay(tmp_path / "a.jsonl")
    second = lay(tmp_path / "b.jsonl", [row("JOIN-002"), row("JOIN-002", world=4)], time="2026-01-03T00:00:00+00:00")
    for order in ((first, second), (second, first)):
        book, table = table_of(*order)
        (column,) = book.columns
        assert {each.result.case.world: str(each.result.outcome) for each in book.of("JOIN-002", column)} == {
            2: "passed", 3: "hung", 4: "passed"
        }  # fmt: skip
        assert {each.id: each.cells[0].state for each in table}["JOIN-002"] == "listed"


def test_other_versions_and_commits_are_other_columns(tmp_path):
    records = [
        lay(tmp_path / "a.jsonl"),
        lay(tmp_path / "b.jsonl", versions={"torch": "2.11.0"}),
        lay(tmp_path / "c.jsonl", commit="fedcba9876543210"),
    ]
    book, _ = table_of(*records)
    assert len(book.columns) == 3
    assert any("torch 2.11.0" in about for about in view.abouts(book.columns))
    assert any("at fedcba98" in about for about in view.abouts(book.columns))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.write_text(path.read_text()[:-200]), "no footer"),
        (lambda path: path.write_text(path.read_text().replace('"passed"', '"went well"', 1)), "went well"),
        (lambda path: path.write_text(path.read_text().replace('"of": "conf', '"of": "non')), "record of nonormance"),
        (lambda path: path.write_text(path.read_text().replace('"areas": {', '"areas": 7, "x": {')), "its 'areas'"),
        (lambda path: path.write_text(path.read_text().replace('"clauses": ["', '"clauses": [7, "')), "its 'clauses'"),
        (lambda path: path.unlink(), "cannot be read"),
    ],
)
def test_a_damaged_record_is_named_and_left_out(tmp_path, capsys, spoil, says):
    whole, bad = lay(tmp_path / "a.jsonl"), lay(tmp_path / "bad.jsonl")
    spoil(bad)
    assert main(["page", str(whole), str(bad), "--out", str(tmp_path / "pages")]) == 0
    err = capsys.readouterr().err
    assert "bad.jsonl" in err
    assert says in err
    text = (tmp_path / "pages/index.html").read_text()
    assert "1 record left out" in text
    assert "bad.jsonl" in text


def test_without_a_whole_record_there_is_no_page(tmp_path, capsys):
    assert main(["page", str(tmp_path / "absent"), "--out", str(tmp_path / "pages")]) == 2
    assert "absent" in capsys.readouterr().err
    assert not (tmp_path / "pages").exists()


def test_a_folder_that_cannot_be_written_is_bad_input(tmp_path, capsys):
    record = lay(tmp_path / "a.jsonl")
    (tmp_path / "in_the_way").write_text("a file")
    for words in (["page", str(record)], ["compare", str(record), str(record)]):
        assert main([*words, "--out", str(tmp_path / "in_the_way")]) == 2
        assert "cannot write into" in capsys.readouterr().err


# --- two runs ---------------------------------------------------------------------------------------------------------

CHANGES = [
    # before, after (None: not there), what it is called
    ("passed", "failed", "Newly broken"), (None, "hung", "Newly broken"), ("unsupported", "crashed", "Newly broken"),
    ("listed", "failed", "Newly broken"), ("failed", "passed", "Newly kept"), ("listed", "passed", "Newly kept"),
    ("passed", "listed", "Newly listed"), ("failed", "listed", "Newly listed"),
    ("passed", "not run", "No longer answered"), ("listed", "unsupported", "No longer answered"),
    (None, "passed", "New"), (None, "listed", "New"),
    ("passed", None, "Gone"), ("failed", None, "Gone"), ("passed", "passed", None), ("failed", "hung", None),
    ("not run", "unsupported", None),
]  # fmt: skip


def one(outcome):
    if outcome is None:
        return [row("ZERO-001")]
    listed = {"outcome": "failed", "deviation": "it is known"} if outcome == "listed" else {}
    return [row("ZERO-001"), row("JOIN-001", outcome, witness="seen") | listed]


@pytest.mark.parametrize(("before", "after", "name"), CHANGES)
def test_every_change_has_its_name(tmp_path, capsys, before, after, name):
    first, second = lay(tmp_path / "a.jsonl", one(before)), lay(tmp_path / "b.jsonl", one(after))
    status = main(["compare", str(first), str(second), "--out", str(tmp_path / "c")])
    out = capsys.readouterr().out
    assert status == (1 if name == "Newly broken" else 0)
    headings = [line for line in out.splitlines() if line.endswith("(1)")]
    assert headings == ([f"{name} (1)"] if name else [])
    assert ("again: python -m conformance run" in out) is (name == "Newly broken")
    for file in ("compare.md", "compare.html"):
        assert (name or "nothing changed").lower() in (tmp_path / "c" / file).read_text().lower()


def test_worlds_that_changed_alike_are_one_line(tmp_path, capsys):
    good = [row("JOIN-001", world=world) for world in (1, 2, 3)]
    bad = [good[0], *(each | {"outcome": "failed", "witness": "no"} for each in good[1:])]
    assert main(["compare", str(lay(tmp_path / "a.jsonl", good)), str(lay(tmp_path / "b.jsonl", bad))]) == 1
    out = capsys.readouterr().out
    assert "JOIN-001 · torch · gloo · worlds 2, 3: passed → failed · test_something" in out
    assert "1 newly broken; 1 cases are as they were" in out


def test_a_comparison_escapes_what_it_shows(tmp_path, hostile, capsys):
    assert main(["compare", str(lay(tmp_path / "a.jsonl", ROWS)), str(hostile), "--out", str(tmp_path / "c")]) == 1
    capsys.readouterr()
    found = Parts((tmp_path / "c/compare.html").read_text())
    assert (found.count("script"), found.count("img")) == (1, 0)


def test_runs_without_a_case_in_common_are_not_compared(tmp_path, capsys):
    first, second = ([row("JOIN-001", world=world)] for world in (2, 3))
    assert main(["compare", str(lay(tmp_path / "a.jsonl", first)), str(lay(tmp_path / "b.jsonl", second))]) == 2
    assert "have no case in common" in capsys.readouterr().err


def test_comparing_with_what_is_no_record_is_bad_input(tmp_path, capsys):
    assert main(["compare", str(lay(tmp_path / "a.jsonl")), str(tmp_path / "absent")]) == 2
    assert "absent" in capsys.readouterr().err


def test_a_cell_says_part_until_some_record_has_all_scenarios(tmp_path):
    quick = lay(tmp_path / "a.jsonl", part={"torch": ["JOIN-001"]})
    _, table = table_of(quick)
    assert [row.id for row in table if row.cells[0].in_part] == ["JOIN-001"]
    assert made(tmp_path, quick)[0]["index.html"].count(">part</small>") == 1
    full = lay(tmp_path / "b.jsonl", time="2026-01-03T03:04:05+00:00")
    book, table = table_of(quick, full)
    assert len(book.columns) == 1
    assert not any(row.cells[0].in_part for row in table)
