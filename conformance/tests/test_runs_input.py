"""What the commands that only list print, and how an interruption ends one; bad input: ``test_bad_input_commands``."""

import subprocess
import sys

import pytest

from conformance.__main__ import main

pytestmark = pytest.mark.slow


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
