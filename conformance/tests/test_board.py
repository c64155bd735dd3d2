"""The board: its list, its environments, which answers are made anew, and what the page says of them."""

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from conformance.__main__ import main
from conformance.bad_input import BadInput
from conformance.board import classes, columns, environment, judge, page
from conformance.board.columns import Column, choose, load
from conformance.clauses import load as load_clauses
from conformance.deviations import Deviation, built_in
from conformance.pages.record_book import RECORD
from conformance.ranks import Caught, Cluster, Raised, caught
from conformance.results import Case, Outcome, Result
from conformance.subjects import Subject, Unsupported, module_of
from conformance.subjects.foreign import taken

from .made_records import lay, row

ADAPTERS = Path(columns.__file__).parents[1] / "subjects" / "foreign"
CATALOGUE = load_clauses()
HOSTILE = "<script>alert(1)</script>"


@pytest.mark.parametrize("column", load(), ids=lambda column: column.name)
def test_every_column_has_a_short_adapter_and_exact_releases(column):
    if column.subject not in ("impl", "torch"):
        adapter = ADAPTERS / f"{module_of(column.subject).rpartition('.')[2]}.py"
        assert len([line for line in adapter.read_text().splitlines() if line.strip()]) <= 60
    assert all("==" in release for release in column.requires)
    assert not (column.torch and column.requires)  # such an environment is shared by all columns of one release
    known = [each for each in classes.of(column) if each.place.startswith(f"{column.name}.toml")]
    for each in known:
        kinds = classes.BY_DESIGN, classes.NOT_OFFERED, classes.FAULT, *([classes.OF_TORCH] if column.like else [])
        assert each.reason.startswith(kinds), each
        assert each.witness, f"{each}: without a pattern of the witness any other break would pass for this one"
        assert each.link or not each.reason.startswith(classes.BY_DESIGN), each
        assert not classes.says_little(each), f"{each}: name the checks, or any of their breaks would pass for this one"
        assert any(fnmatchcase(clause.id, each.clause) for clause in CATALOGUE), each



@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("column = 3", "written as"),
        ('[[column]]\nname = "a"\nsubject = "impl"', "about is missing"),
        ('[[column]]\nname = "../a"\nsubject = "impl"\nabout = "x"', "no folder's"),
        ('[[column]]\nname = "a"\nsubject = "impl"\nabout = "x"\nhue = 3', "unknown key 'hue'"),
        ('[[column]]\nname = "a"\nsubject = "impl"\nabout = "x"\n' * 2, "two columns have one name"),
        ('[[column]]\nname = 3\nsubject = "impl"\nabout = "x"', "name must be a text, not 3"),
        ('[[column]]\nname = "a"\nsubject = ["impl"]\nabout = "x"', "subject must be a text"),
        ('[[column]]\nname = "a"\nsubject = "impl"\nabout = "x"\nrequires = "x"', "requires must be a list of texts"),
        ('[[column]]\nname = "a"\nsubject = "impl"\nabout = "x"\nrequires = [3]', "requires must be a list of texts"),
        ('[[column]]\nname = "a"\nsubject = "impl"\nabout = "x"\ndependencies = 1', "must be true or false, not 1"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused_by_name(tmp_path, text, words):
    path = tmp_path / "columns.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=words):
        load(path)


def test_an_unknown_column_is_refused_with_those_that_there_are(capsys):
    assert main(["board", "--columns", "torhc"]) == 2
    assert "there is no column 'torhc'; there are impl, torch" in capsys.readouterr().err
    assert [column.name for column in choose("torch, impl")] == ["torch", "impl"]


def test_what_a_subject_declares_to_lack_ends_a_check_as_unsupported():
    subject = Subject("mine", "1", {}, {"join_hook": "we have none", "device_mesh": "no meshes"})
    missing = AttributeError("no join_hook", name="join_hook", obj=None)
    refused = TypeError("Mine.__init__() got an unexpected keyword argument 'device_mesh'")
    assert "mine lacks join_hook: we have none" in str(subject.excuse(missing))
    assert "no meshes" in str(subject.excuse(refused))
    assert subject.excuse(TypeError("got an unexpected keyword argument 'other'")) is None
    assert subject.excuse(ValueError("join_hook")) is None


def take_no_mesh(**keywords):
    if keywords:
        raise TypeError(f"Mine() got an unexpected keyword argument {next(iter(keywords))!r}")


def expect_errors(ctx):
    return [caught(take_no_mesh), caught(take_no_mesh, other=1), caught(take_no_mesh, device_mesh=1)]


def test_what_a_subject_declares_to_lack_is_no_error_that_a_check_expects():
    with Cluster(deadline_s=60.0) as cluster:
        lacking = cluster.run(expect_errors, world=1, subject=Subject("mine", "1", {}, {"device_mesh": "no meshes"}))
        silent = cluster.run(expect_errors, world=1, subject=Subject("mine", "1", {}))
    (end,) = lacking.outcomes
    assert isinstance(end, Raised)
    assert end.unsupported
    assert "no meshes" in end.error.text
    ((nothing, other, mesh),) = silent.values()
    assert nothing is None
    assert other.is_a(TypeError)
    assert mesh.is_a(TypeError)
    assert isinstance(caught(take_no_mesh, device_mesh=1), Caught)  # nobody is judged here


def test_an_option_that_an_adapter_cannot_take_is_no_answer_and_a_default_is_nothing():
    assert taken({"bucket_cap_mb": 3, "static_graph": False}, "bucket_cap_mb") == {"bucket_cap_mb": 3}
    with pytest.raises(Unsupported, match="static_graph"):
        taken({"static_graph": True}, "bucket_cap_mb")
    assert not issubclass(Unsupported, Exception)  # no check takes it for an error that it expects


class Suite:
    """Stands for the suite in a column's environment: writes a record, and counts."""

    def __init__(self, status=0, rows=None):
        self.status, self.runs = status, 0
        self.rows = rows or [row("JOIN-001")]

    def __call__(self, column, python, folder, jobs, limit_s):
        self.runs += 1
        if self.status == 0:
            lay(folder / RECORD, self.rows)
        return self.status


def test_a_column_is_judged_again_only_when_something_changed(tmp_path, monkeypatch):
    suite = Suite()
    monkeypatch.setattr(judge, "_run", suite)
    column = Column("torch", "torch", "about")
    for _ in range(2):
        source, trouble = judge.judge(column, tmp_path / "torch", 1)
        assert source is not None
        assert not trouble
    assert suite.runs == 1
    judge.judge(Column("torch", "torch", "about", select="JOIN-*"), tmp_path / "torch", 1)
    assert suite.runs == 2


def test_a_column_that_cannot_be_installed_keeps_its_last_answer_and_says_so(tmp_path, monkeypatch):
    folder = tmp_path / "a"
    folder.mkdir()
    lay(folder / RECORD, [row("JOIN-001")])

    def fails(column, folder):
        raise environment.NotInstalled("ERROR: no such release")

    monkeypatch.setattr(judge, "ensure", fails)
    source, trouble = judge.judge(Column("a", "impl", "about", requires=("a==1",)), folder, 1)
    assert source is not None
    assert trouble == "could not be installed: ERROR: no such release"


def test_columns_of_one_release_of_torch_share_an_environment_that_sees_nothing_of_this_one(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(environment, "_run", asked.append)
    folders = {environment.folder_of(Column(name, "torch", "about", torch="2.15.0"), tmp_path) for name in ("a", "b")}
    (folder,) = folders
    column = Column("a", "torch", "about", torch="2.15.0")
    python = environment.ensure(column, folder)
    assert environment.ensure(column, folder) == python
    (command,) = asked
    assert "torch==2.15.0" in command
    kept = (folder / "kept.txt").read_text()
    assert "pytest==" in kept
    assert not kept.startswith("torch==")
    assert "\ntorch==" not in kept
    (seen,) = folder.rglob("judged-with.pth")
    assert not seen.read_text().strip()


@pytest.mark.parametrize("gone", [True, False])
def test_an_environment_that_is_a_stale_link_is_made_anew_in_its_place(tmp_path, monkeypatch, gone):
    monkeypatch.setattr(environment, "_run", lambda command: None)
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "environment"
    if not gone:
        elsewhere.mkdir()
        (elsewhere / "ready").write_text("another release")
    folder.symlink_to(elsewhere)
    python = environment.ensure(Column("a", "a:subject", "about", requires=("a==1",)), folder)
    assert python.is_file()
    assert not folder.is_symlink()
    assert gone or (elsewhere / "ready").read_text() == "another release"  # what others use is left alone


def test_a_run_that_fails_is_not_taken_for_an_answer(tmp_path, monkeypatch):
    suite = Suite(status=2)
    monkeypatch.setattr(judge, "_run", suite)
    for _ in range(2):
        source, trouble = judge.judge(Column("a", "torch", "about"), tmp_path / "a", 1)
        assert source is None
        assert "ended with status 2" in trouble
    assert suite.runs == 2


def test_the_command_names_the_breaks_that_nobody_has_classed(tmp_path, capsys):
    (tmp_path / "torchft").mkdir()
    rows = [row("DDP-001"), row("DDP-002", "failed", witness="never seen before")]
    lay(tmp_path / "torchft" / RECORD, rows, stale=["torch.toml, deviation 3: did not show"])
    assert main(["board", "--columns", "torchft", "--show", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "board: torchft has breaks that nobody has classed: DDP-002" in said
    assert "no longer shows what is listed: torch.toml, deviation 3" in said


def test_the_page_counts_what_is_documented_apart_and_escapes_everything(tmp_path):
    rows = [row("JOIN-001"), row("JOIN-002", "failed", witness="x"), row("ZERO-001", "failed", witness=HOSTILE),
            row("ZERO-002", "unsupported")]  # fmt: skip
    (tmp_path / "a").mkdir()
    designed = Deviation("JOIN-002", classes.BY_DESIGN + "it says so", link="https://example.org/documents")
    source = classes.applied(judge.read_source(lay(tmp_path / "a" / RECORD, rows)), [designed])
    shown = page.Judged(Column("a", "torch", HOSTILE, home="https://example.org"), source)
    assert shown.answers() == {
        "JOIN-001": "kept", "JOIN-002": "by design", "ZERO-001": "broken", "ZERO-002": "unsupported"
    }  # fmt: skip
    missing = page.Judged(Column("b", "torch", "about"), None, "could not be installed: x")
    page.publish([shown, missing], tmp_path)
    text = (tmp_path / "index.html").read_text()
    assert HOSTILE not in text
    assert "could not be installed: x" in text
    assert 'href="a/index.html"' in text
    first, second = (tmp_path / "board.md").read_text().splitlines()[2:4]
    assert f"| 1 | 1 | 1 | 1 | 0 | {shown.day} |" in first
    assert "could not be installed: x" in second
    feed = json.loads((tmp_path / "board.json").read_text())["columns"]
    assert feed[0]["counts"] == {
        "kept": 1, "broken": 1, "by design": 1, "unsupported": 1, "suite error": 0, "not run": 0
    }  # fmt: skip
    assert feed[1]["clauses"] == {}
    assert (tmp_path / "matrix" / "index.html").is_file()
    own = (tmp_path / "a" / "index.html").read_text()
    assert "by design: it says so (https://example.org/documents); seen: x" in own
    assert "1 kept, 1 broken, not listed, 2 unsupported" in own  # as the board counts it
    assert "1 kept, 1 broken" in (tmp_path / "a" / "badge-torch.svg").read_text()


def test_what_torchs_class_breaks_within_is_told_apart_from_a_columns_own_faults(tmp_path):
    (theirs, *_) = built_in("torch")
    rows = [row("JOIN-001", "failed", deviation=theirs.reason), row("JOIN-002", "failed", deviation="torch's fault: x"),
            row("ZERO-001", "failed", deviation=theirs.reason), row("ZERO-001", "hung", 3, deviation="fault: y")]
    source = judge.read_source(lay(tmp_path / RECORD, rows))
    assert [page.Judged(Column("a", "b:c", "about", like=like), source).inherited() for like in ("torch", "")] == [2, 0]
    page.publish([page.Judged(Column("a", "b:c", "about", like="torch"), source)], tmp_path)
    assert "| 0 | 3 (2) | 0 |" in (tmp_path / "board.md").read_text()
    assert "(2 by torch)" in (tmp_path / "index.html").read_text()


def test_any_fault_of_a_clause_counts_then_what_is_documented():
    known = [Deviation("*", f"{kind}x", check=f"test_{number}") for number, kind in
             enumerate((classes.FAULT, classes.BY_DESIGN, classes.NOT_OFFERED))]  # fmt: skip
    results = [Result("DDP-001", "MUST", Case(f"test_{number}", "", "a", "gloo", 2), Outcome.FAILED, 0.1, "seen")
               for number in range(3)]  # fmt: skip
    classed = [classes.classed(each, known) for each in results]
    assert [classes.word(classed[first:]) for first in range(3)] == ["broken", "by design", "unsupported"]


def test_a_change_of_whatever_checks_import_has_a_column_judged_again():
    home = Path(judge.__file__).parents[1]
    texts = [path.read_text() for path in (home / "checks").glob("*.py")]
    imported = {name for text in texts for name in re.findall(r"from conformance\.(\w+)[. ]", text)}
    assert "fixtures" in imported
    assert {name for name in imported if (home / name).is_dir()} <= set(judge._DECIDES)
