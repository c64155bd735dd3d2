"""The scripts that show breaks of other people's libraries; run with ``REPROS=all`` where the column is installed."""

import ast
import os
from pathlib import Path

import pytest

from conformance.__main__ import main
from conformance.board.columns import choose
from conformance.board.environment import folder_of, interpreter
from conformance.clauses import load
from conformance.repros import FOREIGN, cases, issue, search
from conformance.repros.script import MOST_LINES, write

EVERY = {case.name: case for case in cases(FOREIGN)}
BOARD = Path(__file__).parents[2] / "out" / "board"


def needs(name):
    (column,) = choose(EVERY[name].column)
    return column.requires


def text_of(name):
    return write(EVERY[name].path, EVERY[name].shows[0][0], needs=needs(name))


def test_there_are_ten_scripts_at_least_and_of_several_libraries():
    assert len(EVERY) >= 10
    assert len({case.column for case in EVERY.values()}) >= 5


@pytest.mark.parametrize("name", EVERY)
def test_a_script_is_short_imports_nothing_of_ours_and_names_a_column_and_a_clause(name):
    text, case = text_of(name), EVERY[name]
    assert len(text.splitlines()) <= MOST_LINES
    assert max(map(len, text.splitlines())) <= 130
    assert all(release in text for release in needs(name)[:1]), "a reader must know which release it is about"
    modules = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    assert not any(module is None or module.startswith(("impl", "conformance")) for module in modules)
    assert choose(case.column)
    assert load().get(case.shows[0][0])


def test_a_text_to_file_elsewhere_says_whose_document_is_quoted_and_how_to_contradict():
    (case,) = (each for each in EVERY.values() if each.name == "megatron_no_sync")
    clause = load().get(case.shows[0][0])
    found = search.Found(search.Shown("print()", "promised: averages\nBROKEN with torch 2", broken=True), None, ())
    said = issue.text("A title", clause, (), found, needs(case.name))
    assert "## What torch documents" in said
    assert "listed as by design" in said
    assert f"- Seen with: {needs(case.name)[0]}, torch" in said


def test_a_script_of_a_column_that_is_not_installed_is_refused_with_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["repro", "DDP-075", "--subject", "megatron"]) == 2
    assert "make board COLUMNS=megatron" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_a_script_shows_the_break_in_the_environment_of_its_column(name, tmp_path):
    if os.environ.get("REPROS") != "all":
        pytest.skip("not run: only with REPROS=all")
    (column,) = choose(EVERY[name].column)
    python = interpreter(column, folder_of(column, BOARD))
    if not python.is_file():
        pytest.skip(f"not run: {column.name} is not installed; make board COLUMNS={column.name} does it")
    script = tmp_path / f"{name}.py"
    script.write_text(text_of(name))
    shown = search.run(script, python)
    assert shown.broken, shown.output
