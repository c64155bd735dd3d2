"""The main table: what is compared with what."""

import pytest
from rich.console import Console

from perf.analyse.table import against, in_order, main_table
from perf.measure import void
from perf.measure.rows import blank
from perf.plan.planning import Place, plan
from perf.plan.sweep import _checked

CELLS = [{"workload": "mlp", "strategy": ["plain", "join"]}, {"workload": "mlp", "hook": "local"}]


def rows(cells, subjects=("impl", "torch")):
    planned = plan(_checked("mine", {"cells": cells}, "mine"), list(subjects), 2, lambda _: Place("gloo", "cpu"))
    (group,) = planned.groups
    made = []
    for place, cell in enumerate(group):
        row = blank(cell, group, "ok", "")
        row["wall_ns"] = row["cpu_ns"] = [[1_000_000 + place, 1]] * 8
        row["block"] = list(range(8))
        made.append(row)
    return {row["series"].split(" | ")[1]: row for row in made}


@pytest.mark.parametrize(
    ("which", "beside"),
    [
        ("impl", "torch"),
        ("impl · join", "torch · join"),
        ("torch · join", "torch"),
        ("torch", None),
        ("impl · again", "impl"),
        ("none · local", "impl"),
    ],
)
def test_a_cell_stands_against_its_counterpart(which, beside):
    group = rows(CELLS)
    found = against(group[which], list(group.values()))
    assert found is (None if beside is None else group[beside])


def test_a_single_subject_stands_against_its_first_cell():
    group = rows(CELLS, ["impl"])
    assert against(group["impl · join"], list(group.values())) is group["impl"]


def test_a_counterpart_that_came_to_nothing_is_not_compared_with():
    group = rows(CELLS)
    group["torch · join"]["status"] = "void"
    assert against(group["impl · join"], list(group.values())) is group["impl"]


def told(rows):
    console = Console(width=200)
    with console.capture() as captured:
        console.print(main_table(rows))
    return captured.get()


def test_void_cells_show_their_reason_and_no_time():
    group = rows(CELLS)
    group["torch"] |= {"status": "void", "reason": "weights are off", "wall_ns": [], "cpu_ns": [], "block": []}
    text = told(list(group.values()))
    (line,) = [line for line in text.splitlines() if line.strip().startswith("torch ") and "join" not in line]
    assert line.split() == ["torch", "void", "weights", "are", "off"]
    assert "1.00" in text
    assert "corrected for 3 comparisons by Benjamini and Hochberg" in " ".join(text.split())


def test_what_was_seen_of_a_broken_guarantee_stands_below_the_table_and_once():
    group = rows(CELLS)
    reason = void.by_guarantee("DDP-025", "torch", "rank 1 [spare] holds 3, and " + "a long story " * 9)
    for name in ("torch", "torch · join"):
        group[name] |= {"status": "void", "reason": reason, "wall_ns": [], "cpu_ns": [], "block": []}
    text = " ".join(told(list(group.values())).split())
    assert text.count("relies on DDP-025, which torch does not keep") == 2
    assert "rank 1" not in text
    (sentence,) = void.sentences(group.values())
    assert sentence == f"2 cells are void: they {reason.replace('relies', 'rely', 1)}"


def test_a_cell_that_went_wrong_first_changes_nothing_in_what_is_compared():
    group = rows(CELLS)
    asked = [row["series"] for row in group.values()]
    wrong = {**group["torch"], "status": "hung"}
    recorded = in_order([wrong, *(row for name, row in group.items() if name != "torch")], asked)
    assert [row["series"] for row in recorded] == asked
    assert against(group["impl · join"], recorded) is group["torch · join"]


def test_a_group_that_never_had_its_turn_is_one_line():
    group = rows(CELLS)
    for row in group.values():
        row |= {"status": "not run", "reason": "the budget was used up", "wall_ns": []}
    assert told(list(group.values())).count("the budget was used up") == 1
