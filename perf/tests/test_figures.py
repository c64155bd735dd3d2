"""The table of derived figures."""

import re

from rich.console import Console

from perf.analyse.derived import noted
from perf.analyse.figures import figures_table
from perf.tests.made_up import rows

STEP = [{"workload": "mlp", "optimizer": "adam", "hook": ["none", "local"]},
        {"workload": "mlp", "optimizer": "adam", "zero": "on"}]  # fmt: skip


def told(made):
    console = Console(width=220)
    with console.capture() as captured:
        console.print(figures_table(made))
    return captured.get()


def test_every_figure_of_a_sound_cell_is_shown_and_empty_columns_are_not():
    text = told(noted(rows(STEP, lambda cell, rank: 9.0 if cell.hook == "local" else 12.0, ["impl"])))
    heading, _, *lines = text.splitlines()
    assert "exposed, ms" in heading
    assert "host, µs/parameter" in heading
    (plain,) = [line for line in lines if line.split()[0] == "impl" and "zero" not in line]
    assert re.search(r"(2\.9|3\.0)\d \[", plain)
    assert re.search(r" (19|20)\d\.\d\d ", plain)  # two thirds of 3 ms over 10 parameters
    assert "bound, ms" in heading
    assert "peak" in heading
    assert "again" not in text


def test_cells_that_came_to_nothing_have_no_figures():
    made = [{**row, "status": "void"} for row in rows(STEP, lambda cell, rank: 1.0, ["impl"])]
    assert figures_table(made) is None
