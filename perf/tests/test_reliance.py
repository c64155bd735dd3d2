"""What cells rely on, and that a subject's broken guarantee leaves its cell without a time."""

from dataclasses import replace
from pathlib import Path

import pytest

from conformance import deviations
from conformance.bad_input import BadInput
from conformance.clauses import load as catalogue
from perf.__main__ import main
from perf.measure import reliance
from perf.measure.reliance import Broken, Judged, judged_before, judged_now, relied_on
from perf.plan import sweep
from perf.plan.backends import place_of
from perf.plan.planning import plan
from reports.records import read
from reports.simulate.made_rows import conformance_rows, write

pytestmark = pytest.mark.slow

MINE = """
rounds = 2
block = 2
[[cells]]
workload = "light"
hook = ["none", "local"]
"""


@pytest.fixture(scope="module")
def cells():
    """Cells of every built-in sweep, for two subjects."""
    place = place_of("gloo", 4)
    planned = [plan(sweep.load(name), ["impl", "torch"], 4, place) for name in sweep.names()]
    return [cell for each in planned for group in each.groups for cell in group]


def test_every_clause_that_a_cell_relies_on_is_in_the_catalogue(cells):
    asked = reliance.relied_on_by(cells)
    assert set(asked) <= set(catalogue().by_id)
    assert {"DDP-049", "DDPJ-007", "ZERO-008", "HOOK-019", "DDP-057"} <= set(asked)


def test_no_listed_break_of_torch_voids_its_cells_but_those_of_the_overlap_hooks(cells):
    """A check of what no workload does has to be named there, or belongs to a clause of its own."""
    listed = deviations.load(Path(deviations.__file__).with_name("torch.toml")).deviations
    voiding = [each for each in listed if each.clause in reliance.relied_on_by(cells)]
    told = {each.clause for each in voiding if not each.check.startswith(reliance.NO_WORKLOAD_DOES)}
    assert told <= {"HOOK-019"}


def test_what_trains_alone_relies_on_nobody(cells):
    assert {relied_on(cell) for cell in cells if cell.hook in ("local", "no_sync")} == {()}
    assert all("DDP-049" in relied_on(cell) for cell in cells if cell.hook not in ("local", "no_sync"))


def test_only_cells_of_the_subject_and_of_the_hook_that_break_a_clause_are_concerned(cells):
    sequential = next(cell for cell in cells if cell.hook == "sequential" and cell.subject == "torch")
    interleaved = replace(sequential, hook="interleaved")
    judged = Judged((Broken("torch", "HOOK-019", "interleaved, sharded", "ranks 0, 1 hung"),), "a record")
    assert judged.against(interleaved) == "relies on HOOK-019, which torch does not keep: ranks 0, 1 hung"
    assert judged.against(sequential) == ""
    assert judged.against(replace(interleaved, subject="impl")) == ""
    assert judged.against(replace(interleaved, hook="none")) == ""
    everywhere = Judged((Broken("torch", "HOOK-019", "", "late"),), "a record")
    assert everywhere.against(sequential)
    assert everywhere.against(interleaved)


def test_a_failed_check_tells_more_than_a_crashed_one(cells):
    cell = next(cell for cell in cells if cell.subject == "torch" and cell.hook == "none")
    crashed = Broken("torch", "DDP-025", "", "rank 1: RuntimeError: Connection closed by peer", outcome="crashed")
    failed = Broken("torch", "DDP-049", "", "rank 1 has the mean of two", outcome="failed")
    reason = Judged((crashed, failed)).against(cell)
    assert reason == "relies on DDP-049, which torch does not keep: rank 1 has the mean of two"
    assert "Connection closed" in Judged((crashed,)).against(cell)


def test_what_is_broken_on_one_backend_says_nothing_of_another(cells):
    cell = next(cell for cell in cells if cell.subject == "torch" and cell.hook == "sequential")
    judged = Judged((Broken("torch", "DDP-049", "", "late", "nccl"),), "a record")
    assert judged.against(replace(cell, backend="gloo")) == ""
    assert judged.against(replace(cell, backend="nccl"))


def test_on_one_gpu_the_suite_judges_on_it_at_one_rank_and_on_the_cpu_at_two(cells, monkeypatch):
    asked = []

    def suite(command):
        asked.append({name: command[command.index(name) + 1] for name in ("--backend", "--worlds")})
        write(Path(command[command.index("--out") + 1], "conformance.jsonl"), "conformance", [])
        return ""

    monkeypatch.setattr(reliance, "_suite", suite)
    planned = [replace(cells[0], hook="none", subject="impl", world=1, backend="nccl", device="cuda")]
    planned += [replace(planned[0], world=world, backend="gloo", device="cpu") for world in (2, 4)]
    judged = judged_now(planned, {"impl": "impl"})
    assert asked == [{"--backend": "nccl", "--worlds": "1"}, {"--backend": "gloo", "--worlds": "2"}]
    first, second = "the suite at 1 rank on nccl, before measuring", "the suite at 2 ranks on gloo, before measuring"
    assert judged == Judged((), f"{first}; {second}")


@pytest.mark.long
def test_a_subject_that_breaks_what_its_cells_rely_on_gets_no_time(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(MINE)
    arguments = ["run", "--sweep", str(tmp_path / "mine.toml"), "--world", "2", "--backend", "gloo"]
    subjects = ["--subject", "impl,perf.tests.planted:unsynced", "--out", str(tmp_path / "out")]
    assert main([*arguments, *subjects]) == 1
    (path,) = (tmp_path / "out").glob("*.jsonl")
    record = read(path)
    found = {(row["subject"], row["axes"]["hook"], row["axes"]["copy"]): row for row in record.rows}
    assert {key: row["status"] for key, row in found.items() if key[2] == 1} == {
        ("impl", "none", 1): "ok", ("unsynced", "none", 1): "void", ("none", "local", 1): "ok",
    }  # fmt: skip
    reason = found["unsynced", "none", 1]["reason"]
    assert reason.startswith("relies on DDP-025, which unsynced does not keep: ")
    assert found["unsynced", "none", 1]["wall_ns"] == []
    assert record.footer["judged"]["clauses"] == ["DDP-025", "DDP-049"]
    assert ["unsynced", "DDP-025"] in record.footer["judged"]["broken"]
    assert "1 cell is void: it relies on DDP-025, which unsynced does not keep" in capsys.readouterr().out


def test_a_record_of_the_suite_may_have_been_made_before(tmp_path):
    rows = conformance_rows()
    told = ("subject", "clause", "backend", "outcome")
    rows[0] |= dict(zip(told, ("mine", "DDP-049", "gloo", "failed"), strict=True))
    rows[1] |= dict(zip(told, ("impl", "DDP-049", "gloo", "not run"), strict=True))
    rows[2] |= dict(zip(told, ("impl", "DDP-025", "nccl", "failed"), strict=True))
    path = write(tmp_path / "conformance.jsonl", "conformance", rows)
    judged = judged_before(path, "gloo")
    assert [(each.subject, each.clause) for each in judged.broken] == [("mine", "DDP-049")]
    with pytest.raises(BadInput, match="has no results on mpi"):
        judged_before(path, "mpi")
    with pytest.raises(BadInput, match=r"nowhere\.jsonl.*give a record of `make conformance`"):
        judged_before(tmp_path / "nowhere.jsonl", "gloo")


def test_a_record_that_does_not_say_what_the_cells_rely_on_is_refused(tmp_path, cells):
    cell = next(cell for cell in cells if relied_on(cell) == ("DDP-025", "DDP-049") and cell.subject == "impl")
    kept = [{**conformance_rows()[0], "clause": clause} for clause in relied_on(cell)]
    whole = write(tmp_path / "whole.jsonl", "conformance", kept)
    assert judged_before(whole, "gloo", cells=[cell]) == Judged((), "whole.jsonl")
    for name, lacking in {"short": kept[:1], "erring": [kept[0], {**kept[1], "outcome": "suite error"}]}.items():
        path = write(tmp_path / f"{name}.jsonl", "conformance", lacking)
        with pytest.raises(BadInput, match=r"does not say whether impl keeps DDP-049, which these cells rely on"):
            judged_before(path, "gloo", cells=[cell])


def test_a_suite_that_does_not_come_to_its_end_is_told_in_a_sentence(cells, monkeypatch):
    monkeypatch.setattr(reliance, "_LIMIT_S", 0.1)
    with pytest.raises(BadInput, match=r"it had not ended after 0 s; run `make conformance`, or .* by --judged no"):
        judged_now(cells[:4], {"impl": "impl"})
