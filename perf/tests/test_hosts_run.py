"""A whole run over hosts: measured, verified, with what the network carried and sent in every row."""

import pytest

from conformance.hosts import unavailable
from perf.__main__ import main
from perf.measure import links
from reports.records import read

pytestmark = [
    pytest.mark.slow, pytest.mark.skipif(bool(unavailable()), reason=f"no hosts here: {unavailable()}"),
]  # fmt: skip

SWEEP = """
rounds = 1
block = 2
epoch = 2
[[cells]]
workload = "paced"
size = "dlrm"
world = 2
network = "50mbit"
cap_mib = 1.0
strategy = "plain"
[[cells]]
workload = "paced"
size = "dlrm"
unit = "epoch"
skew = "zero_input"
world = 2
network = "50mbit"
strategy = "join"
"""


@pytest.mark.long
def test_a_sweep_over_hosts_is_measured_verified_and_says_what_the_network_carried(tmp_path, monkeypatch):
    monkeypatch.setattr(links, "MOST_OFF", 0.9)  # whatever else runs on this machine
    sweep = tmp_path / "mine.toml"
    sweep.write_text(SWEEP)
    words = ["run", "--sweep", str(sweep), "--subject", "impl", "--judged", "no", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    (path,) = (tmp_path / "out").glob("*.jsonl")
    record = read(path)
    assert [row["status"] for row in record.rows] == ["ok"] * 4
    (network,) = record.footer["networks"]
    assert (network["network"], network["world"], len(network["bytes_per_s"])) == ("50mbit", 2, 2)
    assert len(network["all_reduce_ns"]) == 3
    joined = {row["unit"]: row["derived"] for row in record.rows}
    for facts in joined.values():
        assert facts["link_bytes_per_s"] == min(network["bytes_per_s"])
        assert facts["empty_ns"] > 0
        assert min(facts["link_sent_bytes"]) > facts["parameter_bytes"] / 2  # the joined host's link, too
    step = joined["step"]
    assert step["serial_ns"] - step["floor_ns"] == pytest.approx(step["compute_ns"])  # bytes take longer here
