"""Programs drawn at random: legal by construction, the same from the same seed, and judged as they should be."""

import ast
import contextlib
import dataclasses
import json
import random
import signal
import subprocess
import sys
from argparse import Namespace
from concurrent.futures import Future
from itertools import product
from pathlib import Path

import pytest
import torch

from conformance import clauses
from conformance.__main__ import main
from conformance.commands.explore import explore_command
from conformance.deviations import built_in
from conformance.engine.judgement import BROKEN
from conformance.explore import axes, batch, covering, drawing, judging, listed, oracle, session
from conformance.explore import tolerance as tolerances
from conformance.explore.batch import smaller
from conformance.explore.drawing import drawn
from conformance.explore.judging import Failure
from conformance.explore.loading import SUBJECTS_NAMES
from conformance.explore.offering import ASKED, SUBJECT_MATTER, lacking, offered
from conformance.explore.program import Program
from conformance.explore.rounding import is_exact
from conformance.explore.script import script, write
from conformance.explore.session import Asked, Explored, batch_row, explore
from conformance.explore.source import source
from conformance.explore.summary import summary
from conformance.explore.tolerance import Tolerance
from conformance.ranks import Cluster
from conformance.subjects import Subject, Unsupported, resolve

DRAWN = [drawn(random.Random(seed)) for seed in range(30)]


def program(**choices: str) -> Program:
    """A program by its choices; blanks of axes are written as underscores."""
    return Program.read(json.dumps({axis.replace("_", " "): value for axis, value in choices.items()}))


#: torch and ours fail alike at the usual tolerance: outputs grow to 1e4, and rounding with them
RUNAWAY = Program(
    program(blocks="two", buckets="tiny", wiring="chained", further_layer="recurrent", hook="allreduce",
            optimizer="maximizing", registered="between blocks", types="complex", unused="found", world="3").choices,
    layers=2, iterations=3, order=3,
)  # fmt: skip


def never(_: Program) -> None:
    """A judge to whom every program is right."""


# -- legality


def test_every_rule_says_why_and_names_a_clause_of_the_catalogue_if_any():
    catalogue = clauses.load()
    for rule in axes.RULES:
        assert rule.why
        assert not rule.clause or catalogue.get(rule.clause) is not None, rule


def test_every_choice_is_part_of_some_legal_program():
    assert all(axes.closed(dict([feature])) is not None for feature in axes.FEATURES)


def test_a_drawn_program_keeps_every_rule_and_survives_being_written_down():
    for each in DRAWN:
        assert axes.closed(each.choices) == dict(each.choices)
        assert Program.read(each.json()) == each


def test_the_text_of_every_program_is_python():
    for each in DRAWN:
        ast.parse(source(each))


def test_a_program_that_cannot_be_is_refused_with_the_rule_that_forbids_it():
    with pytest.raises(ValueError, match=r"HOOK-005|COMM-007"):
        Program.read('{"overlapped": "sequential", "hook": "user"}')
    with pytest.raises(ValueError, match="no such choices"):
        Program.read('{"overlapped": "sideways"}')


def test_uneven_schedules_are_never_even():
    for counts, shape in product(product(range(4), repeat=4), ("uneven", "none on some")):
        made = Program({"world": "3", "context": "Join", "schedule": shape}, counts=counts).schedule(0)
        assert len(set(made)) > 1
        assert (0 in made) == (shape == "none on some")


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_every_rank_has_a_count(world):
    made = Program({"world": str(world), "context": "Join", "schedule": "uneven"}, counts=(3, 1, 2)).schedule(0)
    assert made == (3, 1, 2, 3, 1, 2, 3, 1)[:world]


# -- drawing and making smaller


def test_the_same_seed_draws_the_same_programs():
    def seen(seed: int) -> list[frozenset]:
        return batch.judged(3, seed, never, [], axes.FEATURES, size=8).met

    assert seen(1) == seen(1)
    assert seen(1) != seen(2)


@pytest.mark.long
def test_batches_begin_with_pairs_until_every_legal_pair_was_there():
    batches = -(-len(axes.legal_pairs()) // drawing.BATCH)
    begun = {pair for number in range(batches) for pair in drawing.focus(7, number, axes.FEATURES)}
    assert begun == axes.legal_pairs()


def test_a_failure_is_reduced_to_the_choices_that_cause_it_and_the_batch_goes_on():
    def judge(drawn: Program) -> Failure | None:
        return Failure(drawn, "differs", "made up") if drawn.has("wiring") else None

    first = batch.judged(1, 5, judge, [], axes.FEATURES, size=80)
    assert [failure.program for failure, _ in first.new] == [program(wiring="chained")]
    again = batch.judged(1, 5, judge, [first.new[0][0].program.features], axes.FEATURES, size=80)
    assert not again.new
    assert again.known


def test_every_smaller_program_is_legal_and_has_less():
    large = program(overlapped="interleaved", overlap="both", context="Join", schedule="uneven", world="3")
    found = list(smaller(large))
    assert found
    assert all(each.features < large.features and axes.closed(each.choices) == each.choices for each in found)


# -- the oracle


def test_the_oracle_averages_over_the_active_ranks_where_the_program_says_so():
    choices = {"context": "Join", "schedule": "none on some", "divisor": "by the active"}
    by_active = oracle.answers(Program(choices, counts=(0, 1, 1, 1)))
    by_all = oracle.answers(Program({**choices, "divisor": "by all"}, counts=(0, 1, 1, 1)))
    key = "iteration 0", "gradient linear0.weight"
    assert torch.equal(by_active[1][key], 2 * by_all[1][key])


def test_an_unused_parameter_keeps_no_gradient_in_the_oracle():
    noted = oracle.answers(program(use="never"))
    assert noted[0]["iteration 0", "gradient extra.weight"] is None


def test_what_the_documents_leave_open_is_not_compared():
    noted = oracle.answers(program(accumulation="no_sync", buffers="float"))
    assert noted[1]["iteration 0", "buffer count"] == oracle.OPEN
    assert not judging.first_difference(Tolerance(Program()), {("a", "b"): 5}, {("a", "b"): oracle.OPEN})


def test_a_single_wrong_bit_is_noticed_where_sums_are_exact_and_rounding_is_allowed_where_they_are_not():
    right = {("m", "n"): torch.tensor([3.0, 6.0])}
    off = {("m", "n"): torch.tensor([3.0, 6.0000005])}
    assert judging.first_difference(Tolerance(Program()), off, right)
    chained = Tolerance(program(wiring="chained"))
    assert not judging.first_difference(chained, off, right)
    assert judging.first_difference(chained, {("m", "n"): torch.tensor([3.0, 6.1])}, right)


def test_what_differs_is_told_by_the_worst_number_its_place_and_the_gap():
    one, other = torch.zeros(2, 8), torch.zeros(2, 8)
    one[0, 7], one[1, 6], other[1, 6] = 0.001, 5.0, 7.5
    told = judging.first_difference(Tolerance(program(wiring="chained")), {("m", "n"): one}, {("m", "n"): other})
    assert "n[1, 6] is 5, one process says 7.5: 2.5 apart" in told
    assert "allowed for rounding" in told


# -- rounding that the program magnifies


def test_a_tolerance_grows_as_far_as_a_unit_of_rounding_does_and_an_early_iteration_has_the_usual_one():
    tolerance = Tolerance(RUNAWAY)
    key, early = ("iteration 10", "gradient further.weight_ih_l0"), ("iteration 0", "gradient further.weight_ih_l0")
    late, first = tolerance.expected[0][key], tolerance.expected[0][early]
    grown = tolerance.grown(0, key, late)
    assert 2 * tolerance.usual(late) < grown < 0.01 * late.abs().max()
    assert tolerance.grown(0, early, first) == tolerance.usual(first)
    values = tolerance.expected[0]
    assert not judging.first_difference(tolerance, {**values, key: late + 0.5 * grown}, values)
    assert judging.first_difference(tolerance, {**values, key: late + 2 * grown}, values)
    assert judging.first_difference(tolerance, {**values, early: first * (1 + 2**-10)}, values)


def test_what_rounding_may_change_altogether_is_left_out_and_said(monkeypatch):
    monkeypatch.setattr(tolerances, "BOUND", 2.0**-10)
    tolerance, partly = Tolerance(RUNAWAY), []
    values, key = tolerance.expected[0], ("iteration 10", "gradient further.weight_ih_l0")
    wrong = {**values, key: 2 * values[key]}
    assert not judging.first_difference(tolerance, wrong, values, partly=partly)
    assert partly == ["iteration 10"]
    assert key not in [each for each, *_ in tolerance.compared(0)]
    early = "iteration 0", "gradient linear0.weight"
    assert judging.first_difference(tolerance, {**values, early: 2 * values[early]}, values)


def test_a_buffer_that_begins_large_does_not_end_the_comparison():
    tolerance, partly = Tolerance(program(wiring="chained", buffers="double")), []
    values, late = tolerance.expected[0], ("iteration 1", "gradient linear0.weight")
    assert not judging.first_difference(tolerance, values, values, partly=partly)
    assert not partly
    assert judging.first_difference(tolerance, {**values, late: 2 * values[late]}, values)
    huge = {**values, late: 2.0**21 * values[late].sign()}
    assert not judging.first_difference(tolerance, values, huge, partly=partly)
    assert partly == ["iteration 1"]


def test_a_program_that_is_exact_has_no_tolerance():
    tolerance = Tolerance(program(context="Join", schedule="uneven"))
    assert {most for rank in tolerance.expected for _, _, most in tolerance.compared(rank)} == {0.0}


def test_averages_that_are_averaged_once_more_in_halves_may_round():
    twice = program(accumulation="every second", backward="in two parts", unused="found", use="by rank")
    assert is_exact(twice)
    assert not is_exact(Program({**twice.choices, "types": "half"}))


def test_a_row_counts_the_drawn_programs_that_were_compared_in_part(tmp_path):
    batch_of = batch_row(4, 1, "impl", [], never)["met"]
    partly: dict[str, str] = {}

    def judge(drawn: Program) -> None:
        partly.setdefault(drawn.json(), "iteration 1")

    row = batch_row(4, 1, "impl", [], judge, partly)
    assert sum(row["partly"].values()) == len(batch_of)
    explored = Explored()
    explored.add({**json.loads(json.dumps(row)), "at": 1.0})
    assert f"{len(batch_of)} programs, from iteration 1" in summary(explored, "impl", axes.FEATURES)[0]


# -- on ranks


@pytest.mark.slow
def test_ranks_of_ours_do_what_one_process_says_and_a_planted_defect_is_noticed():
    choices = program(context="Join", schedule="uneven", buckets="tiny", divisor="by the active")
    planted = "conformance.defects.planted:ddp_join__gradients__always_divides_by_the_initial_size"
    chained = {"wiring": "chained", "optimizer": "adam"}
    rounding = Program({**choices.choices, **chained}, counts=(1, 3, 3, 3))
    lowered = Program({**choices.choices, "types": "bfloat16"}, layers=2, counts=(1, 3, 3, 3))
    with Cluster(placing=False) as cluster:
        for each in (choices, rounding, lowered):
            assert judging.judged(each, cluster, "impl") is None
            failure = judging.judged(each, cluster, planted)
            assert failure is not None
            assert "apart" in failure.text


@pytest.mark.slow
def test_a_program_whose_rounding_grows_is_as_one_process_to_the_command_and_to_its_script(tmp_path):
    with Cluster(placing=False) as cluster:
        assert judging.judged(RUNAWAY, cluster, "torch") is None
    path = write(tmp_path, RUNAWAY, "torch", "")
    run = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
    assert "AS ONE PROCESS" in run.stdout, run.stdout + run.stderr


@pytest.mark.slow
def test_a_program_that_fails_is_written_as_a_script_and_the_terminal_gets_its_path(tmp_path, capsys):
    planted = "conformance.defects.planted:ddp_join__gradients__always_divides_by_the_initial_size"
    text = program(context="Join", schedule="uneven", divisor="by the active", wiring="chained").json()
    given = Namespace(subject=planted, program=text, out=str(tmp_path))
    assert explore_command(given) == BROKEN
    said = capsys.readouterr().out
    assert len(said) < 2000
    path = Path(said.split()[-1])
    assert path.is_relative_to(tmp_path.resolve())
    head, found, rest = path.read_text(encoding="utf-8").partition("('iteration 0', 'gradient linear0.weight'): ([[")
    path.write_text(f"{head}{found}1000 + {rest}", encoding="utf-8")
    run = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 1, run.stderr
    assert "DIFFERS" in run.stdout
    assert "gradient linear0.weight" in run.stdout
    assert "1e+03 apart, number 0 of 16" in run.stdout


@pytest.mark.slow
def test_a_script_runs_by_itself_and_says_what_differs(tmp_path):
    path = tmp_path / "one.py"
    path.write_text(script(program(evaluation="by all", buffers="float"), "torch"), encoding="utf-8")
    run = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
    assert run.returncode in (0, 1), run.stderr
    assert ("AS ONE PROCESS" in run.stdout) == (run.returncode == 0), run.stdout


# -- sessions


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_exploration_with_the_seed_that_goes_on(tmp_path, monkeypatch, capsys, number):
    monkeypatch.setattr("conformance.commands.explore.explore", lambda *_: signal.raise_signal(number))
    assert main(["explore", "--subject", "impl", "--seed", "5", "--out", str(tmp_path)]) == 130
    assert "interrupted; the same command with seed 5 goes on" in capsys.readouterr().err


def test_an_interrupted_exploration_goes_on_where_it_stopped(tmp_path):
    asked = Asked("impl", 1, 0.0, 1, tmp_path)
    row = batch_row(4, 1, "impl", [], never)
    header = {"explore": 1, "subject": "impl", "seed": 1}
    text = "\n".join(map(json.dumps, [header, {**row, "at": 5.0}])) + "\n"
    (tmp_path / "explored.jsonl").write_text(text + '{"torn', encoding="utf-8")
    explored = explore(asked, lambda *_: None)
    assert explored.batches == {4}
    assert explored.programs == drawing.BATCH
    assert explore(asked, lambda *_: None).programs == 0  # that one had come to its end


class FakeWorkers(contextlib.nullcontext):
    """Of each batch a row at once; a program fails in the second."""

    def submit(self, number, *_):
        failure = {"program": program(buffers="float").json(), "kind": "differs", "text": "3.0", "evidence": ""}
        done = Future()
        done.set_result({"batch": number, "met": [[]], "known": [], "new": [failure] if number == 1 else []})
        return done


@pytest.mark.parametrize(("first", "programs"), [(True, {2}), (False, range(3, 1_000_000))])
def test_an_exploration_that_is_to_find_one_failure_ends_with_it(tmp_path, monkeypatch, first, programs):
    monkeypatch.setattr(session, "Workers", lambda _: FakeWorkers(FakeWorkers()))
    explored = explore(Asked("impl", 1, 1.0, 1, tmp_path, first=first), lambda *_: None)
    assert len(explored.causes) == 1
    assert explored.programs in programs


def test_an_exploration_in_which_no_program_ran_decides_nothing(tmp_path, capsys):
    assert main(["explore", "--subject", "impl", "--minutes", "1e-9", "--out", str(tmp_path)]) == 4
    assert "nothing was decided of impl: no program ran" in capsys.readouterr().out


def test_what_falls_over_by_itself_is_no_listed_deviation():
    cause = session.Cause(program(delayed="one layer", types="double"), judging.FALLS_OVER, "ForkServerFailed: gone")
    text, unlisted = summary(Explored(programs=1, causes=[cause]), "torch", axes.FEATURES)
    assert unlisted == 1
    assert "falls over (NOT LISTED)" in text
    text, unlisted = summary(Explored(programs=1, causes=[dataclasses.replace(cause, kind="differs")]), "torch", ())
    assert (unlisted, "differs (listed: DDP-122" in text) == (0, True)


def test_nothing_is_drawn_that_asks_for_what_a_subject_lacks(monkeypatch):
    names = {name: Bare for name in SUBJECTS_NAMES if name != "ZeroRedundancyOptimizer"}
    monkeypatch.setattr(session, "resolve", lambda _: Subject("without", "1", names, {"no_sync": "not here"}))
    drawn = set(session.drawn_features("somebody:subject"))
    assert not [feature for feature in drawn if feature[0] == "sharded" or feature == ("accumulation", "no_sync")]
    assert {("schedule", "uneven"), ("buckets", "tiny")} & drawn
    monkeypatch.undo()
    assert session.drawn_features("torch") == tuple(session.allowed_features("torch"))
    assert session.drawn_features("impl") == axes.FEATURES


def test_failures_of_two_workers_with_one_cause_are_one_cause():
    explored = Explored()
    new = {"program": program(buckets="tiny").json(), "kind": "differs", "text": "", "evidence": "", "drawn": ""}
    larger = {**new, "program": program(buckets="tiny", wiring="chained").json()}
    row = {"batch": 0, "at": 1.0, "met": [], "known": [], "new": [new]}
    assert len(explored.add(row)) == 1
    assert explored.add({**row, "new": [larger]}) == []
    assert (len(explored.causes), explored.failures()) == (1, 2)


# -- what a subject lacks

ASKS = {  # by what it says that it lacks: choices of a program that asks for it
    "register_comm_hook": {"hook": "user"}, "_register_builtin_comm_hook": {"hook": "builtin"},
    "_register_buffer_comm_hook": {"buffer hook": "before forward"}, "mixed_precision": {"lowered": "bfloat16"},
    "_update_process_group": {"moved": "to another group"}, "pickling": {"averaged": "of the wrapper"},
    "static_graph": {"graph": "static"}, "find_unused_parameters": {"unused": "found"},
    "no_sync": {"accumulation": "no_sync"},
    "gradient_as_bucket_view": {"gradients": "views"}, "init_sync": {"start": "init_sync=False"},
    "delay_all_reduce_named_params": {"delayed": "one layer"}, "batched_grad_copy": {"copying": "batched"},
    "_set_params_and_buffers_to_ignore_for_model": {"ignored": "one layer"},
    "skip_all_reduce_unused_params": {"unused": "skipped"}, "join": {"context": "ddp.join"},
    "divide_by_initial_world_size": {"divisor": "by the active"}, "bucket_cap_mb": {"buckets": "tiny"},
    "parameters_as_bucket_view": {"sharded": "bucket views"}, "process_group": {"group": "of its own"},
    "throw_on_early_termination": {"early end": "throws"},
    "consolidate_state_dict": {"sharded": "zero", "state": "saved and loaded"},
}  # fmt: skip


class Bare:
    """A wrapper that takes a model, and can do nothing else."""

    def __init__(self, module):
        self.module = module


def bare(*lacks: str) -> Subject:
    """All of torch's names, but a wrapper of its own that lacks these."""
    names = dict.fromkeys(SUBJECTS_NAMES, Bare)
    return Subject("bare", "1", names, dict.fromkeys(lacks, ""))


def test_a_program_is_judged_without_what_its_text_or_a_choice_asks_for_and_the_subject_lacks():
    assert set(ASKED) <= set(axes.FEATURES)
    for lacked, choices in ASKS.items():
        asking, subject = Program.read(json.dumps(choices)), bare(lacked)
        assert lacking(asking, subject) == lacked
        assert offered([asking], bare()) == [asking]
        if not set(choices) - set(SUBJECT_MATTER):
            with pytest.raises(Unsupported, match=lacked):
                offered([asking], subject)
            continue
        [within] = offered([asking], subject)
        assert not lacking(within, subject)
        assert all(within[axis] == value for axis, value in choices.items() if axis in SUBJECT_MATTER)


def test_only_what_is_lacking_and_what_needs_it_is_taken_out_of_a_program():
    asking = program(hook="user", registered="between blocks", blocks="two", buffers="float", norm="batch")
    [within] = offered([asking], bare("register_comm_hook"))
    assert within == program(blocks="two", buffers="float", norm="batch")


def test_of_the_kept_programs_few_are_left_out_for_a_subject_without_hooks():
    subject = bare("register_comm_hook", "_register_builtin_comm_hook", "_register_buffer_comm_hook", "pickling")
    plain = [each for each in covering.kept() if not each.has("overlapped")]
    left = offered(plain, subject)
    assert not any(lacking(each, subject) for each in left)
    assert len(left) > 0.9 * len(plain)


def test_a_name_that_is_not_provided_counts_as_lacking_and_a_member_that_is_there_does_not():
    asking = program(hook="PowerSGD")
    assert lacking(asking, Subject("none", "1", {"DistributedDataParallel": Bare})) == "powerSGD_hook"
    assert not lacking(asking, Subject("declares", "1", resolve("torch").names, {"register_comm_hook": "", "join": ""}))
    assert not any(lacking(each, resolve("impl")) for each in DRAWN)


# -- listed deviations


def test_every_clause_that_explains_a_failure_of_torch_is_a_listed_deviation():
    deviating = {each.clause for each in built_in("torch")}
    assert set(listed.LISTED) <= deviating
    for patterns in listed.LISTED.values():
        for pattern in patterns:
            assert all(values == "*" or set(values.split(" | ")) <= set(axes.AXES[axis])
                       for axis, values in pattern.items()), pattern  # fmt: skip


def test_a_fault_of_torch_explains_a_failure_where_its_class_does_the_work_and_the_release_still_has_it(monkeypatch):
    delayed, twice = program(delayed="one layer", types="double"), program(forwards="two", norm="batch")
    adapters = "conformance.subjects.foreign"
    for subject in ("torch", f"{adapters}.fabric:subject", f"{adapters}.torchft_ddp:subject"):
        assert "DDP-122" in listed.listed(delayed, subject)
    for subject in ("impl", f"{adapters}.megatron:subject", f"{adapters}.torch_fsdp:subject", "mine:subject"):
        assert not listed.listed(delayed, subject)
    for release, said in (("2.11.0", ["DDP-086"]), ("2.13.0+cpu", [])):
        monkeypatch.setattr(listed.torch, "__version__", release)
        assert listed.listed(twice, "torch") == said


def test_in_the_kept_programs_every_legal_pair_of_choices_meets():
    met = {pair for program in covering.kept() for pair in axes.pairs(program.features)}
    missing = covering.wanted() - met
    assert not missing, f"write the file anew, with conformance.explore.covering.written(): {sorted(missing)[:3]}"
