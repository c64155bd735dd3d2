"""Networks between hosts: what they carry is measured and held against what was asked; bad input is one sentence."""

from types import SimpleNamespace

import pytest

from conformance.bad_input import BadInput
from perf.__main__ import main
from perf.commands import run
from perf.measure.links import Links, wanted_bytes_per_s
from perf.plan import sweep as sweeps
from perf.plan.planning import Place, estimate, plan
from perf.tests.made_up import rows

WANTED = wanted_bytes_per_s("1gbit")


def over(*shares):
    return Links("1gbit", len(shares), WANTED, tuple(share * WANTED for share in shares), (1e5,) * len(shares))


def test_a_network_that_carries_what_was_asked_for_is_no_trouble():
    assert over(0.96, 1.0, 1.04).trouble == ""
    assert over(0.96, 1.0, 1.04).figures() == {"link_bytes_per_s": 0.96 * WANTED, "latency_ns": 1e5}
    assert pytest.approx(119.5e6, rel=1e-3) == WANTED  # of 125e6, after the headers


@pytest.mark.parametrize(("shares", "said"), [
    ((1.0, 0.8), "rank 1 gets 95.6 MB/s of payload, 20 % below"),
    ((1.1, 1.0), "rank 0 gets 131.5 MB/s of payload, 10 % above"),
])  # fmt: skip
def test_one_that_is_off_by_more_than_5_percent_is_named(shares, said):
    assert said in over(*shares).trouble


def test_one_that_is_sooner_than_its_delay_is_named():
    late = {each: Links("1gbit 200us", 2, WANTED, (WANTED, WANTED), (520e3, each)).trouble for each in (4e5, 2e5)}
    assert late[4e5] == ""
    assert "rank 1 reaches the next in 200 us, not 400 us" in late[2e5]


def test_without_a_network_there_is_nothing_to_measure():
    assert (Links().trouble, Links().figures()) == ("", {})


class Measured:
    """A runner whose cells are all sound."""

    def __init__(self, found):
        self.found = found

    def links(self, order):
        return self.found

    def measure(self, order, limit):
        return iter(rows([{}], lambda *_: 1.0, subjects=["torch"]))


@pytest.mark.parametrize(("found", "status"), [
    (over(1.0, 1.0), "ok"), (over(1.0, 0.8), "void"), (Links(missing="no hosts here: …"), "not run"),
])  # fmt: skip
def test_a_cell_over_a_wrong_network_is_void_and_over_none_not_run(found, status):
    from perf.measure.on_ranks import Order
    from perf.measure.reliance import Judged

    sweep = sweeps._checked("mine", {"cells": [{"network": "1gbit"}]}, "mine")
    (group,) = plan(sweep, ["torch"], 2, lambda _: Place("gloo", "cpu")).groups
    order = Order(group, {"torch": "torch"}, 1, 1, None, 2, 2)
    budget = SimpleNamespace(gone=lambda: False, limit=lambda group: None, share=lambda groups: None)
    made = list(run._rows(order, [], Judged(), Measured(found), budget, False))
    assert {row["status"] for row in made} == {status}
    assert all(("link_bytes_per_s" in row["derived"]) == (status == "ok") for row in made)


@pytest.mark.parametrize(("words", "said"), [
    (("--hosts", "2", "--net", "200"), "is not a number with a unit"),
    (("--hosts", "2", "--net", "200mbit", "--delay", "5"), "is not a number with a unit"),
    (("--hosts", "900"), "from 1 to 64"),
    (("--hosts", "many"), "HOSTS"),
    (("--hosts", "2", "--world", "2"), "leave WORLD out"),
    (("--hosts", "2", "--backend", "nccl"), "leave the backend 'nccl' out"),
    (("--net", "1gbit"), "say how many by HOSTS"),
])  # fmt: skip
def test_bad_input_is_one_sentence_and_status_2(words, said, capsys, monkeypatch):
    monkeypatch.setattr(run, "unavailable", lambda: "")
    assert main(["run", "--sweep", "smoke", "--subject", "torch", *words]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.startswith("perf: ")
    assert told.count("\n") == 1


def test_hosts_under_a_launcher_and_hosts_that_cannot_be_had_are_refused(capsys, monkeypatch):
    words = ["run", "--sweep", "smoke", "--subject", "torch", "--hosts", "2"]
    monkeypatch.setattr(run, "unavailable", lambda: "no namespaces")
    assert main(words) == 2
    assert capsys.readouterr().err == "perf: not run: no hosts here: no namespaces\n"
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main(words) == 2
    assert "use one of the two" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["200", "1gbit 5", "1gbit 200us 3ms", "fast"])
def test_a_sweep_names_a_network_by_rate_and_delay(value):
    with pytest.raises(BadInput, match=r"mine: "):
        sweeps._checked("mine", {"cells": [{"network": value}]}, "mine")


def test_groups_of_one_network_are_measured_together_on_as_many_hosts_as_any_needs():
    cells = [{"world": [2, 4], "network": ["1gbit", "200Mbit  200us", ""]}]
    made = plan(sweeps._checked("mine", {"cells": cells}, "mine"), ["impl"], 4, lambda _: Place("nccl", "cuda"))
    assert [group.network for group in made.groups] == ["", "", "200mbit 200us", "200mbit 200us", "1gbit", "1gbit"]
    assert made.hosts == {"1gbit": 4, "200mbit 200us": 4}
    assert {cell.backend for group in made.groups if group.network for cell in group} == {"gloo"}
    assert estimate(made, 2) > estimate(plan(made.sweep, ["impl"], 2, lambda _: Place("gloo", "cpu")), 2)
