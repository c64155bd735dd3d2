"""Charts: each shows what its record has, void cells as void, and is not drawn without its cells."""

import random
import re
from importlib import import_module

import matplotlib as mpl
import pytest

from perf.__main__ import main
from perf.analyse.board import Measured, board
from perf.analyse.network import even_steps
from perf.analyse.table import by_group
from perf.charts import CHARTS, draw_all, memory, scaling, skew, winners
from perf.charts.style import styled
from perf.charts.undrawable import Undrawable
from perf.measure.reading import read_perf
from perf.tests.made_up import record, rows

mpl.use("Agg")

OVER_NETWORK = {"workload": "paced", "size": "bert", "pace": [0.5, 1.0], "world": [2, 4], "network": "1gbit"}
EVERYTHING = [
    {"workload": ["mlp", "tiny"], "world": "all", "hook": ["none", "local"]},
    {"workload": "mlp", "cap_mib": [0.1, 1.0, 4.0]},
    {"workload": "mlp", "unit": "epoch", "skew": "linear", "skew_fraction": [0.0, 0.5, 1.0],
     "strategy": ["join", "flag", "drop_last"]},
    {"workload": "mlp", "unit": "epoch", "skew": "linear", "skew_fraction": [0.0, 0.5, 1.0], "hook": "local"},
    {"workload": "mlp", "optimizer": "adam", "zero": "on", "hook": ["none", "sequential", "interleaved"]},
    {"workload": "mlp", "optimizer": "adam", "zero": "off", "world": "all"},
    {"workload": "tiny", "size": "100", "world": [1, 2, 3, 4], "strategy": ["plain", "join"]},
    {"workload": "tiny", "size": ["25", "50", "200", "400", "800"], "world": 2},
    {**OVER_NETWORK, "zero": ["off", "on"]},
    {**OVER_NETWORK, "zero": "on", "hook": ["sequential", "interleaved", "reduce_scatter_interleaved"]},
    {**OVER_NETWORK, "pace": 2.0, "strategy": ["plain", "join", "throwing", "flag"]},
    {**OVER_NETWORK, "hook": "local"},
    {"workload": "light", "world": [2, 4], "network": "100mbit 200us", "strategy": ["plain", "join"]},
]  # fmt: skip


def time_ms(cell, rank):
    """A step of 10 ms and a little that depends on everything."""
    little = 0.5 * rank + 0.1 * cell.cap_mib + {"interleaved": -1.0, "local": -3.0}.get(cell.hook, 0.0)
    return (8 if cell.unit == "epoch" else 1) * (10.0 + little + (0.5 if cell.subject == "torch" else 0.0))


def everything(**more):
    return rows(EVERYTHING, time_ms, world=4, rounds=8, **more)


@pytest.fixture
def drawn(tmp_path):
    """Draws one chart of some rows and returns its figure."""
    from importlib import import_module

    from matplotlib import pyplot

    def draw(name, made):
        with styled():
            return import_module(f"perf.charts.{name}").draw(board([record(tmp_path / f"{name}.jsonl", made)]))

    yield draw
    pyplot.close("all")


def words(figure):
    return [text.get_text() for text in figure.findobj(mpl.text.Text) if text.get_text() and text.get_visible()]


def test_every_chart_is_written_as_png_and_svg_with_where_it_is_from(tmp_path, capsys):
    path = tmp_path / "one.jsonl"
    record(path, everything())
    out = tmp_path / "charts"
    assert main(["chart", str(path), "--out", str(out)]) == 0
    assert {file.name for file in out.iterdir()} == {f"{name}.{kind}" for name in CHARTS for kind in ("png", "svg")}
    for name in CHARTS:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "012345678" in (out / f"{name}.svg").read_text()  # the commit, as text
    assert "no chart" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["skew", "buckets", "memory"])
def test_times_and_sizes_are_read_from_zero(drawn, name):
    assert all(axis.get_ylim()[0] == 0 for axis in drawn(name, everything()).axes)


@pytest.mark.parametrize("name", list(CHARTS))
def test_texts_of_a_chart_do_not_cover_each_other_and_stay_on_the_page(drawn, name):
    figure = drawn(name, everything())
    figure.canvas.draw()
    unseen = {tick.label1 for axis in figure.axes for one in (axis.xaxis, axis.yaxis) for tick in outside(one)}
    texts = [text for text in figure.findobj(mpl.text.Text) if text.get_text().strip() and text.get_visible()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text not in unseen]
    for place, (text, box) in enumerate(boxes):
        assert box.x0 >= figure.bbox.x0 - 1, text
        assert box.x1 <= figure.bbox.x1 + 1, text
        hidden = [other for other, beside in boxes[place + 1 :] if _deep(box, beside)]
        assert not hidden, (text, hidden)


def outside(axis):
    """Ticks beyond the ends of an axis, which are never drawn."""
    low, high = sorted(axis.get_view_interval())
    return [tick for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high]


def _deep(one, other):
    """Whether two boxes share more than an edge."""
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    high = min(one.y1, other.y1) - max(one.y0, other.y0)
    return wide > 2 and high > 2


@pytest.mark.parametrize("name", list(CHARTS))
def test_void_cells_are_shown_as_void_and_have_no_point(drawn, name):
    made = everything()
    for row in made:
        axes = row["axes"]
        # cells that every chart is about, but not the first of its group nor the one on one rank
        if axes["subject"] == "torch" and axes["world"] == 4 and axes["skew_fraction"] != 1.0:
            row |= {"status": "void", "wall_ns": [], "cpu_ns": [], "block": [], "phases": {}}
    said = " ".join(words(drawn(name, made)))
    assert "void" in said


@pytest.mark.parametrize("name", list(CHARTS))
def test_without_its_cells_a_chart_is_not_drawn_and_says_which_sweep_has_them(drawn, name):
    with pytest.raises(Undrawable):
        drawn(name, rows([{"workload": "mlp"}], time_ms, ["impl"]))


def test_the_bound_lies_where_the_sums_say(drawn):
    made = everything()
    (axis,) = drawn("skew", made).axes
    (bound,) = [line for line in axis.lines if line.get_label() == "bound for Join"]
    # even inputs: the slowest of four ranks, 3 ms below what its step takes with communication
    assert bound.get_ydata()[0] == pytest.approx(8 * (10 - 3 + 1.5), rel=0.03)


def test_a_damaged_record_is_named_skipped_and_counted(tmp_path, capsys):
    whole, cut, other = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl", tmp_path / "other.jsonl"
    record(whole, rows([{"workload": "mlp"}], time_ms))
    lines = whole.read_text().split("\n")
    cut.write_text("\n".join([lines[0], "{ not json", *lines[2:]]))
    assert main(["chart", str(cut), str(whole), "--out", str(tmp_path / "charts")]) == 1
    said = capsys.readouterr()
    assert "cut.jsonl: line 2 is no JSON" in said.err
    assert "1 of 2 files passed over" in said.err
    assert "ratio.png" in said.out
    assert main(["chart", str(other), "--out", str(tmp_path / "charts")]) == 2


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, capsys):
    record(tmp_path / "one.jsonl", rows([{"workload": "mlp"}], time_ms))
    assert main(["chart", str(tmp_path / "one.jsonl"), "--out", "/proc/nowhere"]) == 2
    assert "cannot write into /proc/nowhere" in capsys.readouterr().err


def test_the_latest_record_of_a_group_counts(tmp_path):
    made = rows([{"workload": "mlp"}], time_ms)
    old = record(tmp_path / "a.jsonl", [{**row, "status": "void"} for row in made], time="2026-01-01T00:00:00+00:00")
    new = record(tmp_path / "b.jsonl", made, time="2026-02-01T00:00:00+00:00")
    (group,) = board([old, new]).groups
    assert {row["status"] for row in group.rows} == {"ok"}
    assert [chart.reason for chart in draw_all([old, new], tmp_path / "charts") if chart.name == "ratio"] == [""]


def test_conclusions_over_a_network_stand_under_their_chart_with_intervals(drawn):
    made = everything()
    said = {name: " ".join(" ".join(words(drawn(name, made))).split()) for name in CHARTS}
    assert re.search(r"DDP takes 11 ms.*; the best overlap \(interleaved hook, DDP's own cap\) takes 0\.9\d "
                     r"\[0\.\d\d, 0\.\d\d\] \(faster\) of that", said["network"])  # fmt: skip
    assert re.search(r"4 hosts: least is left exposed by interleaved hook, [12]\.\d ms \[\d\.\d, \d\.\d\], "
                     r"\d\.\d ms \[0\.\d, \d\.\d\] less than by [a-zA-Z]", said["exposed"])  # fmt: skip
    assert "the fastest step is decided in 2 of 2 fields" in said["winners"]
    assert re.search(r"2 hosts: 0\.7\d \[0\.\d\d, 0\.\d\d\] of impl's DDP step is compute", said["efficiency"])
    for setting in ("BERT-base, pace 2, 1gbit, 2 hosts", "light, 100mbit 200us, 4 hosts"):
        assert re.search(rf"{setting}: Join adds to a step: impl -?0\.\d ms \[.*; torch", said["join_cost"])


def test_paced_cells_are_left_to_the_charts_that_are_about_them(tmp_path):
    made = rows([{**OVER_NETWORK, "zero": "on", "hook": ["sequential", "interleaved"]}], time_ms, world=2)
    whole = record(tmp_path / "one.jsonl", made)
    drawn = {chart.name for chart in draw_all([whole], tmp_path / "charts") if chart.files}
    assert drawn == {"network", "winners"}


def test_of_steps_that_are_alike_the_map_decides_no_more_than_chance_allows():
    """Of 60 maps of nine fields, as many have a decided field as verdicts that are told together may."""
    caps = [{**OVER_NETWORK, "world": 4, "pace": [0.25, 0.75, 2.0], "cap_mib": cap, "zero": "on",
             "hook": ["sequential", "interleaved", "reduce_scatter", "reduce_scatter_interleaved"]}
            for cap in (0.25, 1.0, 4.0)]  # fmt: skip
    decided = 0
    for seed in range(60):
        gauss = random.Random(seed).gauss
        made = rows(caps, lambda cell, rank, gauss=gauss: 100 * gauss(1, 0.02), ["impl"], 4, seed, 12)
        fields = [one for group in by_group(made).values() for one in winners._fields(Measured(group), "impl")]
        assert len(fields) == 9
        decided += any(one.decided for one in winners._told(fields))
    assert decided <= 0.05 * 60


def test_a_record_of_a_time_with_fewer_axes_is_drawn_as_one_of_today(tmp_path):
    made = rows([{"workload": "mlp", "world": "all"}], lambda cell, rank: 10.0)
    before = [{**row, "axes": {n: v for n, v in row["axes"].items() if n not in ("pace", "network")}} for row in made]
    read_back = read_perf(record(tmp_path / "old.jsonl", before).path)
    assert [row["axes"] for row in read_back.rows] == [row["axes"] for row in made]
    assert even_steps(board([read_back])) == []


def test_sizes_of_a_workload_are_not_drawn_as_one(tmp_path):
    sizes = [{"workload": "tiny", "size": "25", "world": 2}, {"workload": "tiny", "size": "100", "world": [1, 2]}]
    runs = [{"workload": "paced", "size": size, "unit": "epoch", "skew": "linear", "skew_fraction": [0.5, 1.0],
             "strategy": "join"} for size in ("bert", "dlrm")]  # fmt: skip
    states = [{"workload": "tiny", "size": size, "optimizer": "adam", "zero": ["off", "on"]} for size in ("25", "50")]
    made = board([record(tmp_path / "sizes.jsonl", rows([*sizes, *runs, *states], time_ms))])
    worlds = scaling._worlds(made)["tiny, 100 parameters"]
    assert {row["axes"]["size"] for by_subject in worlds.values() for row in by_subject.values()} == {"100"}
    with styled():
        titles = [axis.get_title(loc="left") for chart in (skew, memory) for axis in chart.draw(made).axes]
    assert titles[:2] == ["BERT-base, 2 ranks, linear", "DLRM, 2 ranks, linear"]
    assert titles[2:] == ["tiny, 25 parameters", "tiny, 50 parameters"]


def test_a_caption_names_every_machine_and_day_that_its_records_are_of(tmp_path):
    made = rows([{"workload": "mlp"}], lambda cell, rank: 10.0)
    one = record(tmp_path / "one.jsonl", made, time="2026-11-01T00:00:00+00:00")
    other = record(tmp_path / "other.jsonl", made, time="2026-11-02T00:00:00+00:00")
    other.header["machine"] = {"processor": "another", "cores": 64}
    said = board([one, other]).caption("")
    assert f"{one.header['machine']['cores']} cores; another, 64 cores" in said
    assert "2026-11-01, 2026-11-02" in said
    assert said.count("torch ") == 1


@pytest.mark.parametrize("name", ["skew", "exposed", "join_cost", "network", "winners"])
def test_a_caption_says_how_many_panels_there_is_no_room_for(tmp_path, monkeypatch, name):
    both = [{**cells, "size": ["bert", "dlrm"]} for cells in EVERYTHING if cells.get("size") == "bert"]
    runs = {"workload": "paced", "size": ["bert", "dlrm"], "unit": "epoch", "skew": "linear", "strategy": "join",
            "skew_fraction": [0.5, 1.0]}  # fmt: skip
    made = board([record(tmp_path / "many.jsonl", rows([*both, runs], time_ms, world=4))])
    monkeypatch.setattr(f"perf.charts.{'by_hosts' if name in ('exposed', 'join_cost') else name}._MOST_PANELS", 1)
    with styled():
        figure = import_module(f"perf.charts.{name}").draw(made)
    said = " ".join(" ".join(text.get_text() for text in figure.texts).split())
    assert re.search(r"\. \d+ more panels? (is|are) in the record\.", said)
