"""Bad input: one clear sentence on standard error, exit status 2, nothing written, no traceback."""

import subprocess
import sys

import pytest

from conformance.__main__ import main

from . import fakes

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the made-up subject and checks, as the working directory."""
    fakes.lay(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "nameless_subject.py").write_text(
        "from conformance.subjects import Subject\nsubject = Subject('', '1.0', {})\n"
    )
    (tmp_path / "broken_subject.py").write_text("raise RuntimeError('out of order')\n")
    (tmp_path / "bad.toml").write_text('[[deviation]]\nclause = "FAKE-001"\n')
    (tmp_path / "in_the_way").write_text("a file")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--subject", "nobody"], "unknown subject 'nobody'"),
        (["--subject", "no_such_package:subject"], "cannot be loaded: ModuleNotFoundError"),
        (["--subject", "fake_subject:absent"], "cannot be loaded: AttributeError"),
        (["--subject", "fake_subject:nothing"], "is a int, not a conformance.subjects.Subject"),
        (["--subject", "nameless_subject:subject"], "a subject needs a name"),
        (["--subject", "broken_subject:subject"], "RuntimeError: out of order"),
        (["--subject", "torch,"], "has an empty part"),
        (["--subject", "torch,fake_subject:torch_in_disguise"], "both called 'torch'"),
        (["--select", "NOPE-*"], "clause pattern 'NOPE-*' matches nothing"),
        (["--select", "FAKE-001,NOPE-001"], "clause pattern 'NOPE-001' matches nothing"),
        (["--worlds", "0"], "world '0' is not a whole number above 0"),
        (["--worlds", "2,-1"], "world '-1'"),
        (["--worlds", "two"], "world 'two'"),
        (["--worlds", "100000"], "more than the 256 ranks"),
        (["--backend", "carrier_pigeon"], "carrier_pigeon"),
        (["--backend", "no_such_package:pigeon"], "no_such_package"),
        (["--deadline", "soon"], "deadline 'soon'"),
        (["--deadline", "-1"], "deadline '-1'"),
        (["--jobs", "none"], "number of jobs 'none'"),
        (["--deviations", "absent.toml"], "absent.toml: cannot be read"),
        (["--deviations", "bad.toml"], "reason is missing"),
        (["--checks", "absent"], "there are no checks at absent"),
        (["--out", "in_the_way"], "cannot write into in_the_way: File exists"),
        (["--out", "in_the_way/below"], "cannot write into in_the_way/below: Not a directory"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(place, capsys, words, says):
    given = {"--subject": "fake_subject:subject", "--checks": "test_fake.py", "--out": "out"} | {words[0]: words[1]}
    before = sorted(place.iterdir())
    assert main(["run", *[word for pair in given.items() for word in pair]]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("conformance: ")
    assert says in err
    assert err.count("\n") == 1
    assert [path for path in sorted(place.iterdir()) if path.name != "__pycache__"] == before


def test_more_ranks_than_there_are_gpus_is_bad_input(place, capsys):
    import torch

    words = ["--subject", "fake_subject:subject", "--checks", "test_fake.py", "--backend", "nccl"]
    assert main(["run", *words, "--worlds", str(torch.cuda.device_count() + 1)]) == 2
    assert "nccl" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["clauses", "--select", "NOPE-*"], ["show", "NOPE-001"]])
def test_a_clause_that_does_not_exist_is_bad_input_for_every_command(capsys, words):
    assert main(words) == 2
    assert "NOPE" in capsys.readouterr().err


def test_clauses_lists_the_catalogue_with_its_coverage(capsys):
    assert main(["clauses", "--select", "JOIN-0*"]) == 0
    out = capsys.readouterr().out
    assert "JOIN-025  MUST" in out
    assert "Area A:" in out
    assert "Area B:" not in out
    assert "57/57" in out
    assert "found" in out.splitlines()[-1]


def test_show_prints_a_clause_with_its_checks(capsys):
    assert main(["show", "join-025"]) == 0
    out = capsys.readouterr().out
    assert "JOIN-025 · MUST · Main-hook count equals the deficit" in out
    assert ".py:" in out


def test_listing_the_clauses_imports_no_torch():
    program = (
        "import sys; from conformance.__main__ import main\n"
        "assert main(['clauses']) == 0 and main(['show', 'DDP-021']) == 0\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=120)


def test_an_interrupted_command_ends_with_a_word_and_its_own_status(monkeypatch, capsys):
    def interrupted(_given):
        raise KeyboardInterrupt

    monkeypatch.setattr("conformance.commands.show.show", interrupted)
    assert main(["show", "JOIN-001"]) == 130
    assert capsys.readouterr().err == "conformance: interrupted\n"
