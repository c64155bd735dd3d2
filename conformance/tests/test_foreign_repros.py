"""The scripts that show breaks of other people's libraries; run with ``REPROS=all`` where the column is installed."""

import ast
import os
import sys
from pathlib import Path

import pytest

from conformance.board.columns import choose
from conformance.clauses import load
from conformance.repros import FOREIGN, cases, search
from conformance.repros.script import MOST_LINES, write

EVERY = {case.name: case for case in cases(FOREIGN)}
BOARD = Path(__file__).parents[2] / "out" / "board"


def text_of(name):
    return write(EVERY[name].path, EVERY[name].shows[0][0])


def test_there_are_ten_scripts_at_least_and_of_several_libraries():
    assert len(EVERY) >= 10
    assert len({case.column for case in EVERY.values()}) >= 5


@pytest.mark.parametrize("name", EVERY)
def test_a_script_is_short_imports_nothing_of_ours_and_names_a_column_and_a_clause(name):
    text, case = text_of(name), EVERY[name]
    assert len(text.splitlines()) <= MOST_LINES
    modules = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    assert not any(module is None or module.startswith(("impl", "conformance")) for module in modules)
    assert choose(case.column)
    assert load().get(case.shows[0][0])


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_a_script_shows_the_break_in_the_environment_of_its_column(name, tmp_path, monkeypatch):
    if os.environ.get("REPROS") != "all":
        pytest.skip("not run: only with REPROS=all")
    (column,) = choose(EVERY[name].column)
    python = BOARD / column.name / "environment" / "bin" / "python"
    if column.requires and not python.is_file():
        pytest.skip(f"not run: {column.name} is not installed; make board COLUMNS={column.name} does it")
    monkeypatch.setattr(sys, "executable", str(python if column.requires else sys.executable))
    script = tmp_path / f"{name}.py"
    script.write_text(text_of(name))
    shown = search.run(script)
    assert shown.broken, shown.output
