"""Comparing: a planted slow-down is found with its interval clear of 1, the same against itself is not."""

import numpy
import pytest

from perf.__main__ import main
from perf.analyse import compare
from perf.tests.made_up import record, rows

pytestmark = pytest.mark.slow

DRAWS = 800
CELLS = [{"workload": ["mlp", "tiny"], "strategy": ["plain", "join"]}]


def slowed(factor, only=""):
    """The time of a step where subject impl, or only its cells of one strategy, is slowed down."""

    def time_ms(cell, rank):
        return 10.0 * (factor if cell.subject == "impl" and only in cell.strategy else 1.0)

    return time_ms


def of(folder, name, factor, seed, commit, **more):
    return record(folder / f"{name}.jsonl", rows(CELLS, slowed(factor, **more), seed=seed), commit)


def side(folder, name, factor, commit, runs=4, **more):
    return [of(folder, f"{name}{seed}", factor, seed + ord(name[0]), commit, **more) for seed in range(runs)]


def test_a_slow_down_of_a_tenth_between_runs_is_found_where_it_is(tmp_path):
    before = side(tmp_path, "before", 1.0, "a" * 40)
    after = side(tmp_path, "later", 1.1, "b" * 40, only="join")
    made = compare.runs(before, after, ("before", "after"))
    assert len(made.lines) == 8
    assert sorted(line.series.split(" | ")[1] for line in made.slower) == ["impl · join"] * 2
    assert all(line.found.low > 1.05 for line in made.slower)
    assert not made.faster
    assert [line.said for line in compare.runs(after, before, ("after", "before")).faster] == ["faster"] * 2


def drawn(generator, level, between, within=0.02, rounds=20, runs=4):
    """A number for each run: the median of rounds that share what the machine does to that run."""
    of_run = generator.normal(0, between, (runs, 1))
    return numpy.median(level * numpy.exp(of_run + generator.normal(0, within, (runs, rounds))), axis=1).tolist()


@pytest.mark.parametrize("runs", [4, 10])
def test_runs_that_differ_as_runs_do_are_not_called_faster_or_slower(runs):
    """Their rounds thrown together, as if they were independent, were called different in a third of cases."""
    generator = numpy.random.default_rng(runs)
    pairs = [[drawn(generator, 1.0, 0.03, runs=runs) for _ in range(2)] for _ in range(DRAWS)]
    alone = [compare.over_runs([("x", *pair)])[0].said in ("faster", "slower") for pair in pairs]
    assert sum(alone) <= 0.06 * DRAWS
    lists = [compare.over_runs([("x", *pair) for pair in pairs[start : start + 40]]) for start in range(0, DRAWS, 40)]
    assert sum(any(line.said in ("faster", "slower") for line in told) for told in lists) <= 3  # of 20: 1 by right


def test_a_slow_down_beyond_what_runs_differ_by_is_found_among_many_series():
    generator = numpy.random.default_rng(1)
    levels = [1.2] * 10 + [1.0] * 30
    told = [
        compare.over_runs([("x", drawn(generator, 1.0, 0.03), drawn(generator, level, 0.03)) for level in levels])
        for _ in range(25)
    ]
    assert sum(line.said == "slower" for lines in told for line in lines[:10]) >= 225
    assert sum(line.said in ("faster", "slower") for lines in told for line in lines[10:]) <= 25


def test_below_four_runs_a_side_nobody_can_tell(tmp_path, capsys):
    before, after = (of(tmp_path, name, factor, factor, "a" * 40) for name, factor in (("before", 1), ("after", 3)))
    made = compare.runs([before], [after], ("before", "after"))
    assert {line.said for line in made.lines} == {"cannot tell: too few runs"}
    assert made.undecidable
    assert all(not line.found.known for line in made.lines)
    assert main(["compare", str(before.path), str(after.path)]) == 2
    assert "4 runs of each side are needed, and there are 1 and 1" in capsys.readouterr().out


def test_the_same_against_itself_shows_nothing(tmp_path):
    one, other = (of(tmp_path, name, 1.0, seed, "a" * 40) for name, seed in (("one", 3), ("other", 4)))
    for made in (compare.runs([one], [other], ("one", "other")), compare.subjects([one], "impl", "torch"),
                 compare.subjects([one], "impl", "impl")):  # fmt: skip
        assert made.lines
        assert not made.slower
        assert not made.faster


def test_subjects_of_one_record_are_paired(tmp_path):
    one = of(tmp_path, "one", 1.1, 1, "a" * 40)
    made = compare.subjects([one], "torch", "impl")
    assert [line.said for line in made.lines] == ["slower"] * 4
    assert all(1 < line.found.low < 1.1 < line.found.high + 0.01 for line in made.lines)
    assert compare.subjects([one], "impl", "torch").faster == compare.subjects([one], "impl", "torch").lines


def test_subjects_are_compared_in_the_latest_record_that_has_both(tmp_path, capsys):
    record(tmp_path / "both.jsonl", rows(CELLS, slowed(1.1)), time="2026-11-01T00:00:00+00:00")
    record(tmp_path / "alone.jsonl", rows(CELLS, slowed(1.1), ["impl"]), time="2026-11-02T00:00:00+00:00")
    record(tmp_path / "other.jsonl", rows(CELLS, slowed(1.1), ["mine"]), time="2026-11-02T00:00:00+00:00")
    assert main(["compare", "torch", "impl", "--records", str(tmp_path)]) == 1
    assert "both.jsonl" in capsys.readouterr().out
    assert main(["compare", "mine", "impl", "--records", str(tmp_path)]) == 2
    assert "make perf SUBJECT=mine,impl" in capsys.readouterr().err


def test_too_few_rounds_of_two_subjects_are_no_answer(tmp_path, capsys):
    path = record(tmp_path / "few.jsonl", rows(CELLS, slowed(3.0), rounds=3)).path
    assert main(["compare", "torch", "impl", "--records", str(path)]) == 2
    assert "0 slower, 0 faster, of 4 nobody can tell" in capsys.readouterr().out


def test_a_machine_that_was_slower_on_the_whole_cancels_beside_another_subject(tmp_path):
    def slow_night(seed):
        made = rows(CELLS, slowed(1.1), seed=seed)
        twice = [{**row, "wall_ns": [[2 * time for time in sample] for sample in row["wall_ns"]]} for row in made]
        return record(tmp_path / f"after{seed}.jsonl", twice, "b" * 40)

    before, after = side(tmp_path, "before", 1.0, "a" * 40), [slow_night(seed) for seed in range(4)]
    assert len(compare.runs(before, after, ("before", "after")).slower) == 8
    beside = compare.runs(before, after, ("before", "after"), beside="torch")
    assert [line.series.split(" | ")[1].split(" · ")[0] for line in beside.slower] == ["impl"] * 4
    assert all(line.found.point == pytest.approx(1.1, rel=0.02) for line in beside.slower)


def test_void_cells_and_other_workloads_of_the_same_name_are_not_compared(tmp_path):
    before = of(tmp_path, "before", 1.0, 1, "a" * 40)
    changed = rows(CELLS, slowed(1.0), seed=2)
    changed[0]["workload_hash"] = "another"
    changed[1] |= {"status": "void", "wall_ns": [], "block": []}
    after = record(tmp_path / "after.jsonl", changed, "b" * 40)
    made = compare.runs([before], [after], ("before", "after"))
    assert len(made.lines) == 6
    assert any("2 series are not in after" in note for note in made.notes)


def test_the_command_finds_commits_names_what_is_damaged_and_ends_with_1_at_a_slow_down(tmp_path, capsys):
    side(tmp_path, "before", 1.0, "a" * 40)
    side(tmp_path, "later", 1.1, "b" * 40)
    (tmp_path / "cut.jsonl").write_bytes((tmp_path / "later0.jsonl").read_bytes()[:-300])
    table = tmp_path / "made" / "table.md"
    arguments = ["compare", "aaaa", "bbbb", "--records", str(tmp_path), "--markdown", str(table)]
    assert main(arguments) == 1
    said = capsys.readouterr()
    assert "4 slower" in said.out
    assert "Benjamini" in said.out
    assert "cut.jsonl: has no footer" in said.err
    assert "1 of 9 records passed over" in said.err
    assert table.read_text().count("| slower |") == 4
    assert main(["compare", "bbbb", "aaaa", "--by", "commit", "--records", str(tmp_path)]) == 0
    one = str(tmp_path / "before0.jsonl")
    assert main(["compare", one, one]) == 2
    assert main(["compare", "impl", "torch", "--records", one]) == 0


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("imlp", "torch", "no commit of a record"),
        ("impl", "trch", "did you mean torch"),
        ("impl", "none", "no cell of subject 'none'"),
        ("one.jsonl", "gone.jsonl", "cannot be read"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_sentence(tmp_path, capsys, first, second, words):
    path = tmp_path / "one.jsonl"
    of(tmp_path, "one", 1.0, 1, "a" * 40)
    assert main(["compare", first, second, "--records", str(path)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_an_empty_place_is_refused(tmp_path, capsys):
    assert main(["compare", "a", "b", "--records", str(tmp_path)]) == 2
    assert "no whole performance record" in capsys.readouterr().err
