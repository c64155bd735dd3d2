"""Traces: from a profiler's events to what a rank did, and one trace of a real run."""

import json
import math
import tempfile
from pathlib import Path

import pytest
import torch

from conformance.bad_input import BadInput
from conformance.hosts import unavailable
from perf.__main__ import main, parser
from perf.commands.chart import closing
from perf.commands.trace import asked, telling
from perf.measure import trace
from perf.measure.memory import highest
from perf.measure.trace import Span, Traced
from perf.plan.cells import Cell
from perf.tests.made_up import record, rows
from perf.workloads import load
from perf.workloads.profiles import profile

pytestmark = pytest.mark.slow

CELL = Cell("mlp", "cpu", 2, "gloo", "cpu", "step", "even", 0.0, "sgd", "impl", "none", "plain", "off", 0.0, False,
            False, "default")  # fmt: skip


def event(name, start, length, cat="cpu_op", tid=7, **args):
    return {"ph": "X", "name": name, "cat": cat, "tid": tid, "ts": start, "dur": length, "args": args}


EVENTS = [
    event(trace.MARK, 1000, 2, cat="user_annotation"),
    event("aten::linear", 1100, 200),
    event("aten::addmm", 1150, 100),
    event("autograd::engine::evaluate_function: AccumulateGrad", 1300, 900),
    event("aten::mul", 1310, 90),
    event("c10d::allreduce_", 1400, 5),
    event("aten::copy_", 2000, 100),
    event("aten::copy_", 1500, 400, tid=8),
    event("gloo:all_reduce", 1450, 500, "user_annotation", 9, **{"Input Dims": [[3, 4]], "Input type": ["float"]}),
    event("Optimizer.step#SGD.step", 2000, 100, cat="user_annotation"),
]


def test_operators_of_the_main_thread_are_work_and_frames_around_hooks_are_not():
    spans = list(trace.spans_of(EVENTS, moment_us=5000.0))
    work = [(span.start_us, span.end_us) for span in spans if span.lane == "compute"]
    assert work == [(5100, 5400), (6000, 6100)]
    (reduced,) = [span for span in spans if span.lane == "collectives 1"]
    assert reduced == Span("collectives 1", "all-reduce", 5450, 5950, 12 * 4)
    assert [span.name for span in spans if span.lane == "optimizer"] == ["step"]


def test_layers_that_wait_instead_of_computing_are_work():
    workload = load("paced", "dlrm")
    model, batch = workload.model(1.0), workload.batch(0, 0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        with torch.profiler.record_function(trace.MARK):
            pass
        model(batch).backward()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    work_us = sum(span.end_us - span.start_us for span in trace.spans_of(events, 0.0) if span.lane == "compute")
    assert work_us >= 1e6 * profile("dlrm").seconds


def test_on_a_device_kernels_are_work_and_nccls_kernels_are_collectives():
    events = [
        EVENTS[0], event("aten::linear", 1100, 200), event("gemm", 1200, 300, cat="kernel", tid=1),
        event("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgs)", 1300, 400, cat="kernel", tid=2),
        event("nccl:_reduce_scatter_base", 1290, 10, cat="user_annotation"),
    ]  # fmt: skip
    spans = {span.name: span for span in trace.spans_of(events, 1000.0)}
    assert set(spans) == {"compute", "reduce-scatter"}
    assert (spans["compute"].start_us, spans["compute"].end_us) == (1200, 1500)


def rank(late=0.0):
    """Three iterations of 1000 µs; each computes for 600 while its all-reduce runs from 400 to 900."""
    starts = [late + 2000.0 * at for at in range(3)]
    marks = [[start, start + 300, start + 900, start + 1000] for start in starts]
    spans = [Span("compute", "compute", start, start + 600) for start in starts]
    spans += [Span("collectives 1", "all-reduce", start + 400, start + 900, 8) for start in starts]
    return Traced(marks, spans)


def test_waiting_is_when_nothing_is_computed_while_a_collective_is_under_way():
    found = trace.typical(CELL, [rank(), rank(late=50.0)])
    (waiting,) = [span for span in found.spans[0] if span.lane == "waiting"]
    assert (waiting.start_us, waiting.end_us) == (600, 900)
    assert [span.name for span in found.spans[0] if span.lane == "phase"] == ["forward", "backward", "step"]
    assert found.spans[1][0].start_us == 50
    assert trace.overlap(found) == pytest.approx([0.4, 0.4])


def test_without_communication_there_is_no_overlap_to_speak_of():
    alone = rank()
    alone.spans = [span for span in alone.spans if span.lane == "compute"]
    (share,) = trace.overlap(trace.typical(CELL, [alone]))
    assert math.isnan(share)


def test_a_trace_comes_back_from_its_file():
    made = trace.typical(CELL, [rank(), rank(late=50.0)])
    whole = json.loads(json.dumps(trace.as_trace([made, made], {"commit": "abc"})))
    back = trace.iterations_of(whole)
    assert [one.cell for one in back] == [CELL, CELL]
    assert back[1].spans == made.spans
    assert {event["ph"] for event in whole["traceEvents"]} == {"M", "X"}


def test_memory_at_its_peak_is_the_highest_sum_in_time():
    changes = [(1, 100), (2, 50), (4, -120), (3, 30), (5, 10)]
    events = [{"name": "[memory]", "ts": at, "args": {"Bytes": size, "Device Type": 0}} for at, size in changes]
    events.append({"name": "[memory]", "ts": 3, "args": {"Bytes": 999, "Device Type": 1}})
    assert highest(events) == 180


def test_a_real_trace_shows_every_byte_that_is_reduced_on_every_rank(tmp_path, capsys):
    arguments = ["trace", "--workload", "mlp", "--world", "2", "--subject", "impl", "--hook", "none,sequential"]
    assert main([*arguments, "--backend", "gloo", "--cap", "0.25", "--out", str(tmp_path)]) == 0
    whole = json.loads((tmp_path / "timeline.trace.json").read_text())
    made = trace.iterations_of(whole)
    assert [one.cell.hook for one in made] == ["none", "sequential"]
    size = sum(parameter.nbytes for parameter in load("mlp", "cpu").model().parameters())
    for one in made:
        for spans in one.spans:
            reduced = [span for span in spans if span.name == "all-reduce"]
            assert len(reduced) > 1
            assert sum(span.n_bytes for span in reduced) == size
            assert {span.name for span in spans if span.lane == "phase"} == {"forward", "backward", "step"}
            assert all(span.end_us >= span.start_us >= 0 for span in spans)
    assert (tmp_path / "charts" / "timeline.png").exists()
    again = tmp_path / "again"
    assert main(["chart", str(tmp_path / "timeline.trace.json"), "--out", str(again)]) == 0
    assert (again / "timeline.svg").exists()
    (tmp_path / "odd.trace.json").write_text('{"traceEvents": [], "otherData": {"variants": [{}]}}')
    assert main(["chart", str(tmp_path / "odd.trace.json"), "--out", str(again)]) == 2
    assert "ui.perfetto.dev" in capsys.readouterr().out


def test_a_wrong_subject_is_not_traced(tmp_path, capsys):
    arguments = ["trace", "--workload", "mlp", "--world", "2", "--backend", "gloo"]
    arguments += ["--subject", "perf.tests.planted:lossy"]
    assert main([*arguments, "--out", str(tmp_path)]) == 1
    assert "is void" in capsys.readouterr().out
    assert not (tmp_path / "timeline.trace.json").exists()


HOOKS = [
    {"workload": "mlp", "strategy": ["plain", "join"]},
    {"workload": "mlp", "optimizer": "adam", "zero": "on", "cap_mib": [0.0, 1.0],
     "hook": ["none", "sequential", "interleaved"]},
    {"workload": "mlp", "optimizer": "adam", "hook": ["none", "local"]},
]  # fmt: skip


def test_of_a_record_the_hooks_of_one_subject_are_traced(tmp_path):
    made = rows(HOOKS, lambda cell, rank: 10.0)
    asked = {"asked": {"subjects": {"impl": "impl", "torch": "torch"}}}
    cells, specs = telling(made, asked)
    assert [cell.variant for cell in cells] == [
        "impl · zero · cap 1", "impl · sequential · zero · cap 1", "impl · interleaved · zero · cap 1",
    ]  # fmt: skip
    assert specs == {"impl": "impl"}
    for row in made:
        if row["axes"]["optimizer"] == "adam" or row["subject"] == "impl":
            row["status"] = "void"
    cells, specs = telling(made, asked)
    assert [cell.variant for cell in cells] == ["torch", "torch · join"]
    assert specs == {"torch": "torch"}


def test_series_of_a_record_that_are_named_are_traced_as_they_are(tmp_path):
    made = rows([{"workload": "mlp", "zero": ["off", "on"], "optimizer": "adam"}], lambda cell, rank: 10.0, world=2)
    path = tmp_path / "one.jsonl"
    record(path, made)
    names = [row["series"] for row in made if row["axes"]["copy"] == 1 and row["subject"] == "torch"]
    cells, specs = asked(parser().parse_args(["trace", str(path), *(w for name in names for w in ("--only", name))]))
    assert [cell.series for cell in cells] == names
    assert "torch" in specs
    with pytest.raises(BadInput, match=r"no sound step of the series 'mlp'; there are"):
        asked(parser().parse_args(["trace", str(path), "--only", "mlp"]))
    with pytest.raises(BadInput, match=r"up to 4 series of one group"):
        asked(parser().parse_args(["trace", str(path), *["--only", names[0]] * 5]))


@pytest.mark.long
@pytest.mark.skipif(bool(unavailable()), reason=f"no hosts here: {unavailable()}")
def test_what_was_measured_over_a_network_is_traced_over_it(tmp_path):
    axes = {"workload": "paced", "size": "dlrm", "world": 2, "network": "50mbit", "cap_mib": 1.0}
    path = tmp_path / "one.jsonl"
    record(path, rows([axes], lambda cell, rank: 10.0, ["impl"]))
    assert main(["trace", str(path), "--out", str(tmp_path / "out")]) == 0
    (one,) = trace.iterations_of(json.loads((tmp_path / "out" / "timeline.trace.json").read_text()))
    reduced = [span for span in one.spans[0] if span.name == "all-reduce"]
    # 4 MB at 50 Mbit/s take 0.67 s; over the loopback some milliseconds
    assert sum(span.end_us - span.start_us for span in reduced) > 0.3e6


def test_a_sweep_ends_with_its_charts(tmp_path, capsys):
    path = tmp_path / "one.jsonl"
    record(path, rows([{"workload": "mlp"}], lambda cell, rank: 10.0, world=1))
    assert closing(path, traced=True) == 0
    said = capsys.readouterr().out
    assert "ratio.png" in said
    assert "no chart hooks: the record has no interleaved step" in said
    assert "no chart timeline: the record has no sound step on several ranks" in said
    (tmp_path / "charts").rename(tmp_path / "before")
    (tmp_path / "charts").write_text("in the way")
    assert closing(path, traced=False) == 3
    assert "the record is whole" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workload", "mpl"], "did you mean mlp"),
        (["--hook", "sequental"], "did you mean sequential"),
        (["--cap", "big"], "is no number of MiB"),
        (["--hook", "interleaved", "--subject", "torch"], "hangs on Gloo"),
        (["--out", "/proc/nowhere"], "cannot write into"),
    ],
)
def test_what_cannot_be_traced_is_refused_in_one_sentence(tmp_path, arguments, words, capsys):
    assert main(["trace", "--backend", "gloo", "--out", str(tmp_path), *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
