"""What an iteration sends, counted on real ranks, and what is measured beside the cells."""

import textwrap

import pytest

from conformance.bad_input import BadInput
from conformance.ranks import Event
from perf.__main__ import main
from perf.measure import extras as beside
from perf.measure.traffic import KEPT, host_calls, sent_bytes
from perf.plan import sweep
from reports.records import read

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("op", "shape", "sent"),
    [
        ("all_reduce", (10,), 2 * 3 / 4 * 40), ("broadcast", (10,), 3 / 4 * 40), ("reduce", (10,), 3 / 4 * 40),
        ("all_gather", (10,), 3 * 40), ("reduce_scatter_tensor", (2, 5), 3 * 40),
    ],
)  # fmt: skip
def test_bytes_are_those_of_a_bandwidth_optimal_algorithm(op, shape, sent):
    assert sent_bytes(Event(op, "", "float32", shape, -1, "default", "main"), 4) == sent


def test_a_barrier_moves_nothing():
    assert sent_bytes(Event("barrier", "", "", (), -1, "default", "main"), 4) == 0


def test_calls_of_the_host_are_told_from_other_events():
    counts = {"cudaLaunchKernel": 8, "cuLaunchKernelEx": 4, "aten::add": 99, "cudaStreamSynchronize": 2,
              "cudaMemcpyAsync": 7}  # fmt: skip
    assert host_calls(counts) == {"launches": 12 / KEPT, "synchronisations": 2 / KEPT}


def test_iterations_are_counted_and_the_sweep_says_what_it_prints(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(textwrap.dedent("""
        rounds = 1
        block = 2
        beside = "traffic"
        prints = "targets"
        [[cells]]
        workload = "light"
        strategy = ["plain", "after_join"]
        [[cells]]
        workload = "tiny"
        size = "25"
        optimizer = "adam"
        cap_mib = 0.003
        zero = "on"
        hook = ["sequential", "reduce_scatter"]
    """))
    out = tmp_path / "out"
    arguments = ["run", "--sweep", str(path), "--world", "2", "--backend", "gloo", "--judged", "no"]
    assert main([*arguments, "--out", str(out)]) == 0
    (file,) = out.glob("*.jsonl")
    found = {row["series"].split(" | ")[1]: row["derived"] for row in read(file).rows}
    assert found["impl"]["collectives"] == found["impl · after_join"]["collectives"] == 1
    assert (found["torch"]["collectives"], found["torch · after_join"]["collectives"]) == (1, 3)
    assert found["impl"]["moved_bytes"] == found["impl"]["parameter_bytes"]  # both halves of an all-reduce by two
    whole, scattered = (found[f"impl · {hook} · zero · cap 0.003"] for hook in ("sequential", "reduce_scatter"))
    assert whole["moved_bytes"] == whole["parameter_bytes"] * 3 / 2
    assert scattered["moved_bytes"] == scattered["parameter_bytes"]
    assert whole["reductions"] == 2  # a bucket is full with 13 of the 25 parameters
    printed = capsys.readouterr().out
    assert "3 instead of 1, ours 1 and 1" in printed
    assert "again: python -m perf table" in printed


def test_starts_and_checks_are_measured_round_by_round(monkeypatch):
    monkeypatch.setattr(beside, "STARTS", {"nothing": ("-c", ""), "more": ("-c", "print(1)")})
    monkeypatch.setattr(beside, "_ROUNDS", {"starts": 2, "checks": 2})
    found = beside.measured(["starts", "checks"], most_ranks=2)
    assert {name: len(taken) for name, taken in found["starts"].items()} == {"nothing": 2, "more": 2}
    assert {name: len(taken) for name, taken in found["checks"].items()} == {"1": 2, "2": 2}
    assert min(taken for samples in found.values() for each in samples.values() for taken in each) > 0


def test_a_command_that_fails_has_no_time(monkeypatch):
    monkeypatch.setattr(beside, "STARTS", {"wrong": ("-c", "raise SystemExit('no such thing')")})
    with pytest.raises(RuntimeError, match="status 1: no such thing"):
        beside.measured(["starts"], most_ranks=2)


def test_where_no_time_is_left_nothing_more_is_measured(monkeypatch):
    monkeypatch.setattr(beside, "STARTS", {"nothing": ("-c", "")})
    assert beside.measured(["starts"], most_ranks=2, left_s=0.0) == {"starts": {"nothing": []}}


@pytest.mark.parametrize(("entry", "words"), [("beside = 'trafic'", "did you mean traffic"),
                                              ("prints = 'lows'", "did you mean laws")])  # fmt: skip
def test_what_no_sweep_can_have_beside_is_refused(entry, words, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(f"{entry}\n[[cells]]\nworkload = 'mlp'\n")
    with pytest.raises(BadInput, match=words):
        sweep.load(str(path))
