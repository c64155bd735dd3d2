"""Series of costs from records: each against what it grows with, held against the law that it should follow."""

import pytest

from perf.__main__ import main
from perf.analyse.growth.costs import BUCKETS, PARAMETERS, RANKS, SKEW, series
from perf.analyse.growth.laws import LINEAR, LOG, NONE
from perf.plan import sweep
from perf.tests.made_up import record, rows
from reports.records import Writer, read

BLOCKS = [{axis: list(values) for axis, values in block.items()} for block in sweep.load("growth").cells]
CAPS = {0.1: 1, 0.05: 2, 0.025: 4, 0.0125: 8, 0.00625: 16, 0.003125: 32}


def parameters(cell):
    return 400 if cell.size == "cpu" else int(cell.size)


def time_ms(cell, _):
    """A step costs 10 µs a parameter and 0.5 ms a rank and a bucket; Join adds 1 ms; torch's ZeRO grows by squares."""
    if cell.unit == "epoch":
        return 50.0
    step = 1.0 + 0.01 * parameters(cell) + 0.5 * cell.world + 0.5 * CAPS.get(cell.cap_mib, 0)
    if cell.zero == "on" and cell.subject == "torch":
        step += 3.0 * cell.world**2
    return step + (1.0 if cell.strategy == "join" else 0.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("growth") / "made.jsonl"
    measured = rows(BLOCKS, time_ms, world=8, rounds=8)
    for row in measured:
        row["derived"]["reductions"] = float(CAPS.get(row["axes"]["cap_mib"], 1))
    first = record(path, measured).header
    path.unlink()
    with Writer(path, first) as writer:
        for row in measured:
            writer.write(row)
        writer.close({"beside": {"checks": {str(world): [int(3e7 * (1 + world))] * 8 for world in range(1, 9)}}})
    return read(path)


@pytest.fixture(scope="module")
def found(made):
    return {(one.cost, one.against, one.subject): one for one in series([made])}


@pytest.mark.parametrize(
    ("cost", "against", "kind", "slope"),
    [
        ("DDP step", RANKS, LINEAR, 0.5), ("DDP step", PARAMETERS, LINEAR, 0.01), ("DDP step", BUCKETS, LINEAR, 0.5),
        ("ZeRO step", PARAMETERS, LINEAR, 0.01 / 3), ("overlapped step", PARAMETERS, LINEAR, 0.01),
        ("overlapped step", BUCKETS, LINEAR, 0.5),
    ],
)  # fmt: skip
def test_planted_growth_is_found_and_as_expected(found, cost, against, kind, slope):
    one = found[cost, against, "impl"]
    assert one.fit.kind == kind
    assert one.fit.values[1] == pytest.approx(slope, rel=0.1)
    assert one.verdict == "as expected"


def test_what_does_not_grow_is_seen_not_to(found):
    for key in (("added by Join", PARAMETERS, "impl"), ("run under Join", SKEW, "impl")):
        assert found[key].fit.kind == NONE
        assert found[key].verdict == "as expected"


def test_what_grows_faster_than_it_should_is_named_with_the_place(found):
    assert found["ZeRO step", RANKS, "torch"].verdict.startswith("grows faster than expected, from ")
    assert found["ZeRO step", RANKS, "impl"].verdict == "as expected"


def test_checks_of_the_suite_grow_with_ranks(found):
    one = found["conformance check", RANKS, "suite"]
    assert [point.x for point in one.points] == list(range(1, 9))
    assert one.fit.values == pytest.approx((30, 30), rel=0.05)


def test_with_a_core_for_each_rank_a_step_should_grow_by_the_logarithm(made):
    roomy = {**made.header, "machine": {**made.header["machine"], "cores": 64}}
    (one,) = [one for one in series([type(made)(made.path, roomy, made.rows, made.footer)])
              if (one.cost, one.against, one.subject) == ("DDP step", RANKS, "impl")]  # fmt: skip
    assert one.expected == LOG
    assert one.verdict.startswith("grows faster than expected")


def test_cells_that_came_to_nothing_are_kept_as_lost(made):
    broken = [{**row, "status": "void"} if row["axes"]["world"] == 5 else row for row in made.rows]
    one = next(one for one in series([type(made)(made.path, made.header, broken, made.footer)]) if one.against == RANKS)
    assert one.lost == ((5, "void"),)
    assert 5 not in [point.x for point in one.points]


def test_laws_are_printed_as_text_and_as_markdown(made, tmp_path, capsys):
    assert main(["laws", str(made.path), "--markdown", str(tmp_path / "laws.md")]) == 0
    printed, told = capsys.readouterr().out, (tmp_path / "laws.md").read_text()
    for words in ("conformance check", "grows faster than expected", "take turns"):
        assert words in printed
        assert words in told


def test_records_without_growth_are_refused_in_one_sentence(tmp_path, capsys):
    path = tmp_path / "one.jsonl"
    record(path, rows([{"workload": "mlp"}], lambda cell, rank: 3.0))
    assert main(["laws", str(path)]) == 2
    assert "SWEEP=growth" in capsys.readouterr().err
