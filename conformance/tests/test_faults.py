"""The fault matrix itself: it has the cells it should, tells good from bad, keeps its record, and knows what is bad."""

import json
import signal
import time
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.distributed as dist

from conformance.__main__ import main
from conformance.bad_input import BadInput
from conformance.faults import cells, judging, known, promises, soak
from conformance.faults.cells import Cell
from conformance.faults.judging import Judged
from conformance.faults.running import Row, Workers, recorded, run_one
from conformance.faults.soak import MOST, Grown
from conformance.faults.table import summary
from conformance.ranks import Cluster
from conformance.tests import faulty_subjects

#: of what runs in ``make test``: the same cells each time; another seed draws others (make faults TENTH=1 SEED=7)
SAMPLE, SAMPLE_SEED = 14, 19
KILLED = Cell("SIGKILL", "first bucket", "live", "DDP")
AGREED = "the other ranks' agreement"  # in strict mode
BETWEEN = Cell("SIGKILL", "between iterations", "live", "DDP")


# -- which cells there are


def test_there_are_at_least_six_hundred_cells_and_each_is_legal():
    assert len(cells.matrix()) >= 600
    assert set(cells.matrix()) <= set(cells.legal())


def test_every_fault_meets_every_point_and_every_program_in_every_role_that_it_can():
    def met(chosen):
        pairs = Counter()
        for cell in chosen:
            pairs.update([("point", cell.kind, cell.point, cell.role), ("program", cell.kind, cell.role, cell.program)])
        return set(pairs)

    assert met(cells.matrix()) == met(cells.legal())


def test_no_fault_point_role_or_program_is_without_a_cell():
    for place, values in enumerate((cells.KINDS, [point.name for point in cells.POINTS], cells.ROLES, cells.PROGRAMS)):
        assert {cell.id.split("/")[place] for cell in cells.matrix()} == set(values)


def test_every_stage_of_the_table_has_a_point():
    names = {point.name for point in cells.POINTS}
    assert names >= {
        "roll call", "bucket order", "buffers", "buffers after forward", "first bucket", "second bucket",
        "agreement on use", "delayed gradients", "single parameter",
    }  # fmt: skip


def test_a_rank_has_its_role_when_the_fault_is_due():
    for cell in cells.matrix():
        mine, at = cell.schedule[cell.rank], cell.where.iteration
        others = [count for rank, count in enumerate(cell.schedule) if rank not in cell.failing]
        if cell.role == "shadowing":
            assert mine == 1
            assert min(others) > at
        elif cell.role == "alone":
            assert max(others) == 1 < mine
        else:
            assert mine > at
            assert (cell.role == "about to join") == (mine < max(others))


def test_an_id_says_all_and_a_wrong_one_is_refused():
    assert all(Cell.of(cell.id) == cell for cell in cells.matrix())
    for text in ("nothing", "raise/first bucket/alone/DDP", "raise/first bucket/live/Pipeline"):
        with pytest.raises((ValueError, KeyError)):
            Cell.of(text)


def test_every_cell_can_be_named_by_its_own_id_beside_others():
    ids = [cell.id for cell in cells.matrix()]
    assert any("," in name for name in ids)
    assert cells.patterns(",".join(ids)) == ids
    assert cells.patterns("SIGKILL/*, exit/*/live/Join, regrouped,*mirror, regrouped") == [
        "SIGKILL/*", "exit/*/live/Join, regrouped", "*mirror, regrouped",
    ]  # fmt: skip


def test_a_pattern_that_meets_no_cell_is_named_and_not_dropped(capsys):
    assert main(["faults", "--list", "--select", "SIGKILL/*,nonsense"]) == 2
    assert "no cell meets 'nonsense'" in capsys.readouterr().err
    cell = "SIGKILL/copied shard/shadowing/Join with a mirror, regrouped"
    assert main(["faults", "--list", "--select", cell]) == 0
    assert capsys.readouterr().out.startswith(f"{cell}  world")


def test_a_seed_draws_the_same_tenth_and_another_seed_another_one():
    tenth = cells.sample(cells.matrix(), 60, 1)
    assert tenth == cells.sample(cells.matrix(), 60, 1) != cells.sample(cells.matrix(), 60, 2)


# -- which words name whom

_GLOO = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:44201."


@pytest.mark.parametrize(
    ("text", "reader", "verdict"),
    [
        ("Join: rank 1 has stopped answering (killed). Rank 0 noticed it by: …", 0, ""),
        ("rank 1 left the join context with ValueError. It takes part no more, so rank 2 stops waiting for it", 2, ""),
        ("rank 2 has stopped answering", 0, "blames another"),
        ("rank 1 and rank 2 have not answered within 2 s. At least one of them has stopped", 0, "blames another"),
        (_GLOO, 0, "names nobody"),
        ("a collective failed on rank 0", 0, "names nobody"),
        ("waited for rank 1 (global rank 5) in the reduction", 0, ""),
    ],
)
def test_the_culprit_is_known_by_the_words_of_the_error(text, reader, verdict):
    cell = next(c for c in cells.legal() if c.kind == "SIGKILL" and (c.world, c.rank) == (3, 1))
    assert promises.names_culprit(cell, text, reader) == verdict


def test_a_collective_that_differs_names_the_rank_whose_view_differs():
    cell = next(c for c in cells.legal() if c.kind == "another size" and (c.world, c.rank) == (3, 1))
    assert not promises.names_culprit(cell, "ranks 0 and 2 reduce 20 elements, rank 1 reduces 28", 2)
    assert not promises.names_culprit(cell, "the others reduce 20 elements, this rank 28", 1)
    assert promises.names_culprit(cell, "sizes differ", 0) == "names nobody"


def test_from_behind_a_cut_link_the_other_side_has_gone():
    cell = next(c for c in cells.legal() if c.kind == "link cut")
    assert not promises.names_culprit(cell, "rank 0 has stopped answering", 2)
    assert not promises.names_culprit(cell, "rank 2 has stopped answering", 0)
    assert promises.names_culprit(cell, "rank 1 has stopped answering", 0) == "blames another"


@pytest.mark.parametrize(
    ("cell", "text", "named"),
    [
        (KILLED, "rank 1 was killed", False),
        (KILLED, "rank 1 was killed. This rank was waiting for: bucket 1", True),
        (KILLED, "This rank was waiting for: bucket 1 in iteration 3 of model 0", True),
        (KILLED, "This rank was waiting for: bucket 1 in iteration 2 of model 0", False),
        (KILLED, "This rank was waiting for: bucket 1 in iteration 4 of model 0", False),
        (BETWEEN, "This rank was waiting for: bucket 1 in iteration 4 of model 0", True),
        (BETWEEN, "This rank was waiting for: bucket 1 in iteration 5 of model 0", False),
        (KILLED, "This rank was waiting for: Join: message in iteration 2 of model 0", True),
        (KILLED, f"This rank was waiting for: {AGREED} on Join: message in iteration 2 of model 0", True),
        (KILLED, f"This rank was waiting for: {AGREED} on bucket 1 in iteration 2 of model 0", False),
    ],
)
def test_the_stage_is_of_the_iteration_in_which_the_rank_was_lost(cell, text, named):
    assert promises.names_stage(cell, text) == named


# -- each bad outcome is told from the others


@pytest.fixture(scope="module")
def cluster():
    with Cluster(placing=False, preload=["conformance.faults.training"], deadline_s=90, stall_s=90) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("verdict", faulty_subjects.KINDS)
def test_a_subject_that_is_bad_on_purpose_gets_the_verdict_that_it_deserves(cluster, verdict):
    name = faulty_subjects.KINDS[verdict].__name__.lower()
    cell = Cell("raise", "first bucket", "live", "DDP")
    assert cell.world == 2
    row = run_one(cell, cluster, f"conformance.tests.faulty_subjects:{name}")
    assert row.judged.verdict == verdict, row.judged.why


def report(steps, ranks, made):
    return {"segments": [[steps, ranks, made]]}


@pytest.mark.parametrize(
    ("program", "reports", "words"),
    [
        (cells.REGROUPED, {0: report(2, [0, 1], 2), 1: report(2, [0, 1], 1)}, ""),
        (cells.REGROUPED, {0: report(2, [0, 1], 2), 1: report(1, [0, 1], 1)}, "differently"),
        (cells.REGROUPED, {0: report(1, [0, 1], 2), 1: report(1, [0, 1], 1)}, "2 steps were made"),
        (cells.REGROUPED, {0: report(3, [0, 1], 2), 1: report(3, [0, 1], 2)}, "2 steps were made"),
        (cells.MIRRORED, {0: report(1, [0, 1], 2), 1: report(1, [0, 1], 1)}, ""),
        (cells.MIRRORED, {0: report(0, [0, 1], 2), 1: report(0, [0, 1], 1)}, "2 steps were made"),
    ],
)
def test_ranks_that_go_on_without_another_do_so_alike_and_from_what_they_had(program, reports, words):
    cell = next(each for each in cells.legal() if each.program == program)
    found = judging.gone_astray(cell, reports)
    assert words in found
    assert bool(words) == bool(found)


# -- the record


def made(cell, verdict="told", told_s=0.5):
    return Row(cell, Judged(verdict, told_s, "" if verdict in ("told", "right") else "because"), 1.0)


def test_an_interrupted_record_goes_on_without_its_torn_line(tmp_path):
    wanted, path = list(cells.matrix()[:4]), tmp_path / "impl" / "faults.jsonl"
    asked = []

    def rows(left):
        asked.append(len(left))
        yield from map(made, left)

    first = recorded(path, "impl", wanted, rows)
    assert [next(first).cell for _ in range(2)] == wanted[:2]
    first.close()
    with path.open("a") as record:
        record.write('{"cell": "tor')
    assert [row.cell for row in recorded(path, "impl", wanted, rows)] == wanted
    assert asked == [4, 2]
    assert json.loads(path.read_text().splitlines()[-1]) == {"end": True}
    assert len(list(recorded(path, "impl", wanted, rows))) == 4  # a finished record is begun anew
    assert asked == [4, 2, 4]


# -- what is known to be bad


def listed(**changed):
    return replace(known.Listed("impl", (KILLED.id,), ("names nobody",), "no guard outside a context"), **changed)


def test_what_is_bad_and_not_listed_and_what_is_listed_and_good_is_a_surprise():
    bad, good = made(KILLED, "names nobody"), made(KILLED)
    assert known.surprises("impl", [bad], []) == [f"names nobody: {KILLED.id}: because"]
    assert known.surprises("impl", [bad], [listed()]) == []
    assert known.surprises("impl", [made(KILLED, "hang")], [listed()]) == [f"hang: {KILLED.id}: because"]
    assert known.surprises("impl", [good], [listed()]) == [f"good though listed: {KILLED.id}"]
    assert known.surprises("impl", [good], [listed(sometimes=True)]) == []
    assert known.surprises("torch", [bad], [listed()]) == [f"names nobody: {KILLED.id}: because"]


def test_an_entry_that_is_sometimes_bad_is_stale_when_all_of_its_cells_are_good():
    entry = listed(cells=("SIGKILL/*",), sometimes=True)
    rows = [made(cell) for cell in cells.matrix() if cell.kind == "SIGKILL"]
    assert known.surprises("impl", rows[:3], [entry]) == []
    assert known.surprises("impl", [made(KILLED, "names nobody"), *rows], [entry]) == []
    (told,) = known.surprises("impl", rows, [entry])
    assert "SIGKILL/* (no guard outside a context)" in told


@pytest.mark.parametrize(
    ("verdicts", "status"), [(("not run", "not reached"), 4), (("not run", "right"), 0), (("not run", "hang"), 1)]
)
def test_cells_of_which_none_was_struck_decide_nothing(tmp_path, monkeypatch, verdicts, status):
    (tmp_path / "torch").mkdir()
    rows = [made(cell, verdict) for cell, verdict in zip((KILLED, BETWEEN), verdicts, strict=True)]
    monkeypatch.setattr("conformance.commands.faults.recorded", lambda *_: iter(rows))
    monkeypatch.setattr("conformance.faults.known.load", list)
    assert main(["faults", "--subject", "torch", "--out", str(tmp_path)]) == status


def test_the_list_can_be_read_and_each_entry_covers_a_cell():
    for entry in known.load():
        assert entry.reason
        assert any(entry.covers(entry.subject, made(cell)) for cell in cells.matrix()), entry.cells


def test_an_entry_that_says_nothing_that_could_be_is_refused(tmp_path):
    path = tmp_path / "known.toml"
    path.write_text('[[bad]]\nsubject = "impl"\ncells = ["*"]\nverdicts = ["sad"]\nreason = "x"\n')
    with pytest.raises(BadInput, match="sad"):
        known.load(path)
    path.write_text('[[bad]]\nsubject = "impl"\ncells = ["*"]\nverdicts = ["hang"]\n')
    with pytest.raises(BadInput, match="reason"):
        known.load(path)


def test_the_table_counts_good_cells_and_leaves_out_what_did_not_run():
    here = [made(KILLED), made(Cell("SIGKILL", "second bucket", "live", "DDP"), "hang", 0.0)]
    away = [made(Cell("host gone", "first bucket", "live", "Join"), "not run", 0.0)]
    text, surprising = summary("impl", here + away, [])
    assert "1 of 2 cells good (1 hang), 1 not run" in text
    assert f"| SIGKILL | 1/2 |{' – |' * (len(cells.PROGRAMS) - 1)} 0.5 s, 0.5 s |" in text
    assert surprising == 1


# -- growth


def test_growth_is_told_by_name():
    first = dict.fromkeys(MOST, 10.0)
    assert Grown("iterations", first, first).growing(MOST) == []
    last = {**first, "memory_mib": 10 + MOST["memory_mib"] + 1, "descriptors": 11}
    assert Grown("iterations", first, last).growing(MOST) == ["memory_mib", "descriptors"]


@pytest.mark.slow
def test_a_subject_that_leaks_is_found_out_and_ours_stays_flat(cluster):
    found = {}
    for name in ("conformance.tests.faulty_subjects:leaking", "impl"):
        (grown,) = cluster.run(soak.construct, (40,), world=soak.WORLD, subject=name).values()[0]
        found[name] = grown.growing({**MOST, "memory_mib": 200.0})
    assert list(found.values()) == [["tensors", "descriptors"], []]


@pytest.mark.parametrize(("count", "status"), [(3, 0), (0, 4)])
def test_the_minutes_of_a_soak_are_for_programs_and_without_one_nothing_is_decided(
    tmp_path, monkeypatch, capsys, count, status
):
    given = []
    monkeypatch.setattr(soak, "growth", lambda *_: [])
    monkeypatch.setattr(soak, "programs", lambda *args: (given.append(args[2]), (count, []))[1])
    assert main(["soak", "--minutes", "2", "--out", str(tmp_path)]) == status
    assert given == [120.0]
    assert ("nothing was decided" in capsys.readouterr().out) == (not count)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "turns"), [
    (soak.iterate, soak.LEAST_ITERATIONS), (soak.construct, soak.LEAST_CONSTRUCTIONS),
])  # fmt: skip
def test_the_fewest_turns_leave_some_to_compare(cluster, function, turns):
    (grown,) = cluster.run(function, (turns,), world=soak.WORLD, subject="impl").values()[0]
    assert set(grown.first) == set(grown.last) == set(MOST)


@pytest.mark.slow
def test_a_rank_that_is_stopped_and_woken_again_and_again_still_ends_right():
    with soak.DisturbedCluster(placing=False, deadline_s=90, stall_s=60) as disturbed:
        values = disturbed.run(counting_stops, (20,), world=2, subject="impl").values()
    assert [total for total, _ in values] == [40.0, 40.0]
    assert all(stops for _, stops in values)


def counting_stops(ctx, turns):
    """Sum over both ranks, and how often this process has been woken by SIGCONT."""
    woken = []
    signal.signal(signal.SIGCONT, lambda *_: woken.append(1))
    total = torch.zeros(1)
    for _ in range(turns):
        one = torch.ones(1)
        dist.all_reduce(one)
        total += one
        time.sleep(0.05)
    return total.item(), len(woken)


# -- ours


@pytest.mark.slow
def test_a_sample_of_the_matrix_is_as_good_as_is_known():
    drawn = cells.sample([cell for cell in cells.matrix() if not cell.on_hosts], SAMPLE, SAMPLE_SEED)
    with Workers(2, "impl") as workers:
        rows = list(workers.rows(drawn))
    assert known.surprises("impl", rows, known.load()) == []
    assert {row.cell for row in rows} == set(drawn)


def test_products_of_all_four_are_either_legal_or_refused_for_a_reason():
    everything = list(product(cells.KINDS, [point.name for point in cells.POINTS], cells.ROLES, cells.PROGRAMS))
    for each in everything:
        cell = Cell(*each)
        assert (cell in cells.legal()) == (not list(cells.rules(cell)))
