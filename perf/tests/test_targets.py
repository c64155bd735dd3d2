"""The table of targets: planted ratios get the verdicts that they deserve, and what is missing is said to be."""

import math
import random

import numpy
import pytest

from perf.__main__ import main
from perf.analyse.intervals import Interval, of_median
from perf.analyse.targets import figures
from perf.analyse.targets.evidence import Part, corrected, gathered
from perf.analyse.targets.lines import LINES
from perf.analyse.targets.printing import Judged, as_markdown, judged
from perf.analyse.targets.verdicts import CANNOT_TELL, MISSED, NOT_MEASURED, REACHED, Target, worst
from perf.plan import sweep
from perf.tests.made_up import record, rows
from reports.records import Writer, read

DRAWS = 2000
BLOCKS = [
    {axis: list(values) for axis, values in block.items()} for block in sweep.load("impl-vs-torch").cells
]  # fmt: skip
def time_ms(cell, _, share=0.8):
    """Of the steps of DDP ours takes ``share`` of torch's time; of a ZeRO step next to nothing."""
    if cell.hook == "local":
        return 1.0
    if cell.zero != "off":
        return {"none": 1.0, "sequential": 0.7}.get(cell.hook, 0.9) if cell.subject == "impl" else 30.0
    return 10.0 * (share if cell.subject == "impl" else 1.0)


def made(tmp_path, cost=time_ms, **footer):
    """A record of the whole sweep with these costs."""
    measured = rows(BLOCKS, cost, world=4, rounds=20)
    for row in measured:
        axes, facts = row["axes"], row["derived"]
        facts["collectives"] = 3.0 if axes["subject"] == "torch" and axes["strategy"] == "after_join" else 1.0
        moved = (2 if axes["hook"].startswith("reduce_scatter") else 3) * 0.5 * facts["parameter_bytes"]
        facts["moved_bytes"] = moved + facts["buffer_bytes"]
        if axes["unit"] == "epoch":
            facts["iterations"] = [0, 100]
    path = tmp_path / "made.jsonl"
    first = record(path, measured).header
    path.unlink()
    with Writer(path, first) as writer:
        for row in measured:
            writer.write(row)
        writer.close({"beside": footer})
    return read(path)


def line(file, start):
    """The line of the table that begins so, judged."""
    (one,) = [one for one in LINES if one.what.startswith(start)]
    return Judged(one, list(one.parts(gathered([file]))))


STARTS = {name: [int(1e9 * (2.0 + extra)) + number for number in range(8)] for name, extra in
          [("import torch", 0.0), ("import impl", 0.1), ("from impl import Join", 0.1), ("python -m perf list", -1.5),
           ("python -m conformance clauses", 0.9)]}  # fmt: skip
CHECKS = {"2": [int(5e7)] * 12, "4": [int(4e8) + number % 3 for number in range(12)]}


def test_planted_ratios_get_their_verdicts(tmp_path):
    found = made(tmp_path, starts=STARTS, checks=CHECKS)
    assert line(found, "DDP step, 400").verdict == REACHED
    assert line(found, "DDP step, larger").verdict == REACHED
    assert line(found, "ZeRO step").parts[0].verdict == REACHED
    assert line(found, "best overlap").verdict == REACHED
    assert line(found, "bytes moved").parts[1].verdict == REACHED
    outside = line(found, "iterations outside")
    assert [part.verdict for part in outside.parts if part.name.startswith("collectives")] == [REACHED, REACHED]
    assert "3 instead of 1" in outside.parts[1].beside
    starting = {part.name: part.verdict for part in line(found, "starting").parts}
    assert starting == {
        "import impl": REACHED, "from impl import Join": REACHED, "python -m perf list": REACHED,
        "python -m conformance clauses": MISSED,
    }  # fmt: skip
    checks = [part.verdict for part in line(found, "the suite").parts]
    assert checks == [REACHED, MISSED, NOT_MEASURED]
    assert line(found, "on a GPU").verdict == NOT_MEASURED


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.7, REACHED), (0.95, MISSED), (1.2, MISSED)]
)
def test_a_step_is_held_against_its_limit(tmp_path, share, verdict):
    found = made(tmp_path, lambda cell, rank: time_ms(cell, rank, share=share))
    parts = {part.name: part for part in line(found, "DDP step, 400").parts}
    assert parts["default, copies"].verdict == verdict
    assert parts["default, copies"].found.point == pytest.approx(share, rel=0.03)
    assert parts["best, copies"].verdict == (REACHED if share < 1 else MISSED)


@pytest.mark.parametrize(("added", "verdict"), [(0.3, REACHED), (2.0, MISSED)])
def test_what_join_adds_is_compared_with_what_theirs_adds(tmp_path, added, verdict):
    def cost(cell, rank):
        plain = 2.0 if cell.workload in ("light", "normed") else 10.0
        adds = {"join": 1.0, "throwing": 2.0}.get(cell.strategy, 0.0)
        return plain + adds * (added if cell.subject == "impl" else 1.0)

    found = made(tmp_path, cost)
    for name in ("Join's added", "throwing mode"):
        for part in line(found, name).parts:
            assert part.verdict == verdict
            assert part.found.point == pytest.approx(added, rel=0.15)


def test_the_best_of_theirs_is_the_faster_one_of_its_best_settings(tmp_path):
    def cost(cell, rank):
        return {"impl": 8.0, "torch": 7.0 if cell.settings == "best" and cell.bucket_view else 9.0}.get(cell.subject, 1)

    parts = line(made(tmp_path, cost), "DDP step, larger").parts
    assert all(part.verdict == MISSED and "with views" in part.beside for part in parts)


def test_a_cell_that_came_to_nothing_is_named_and_leaves_its_line_undecided(tmp_path):
    file = made(tmp_path)
    for row in file.rows:
        if row["axes"]["workload"] == "convnet" and row["subject"] == "impl":
            row["status"] = "void"
    whole = line(file, "DDP step, larger")
    assert whole.verdict == NOT_MEASURED
    assert {part.name: part.why for part in whole.parts if part.found is None} == {
        "convnet, copies": "impl False: void", "convnet, views": "impl True: void",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("target", "found", "verdict"),
    [
        (Target(1.0), Interval(0.9, 0.8, 0.99, 9), REACHED),
        (Target(1.0), Interval(0.9, 0.8, 1.01, 9), CANNOT_TELL),
        (Target(1.0), Interval(1.1, 1.01, 1.2, 9), MISSED),
        (Target(1.0), Interval(1.1, math.nan, math.nan, 3), CANNOT_TELL),
        (Target(1.0), None, NOT_MEASURED),
        (Target(1.0, within=0.05), Interval(1.0, 0.96, 1.04, 9), REACHED),
        (Target(1.0, within=0.05), Interval(1.0, 0.93, 1.04, 9), CANNOT_TELL),
        (Target(1.0, within=0.05), Interval(0.9, 0.88, 0.92, 9), MISSED),
        (Target(1.0, within=0.05), Interval(1.2, 1.1, 1.3, 9), MISSED),
    ],
)
def test_an_interval_decides_only_if_it_lies_on_one_side(target, found, verdict):
    assert target.verdict(found) == verdict


def test_a_line_stands_as_its_worst_part_does():
    assert worst([REACHED, CANNOT_TELL]) == CANNOT_TELL
    assert worst([REACHED, CANNOT_TELL, NOT_MEASURED]) == NOT_MEASURED
    assert worst([REACHED, MISSED, NOT_MEASURED]) == MISSED
    assert worst([]) == NOT_MEASURED


def test_an_added_time_that_is_not_clear_of_nothing_decides_nothing():
    generator = random.Random(2)
    ours = {number: generator.gauss(1, 0.1) for number in range(20)}
    nothing = {number: generator.gauss(0.0, 1) for number in range(20)}
    clear = {number: generator.gauss(4, 0.1) for number in range(20)}
    assert figures.ratio_of_added(ours, nothing).high == math.inf
    found = figures.ratio_of_added(ours, clear)
    assert found.low < 0.25 < found.high < 0.3


def test_intervals_of_added_times_hold_the_truth_as_often_as_they_say():
    generator = numpy.random.default_rng(1)
    for rounds in (6, 8, 12, 20, 30):
        for theirs_ms, noise_ms in ((1.0, 0.2), (0.5, 1.0)):  # clear of nothing, and not
            ours, theirs = (generator.normal(mean, noise_ms, (DRAWS // 4, rounds)) for mean in (0.5, theirs_ms))
            pairs = [[dict(enumerate(one)) for one in both] for both in zip(ours, theirs, strict=True)]
            found = [figures.ratio_of_added(*pair) for pair in pairs]
            held = [one.low <= 0.5 / theirs_ms <= one.high for one in found if one.known]
            assert sum(held) >= 0.945 * len(held) - 2 * math.sqrt(0.05 * len(held))


def test_verdicts_told_together_are_corrected_for_how_many_they_are():
    generator = numpy.random.default_rng(2)

    def part(middle):
        return Part("x", Target(1.0), of_median(dict(enumerate(generator.normal(middle, 0.1, 12)))))

    alike = [corrected([part(1.0) for _ in range(40)]) for _ in range(50)]
    assert sum(one.verdict != CANNOT_TELL for parts in alike for one in parts) <= 5  # 100 by construction, uncorrected
    clear = corrected([*(part(0.5) for _ in range(10)), Part("counted", Target(1.0), figures.exact(2.0)),
                       Part("void", Target(1.0), None, "void")])  # fmt: skip
    assert [one.verdict for one in clear] == [REACHED] * 10 + [MISSED, NOT_MEASURED]


def test_every_line_is_printed_as_text_and_as_markdown(tmp_path, capsys):
    file = made(tmp_path, starts=STARTS, checks=CHECKS)
    told = tmp_path / "table.md"
    assert main(["table", str(file.path), "--markdown", str(told)]) == 0
    printed = capsys.readouterr().out
    text = told.read_text()
    for each in LINES:
        assert f"**{each.what}**" in text
        assert each.what in printed
    assert text == as_markdown(judged(gathered([file])), "impl", "torch")
    table = [row for row in text.splitlines() if row.startswith("|")]
    assert len({row.count("|") for row in table}) == 1


def test_what_cannot_be_tabled_is_refused_in_one_sentence(tmp_path, capsys):
    assert main(["table", str(tmp_path / "gone.jsonl")]) == 2
    assert main(["table", str(made(tmp_path).path), "--suite", str(tmp_path / "made.jsonl")]) == 2
    said = capsys.readouterr().err
    assert "cannot be read" in said
    assert "is no whole record of the suite" in said
