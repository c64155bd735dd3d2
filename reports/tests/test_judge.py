"""A whole history judged: what regressed and since when, what is new, acknowledged, exact, left out, missed."""

import dataclasses
import json
from datetime import UTC, datetime, timedelta

import numpy
import pytest

from reports.history import HistoryError, add_file, add_night, add_note, opened
from reports.judging import Basis, ClauseState, Health, Parameters, State, judge
from reports.judging.judge import clustered
from reports.judging.model import RETIRED
from reports.nightly.verdict import explained
from reports.records import Writer, identity
from reports.simulate import made_rows as fakes
from reports.states import acknowledge

pytestmark = pytest.mark.slow

START = datetime(2026, 1, 1, 2, tzinfo=UTC)
USUAL = {"mlp": {"impl": 10.0, "torch": 11.0}, "tiny": {"impl": 4.0, "torch": 5.0}}
WHOLE = {"parts": {}}


class Builder:
    """A history that grows night by night."""

    def __init__(self, tmp_path):
        self.tmp, self.history, self.nights = tmp_path, opened(tmp_path / "h"), []

    def night(self, times=USUAL, day=None, broken=(), commit="", *, machine="box", perf=None, clauses=True):
        day = len(self.nights) if day is None else day
        rows = fakes.perf_rows(times, day) if perf is None else perf
        files = {}
        if times or perf:
            files["perf.jsonl"] = fakes.write(self.tmp / f"perf-{machine}{day}.jsonl", "perf", rows, {"commit": commit})
        if clauses:
            name = self.tmp / f"conformance-{machine}{day}.jsonl"
            header = {"commit": commit, "catalogue": {"JOIN-001": {"title": "Public names", "area": "A"}}, "day": day}
            files["conformance.jsonl"] = fakes.write(name, "conformance", fakes.conformance_rows(broken), header)
        self.nights.append(add_night(self.history, machine, START + timedelta(days=day), WHOLE, files))
        return self.nights[-1]

    def again(self, part, rows):
        number = len(list(self.nights[-1].glob(f"{part}*"))) + 1
        path = fakes.write(self.tmp / "again.jsonl", part, rows)
        add_file(self.nights[-1], f"{part}-{number}.jsonl", path)

    def beside(self, now, before, commit):
        """Repeat this night four times, in turns with the code of ``commit``."""
        for number in range(2, 6):
            self.again("perf", fakes.perf_rows(now, number))
            rows = fakes.perf_rows(before, 50 + number)
            path = fakes.write(self.tmp / "before.jsonl", "perf", rows, {"commit": commit})
            add_file(self.nights[-1], f"before-{number}.jsonl", path)

    def judge(self, **more):
        return judge(self.history, now=START + timedelta(days=len(self.nights) - 1, hours=2), **more)


@pytest.fixture
def build(tmp_path):
    return Builder(tmp_path)


def series(judged, subject, basis, workload="mlp", same=False):
    (found,) = [
        one
        for one in judged.series
        if (one.subject, one.basis, one.axes["workload"], one.same) == (subject, basis, workload, same) and one.current
    ]
    return found


def slower(factor):
    return {**USUAL, "mlp": {"impl": 10.0 * factor, "torch": 11.0}}


def test_a_step_is_confirmed_with_effect_night_and_commits_and_only_the_ratio_alarms(build):
    for day in range(14):
        build.night(commit=f"c{day}")
    for day in range(14, 18):
        build.night(slower(1.12), commit=f"c{day}")
    judged = build.judge()
    ratio, time = series(judged, "impl", Basis.RATIO), series(judged, "impl", Basis.TIME)
    (change,) = ratio.changes
    assert (change.state, change.alarms, change.worse) == (State.CONFIRMED, True, True)
    assert (change.before, change.since) == (build.nights[13].name, build.nights[14].name)
    assert (change.old_commit, change.new_commit) == ("c13", "c14")
    assert change.low < 0.12 < change.high
    assert change.high - change.low < 0.02
    assert [one.state for one in time.changes] == [State.CONFIRMED]
    assert not time.changes[0].alarms
    assert all(not one.changes for one in judged.series if one.key not in (ratio.key, time.key))
    (machine,) = judged.machines
    assert machine.health is judged.health is Health.REGRESSED
    assert judged.health.exit_status == 1
    assert any(ratio.key in reason for reason in machine.reasons)
    assert judged.accounting.alarms == 2
    assert judged.accounting.same_alarms == 0 < judged.accounting.same_verdicts


def test_when_the_whole_machine_slows_down_nothing_alarms(build):
    slow = {name: {subject: 1.3 * time for subject, time in times.items()} for name, times in USUAL.items()}
    for day in range(20):
        build.night(USUAL if day < 15 else slow)
    judged = build.judge()
    assert series(judged, "torch", Basis.TIME).state is State.CONFIRMED
    assert not any(change.alarms for change in judged.changes)
    assert judged.health is Health.HEALTHY


def test_without_a_reference_times_alarm_themselves(build):
    for day in range(18):
        build.night({"mlp": {"impl": 10.0 if day < 15 else 12.0}})
    judged = build.judge()
    assert [change.alarms for change in series(judged, "impl", Basis.TIME).changes] == [True]


def test_a_night_that_was_measured_again_counts_with_the_median(build):
    for _ in range(14):
        build.night()
    build.night(slower(1.5))
    assert {one.axes["workload"] for one in build.judge().series if one.doubtful} == {"mlp"}
    for seed in (1, 2, 3):
        build.again("perf", fakes.perf_rows(USUAL, seed))
    judged = build.judge()
    point = series(judged, "impl", Basis.RATIO).points[-1]
    assert point.first == pytest.approx(15 / 11, rel=0.02)
    assert point.value == pytest.approx(10 / 11, rel=0.02)
    assert point.high > 1.3
    assert judged.health is Health.HEALTHY


def test_an_acknowledged_regression_is_healthy_and_winning_it_back_resolves_it(build):
    for day in range(24):
        build.night(USUAL if day < 14 else slower(1.12))
    judged = build.judge()
    key = series(judged, "impl", Basis.RATIO).key
    with pytest.raises(HistoryError, match="did you mean"):
        acknowledge(judged, build.history, key[:-1], "x")
    with pytest.raises(HistoryError, match="needs a note"):
        acknowledge(judged, build.history, key, " ")
    with pytest.raises(HistoryError, match="neither a confirmed regression nor a break"):
        acknowledge(judged, build.history, series(judged, "impl", Basis.RATIO, "tiny").key, "x")
    place = acknowledge(judged, build.history, key, "new allocator <script>", who="me")
    note = json.loads(place.read_text())
    place.write_text(json.dumps({**note, "time": (START + timedelta(days=23, hours=1)).isoformat()}))
    judged = build.judge()
    (change,) = series(judged, "impl", Basis.RATIO).changes
    assert (change.state, change.alarms, change.note) == (State.ACKNOWLEDGED, False, "new allocator <script> (me)")
    assert series(judged, "impl", Basis.RATIO).state is State.ACKNOWLEDGED
    assert judged.health is Health.HEALTHY
    for _ in range(4):
        build.night()
    regression, gain = series(build.judge(), "impl", Basis.RATIO).changes
    assert (regression.state, gain.state, gain.worse) == (State.RESOLVED, State.IMPROVED, False)


def test_the_first_nights_of_a_step_are_new_and_do_not_alarm(build):
    for _ in range(14):
        build.night()
    build.night(slower(1.2))
    build.night(slower(1.2))
    judged = build.judge(parameters=dataclasses.replace(Parameters(), risks=(1e-12,) * 6, suspect=0.1))
    one = series(judged, "impl", Basis.RATIO)
    assert one.state is State.NEW
    assert [(change.state, change.alarms) for change in one.changes] == [(State.NEW, False)]
    assert judged.health is Health.HEALTHY


def test_with_few_nights_a_slow_down_of_the_code_alarms_at_once_and_one_of_the_night_never(build):
    for commit in ("a", "a", "b"):
        build.night(USUAL if commit == "a" else slower(1.15), commit=commit)
    judged = build.judge()
    assert {one.axes["workload"] for one in judged.series if one.doubtful} == {"mlp"}
    assert series(judged, "impl", Basis.RATIO).state is State.NEW
    assert judged.health is Health.HEALTHY
    build.beside(slower(1.15), USUAL, "a")
    judged = build.judge()
    (change,) = series(judged, "impl", Basis.RATIO).changes
    assert (change.state, change.alarms, change.since) == (State.CONFIRMED, True, build.nights[2].name)
    assert (change.old_commit, change.new_commit) == ("a", "b")
    assert change.low < 0.15 < change.high
    assert judged.health is Health.REGRESSED
    files = [path.split("/")[-1] for path in judged.machines[0].nights[-1].parts[1].files]
    assert files == ["perf.jsonl", *(f"{part}-{at}.jsonl" for part in ("perf", "before") for at in range(2, 6))]


@pytest.mark.parametrize(("commit", "alarms"), [("a", False), ("b", True)])
def test_code_of_a_level_that_was_left_with_a_note_says_nothing_about_the_present_one(build, commit, alarms):
    test_with_few_nights_a_slow_down_of_the_code_alarms_at_once_and_one_of_the_night_never(build)
    key = series(build.judge(), "impl", Basis.RATIO).key
    note = {"machine": "box", "key": key, "since": build.nights[2].name, "who": "me", "text": "known"}
    add_note(build.history, {**note, "time": (START + timedelta(days=2, hours=1)).isoformat()})
    for now in ("b", "b"):
        build.night(slower(1.15), commit=now)
    build.night(slower(1.3), commit="c")
    assert series(build.judge(), "impl", Basis.RATIO).doubtful
    build.beside(slower(1.3), USUAL if commit == "a" else slower(1.15), commit)
    judged = build.judge()
    assert series(judged, "impl", Basis.RATIO).changes[-1].alarms is alarms
    assert judged.health is (Health.REGRESSED if alarms else Health.HEALTHY)


def test_processor_time_is_followed_beside_the_clock_and_alarms_by_itself(build):
    def rows(day, factor):
        found = fakes.perf_rows(USUAL, day)
        spent = {"impl": factor, "torch": 2.0}  # the two ranks differ; their sum counts
        return [{**row, "cpu_ns": [[1e6 * spent[row["subject"]], 3e6] for _ in row["wall_ns"]]} for row in found]

    for day in range(18):
        build.night(perf=rows(day, 1.0 if day < 15 else 1.6))
    judged = build.judge()
    one = series(judged, "impl", Basis.PROCESSOR)
    assert one.points[0].value == pytest.approx(4 / 5)
    assert one.name.endswith("| impl / torch, processor time")
    assert [(change.alarms, change.effect) for change in one.changes] == [(True, pytest.approx(0.15, abs=0.01))]
    assert not series(judged, "impl", Basis.RATIO).changes
    assert judged.health is Health.REGRESSED


def test_what_could_have_been_told_with_few_nights_is_said(build):
    for _ in range(3):
        build.night()
    judged = build.judge()
    assert all(one.few_nights for one in judged.series)
    ratio = series(judged, "impl", Basis.RATIO)
    assert 0.03 < ratio.detectable < 0.12
    words = explained(judged, judged.machines[0])
    assert "8 series have fewer than 10 nights: of 2 ratios to torch, one night tells" in words
    assert series(judged, "impl", Basis.TIME).detectable is None


def test_a_changed_workload_starts_a_new_series(build):
    for day in range(14):
        rows = fakes.perf_rows(USUAL if day < 12 else slower(2.0), day)
        build.night(perf=[{**row, "workload_hash": "other"} if day >= 12 else row for row in rows])
    judged = build.judge()
    mine = [one for one in judged.series if one.record_series.endswith("| impl") and one.axes["workload"] == "mlp"]
    assert [(len(one.points), one.current) for one in mine if one.basis is Basis.TIME] == [(12, False), (2, True)]
    assert judged.changes == ()


def test_wrong_numbers_alarm_and_a_hang_is_a_gap_with_its_reason(build):
    build.night()
    rows = fakes.perf_rows(USUAL, 1)
    rows[0] |= {"status": "void", "reason": "weights differ by 0.3", "wall_ns": [], "block": []}
    rows[3] |= {"status": "hung", "reason": "no answer in 60 s", "wall_ns": [], "block": []}
    build.night(perf=rows)
    judged = build.judge()
    void, hung = series(judged, "impl", Basis.TIME), series(judged, "impl", Basis.TIME, "tiny")
    assert (void.wrong, void.points[-1].why) == (True, "void: weights differ by 0.3")
    assert (hung.wrong, hung.lost, hung.state) == (False, True, State.MISSING)
    assert hung.points[-1].why == "hung: no answer in 60 s"
    wrong, gone = judged.machines[0].reasons
    assert "gives wrong numbers" in wrong
    assert "gives no number any more: hung: no answer in 60 s" in gone
    assert judged.health is Health.REGRESSED


def test_a_cell_that_has_always_hung_is_no_alarm(build):
    for day in range(3):
        rows = fakes.perf_rows(USUAL, day)
        rows[3] |= {"status": "hung", "reason": "as every night", "wall_ns": [], "block": []}
        build.night(perf=rows)
    assert build.judge().health is Health.HEALTHY


def test_a_cell_that_is_void_by_a_broken_guarantee_alarms_only_if_it_had_numbers_before(build):
    untrusted = {"status": "void", "reason": "relies on X-001", "wall_ns": [], "block": [], "verified": {}}
    for day in range(2):
        rows = fakes.perf_rows(USUAL, day)
        rows[1] |= untrusted
        build.night(perf=rows)
    assert build.judge().health is Health.HEALTHY
    rows = fakes.perf_rows(USUAL, 2)
    rows[0] |= untrusted
    build.night(perf=rows)
    judged = build.judge()
    assert series(judged, "impl", Basis.TIME).lost
    assert not series(judged, "impl", Basis.TIME).wrong
    assert judged.health is Health.REGRESSED


def test_clauses_are_exact(build):
    for broken in ((), (), ("JOIN-002",), ("JOIN-002",), (), ("JOIN-001",)):
        build.night(broken=broken, times={"mlp": {"impl": 1.0}}, commit=f"c{len(build.nights)}")
    judged = build.judge()
    told = [(c.clause, c.night, c.before_night, c.old, c.new, c.alarms) for c in judged.clause_changes]
    names = [night.name for night in build.nights]
    kept, broke = ClauseState.KEPT, ClauseState.BROKEN
    assert told == [
        ("JOIN-002", names[2], names[1], kept, broke, False),
        ("JOIN-002", names[4], names[3], broke, kept, False),
        ("JOIN-001", names[5], names[4], kept, broke, True),
    ]
    change = judged.clause_changes[-1]
    assert change.witness == "rank 1 has 2, one process 3"
    words = "python -m conformance run --subject impl --backend gloo --worlds 2 --select JOIN-001 --check test_it"
    assert change.command == words
    assert (change.old_commit, change.new_commit) == ("c4", "c5")
    (one,) = [c for c in judged.clauses if (c.clause, c.subject) == ("JOIN-001", "impl")]
    assert (one.title, one.area, one.states) == ("Public names", "A", (kept,) * 5 + (broke,))
    assert judged.health is Health.REGRESSED
    note = {"machine": "box", "key": one.key, "since": names[5], "who": "me", "text": "known"}
    add_note(build.history, {**note, "time": (START + timedelta(days=5, hours=1)).isoformat()})
    judged = build.judge()
    assert (judged.clause_changes[-1].alarms, judged.clause_changes[-1].note) == (False, "known (me)")
    assert judged.health is Health.HEALTHY


def test_a_clause_that_breaks_once_and_is_then_kept_is_unsteady(build):
    build.night()
    build.night(broken=("JOIN-002",))
    build.again("conformance", [row for row in fakes.conformance_rows() if row["clause"] == "JOIN-002"])
    judged = build.judge()
    assert [(c.clause, c.new, c.alarms) for c in judged.clause_changes] == [("JOIN-002", ClauseState.UNSTEADY, False)]
    assert judged.health is Health.HEALTHY


def test_a_rerun_that_did_not_come_to_its_end_takes_no_break_back(build):
    build.night()
    build.night(broken=("JOIN-002",))
    with Writer(build.tmp / "cut.jsonl", {**identity("conformance", ["x"]), "commit": ""}) as writer:
        for row in fakes.conformance_rows():  # killed before it came to the check that breaks JOIN-002
            writer.write({**row, "check": "test_another"})
        writer.close(interrupted=True)
    add_file(build.nights[-1], "conformance-2.jsonl", writer.path)
    judged = build.judge()
    assert [(c.clause, c.new, c.alarms) for c in judged.clause_changes] == [("JOIN-002", ClauseState.BROKEN, True)]
    assert judged.health is Health.REGRESSED


def test_missed_and_half_nights_show_as_such(build):
    for day in (0, 1, 3, 4, 5):
        build.night(day=day, clauses=day != 5)
    judged = judge(build.history, now=START + timedelta(days=7))
    nights = judged.machines[0].nights
    assert [night.status for night in nights] == ["whole", "whole", "missed", "whole", "whole", "half", "missed"]
    assert [night.time[:10] for night in nights][2] == "2026-01-03"
    assert series(judged, "impl", Basis.TIME).points[2].why == "no run on this night"
    assert judged.health is Health.UNJUDGED
    assert judged.machines[0].reasons == ("conformance is missing: no readable record",)


def test_a_weekly_run_that_comes_a_day_late_has_missed_nothing(build):
    for day in (0, 7, 14, 22, 36, 43):
        build.night(day=day)
    nights = judge(build.history, now=START + timedelta(days=51)).machines[0].nights
    assert [night.name[:10] for night in nights if night.status == "missed"] == ["2026-01-30"]


def test_a_night_that_a_clock_has_dated_1970_is_followed_by_no_more_than_a_retired_machine_misses(build):
    for day in (-20453, 0, 1, 2, 3):
        build.night(day=day)
    (machine,) = judge(build.history, now=START + timedelta(days=3, hours=2)).machines
    assert [night.status for night in machine.nights] == ["whole", *["missed"] * RETIRED, *["whole"] * 4]
    assert machine.health is Health.HEALTHY


def test_a_damaged_record_is_left_out_and_the_night_is_half(build):
    for _ in range(3):
        night = build.night()
    (night / "perf.jsonl").write_text("{")
    judged = build.judge()
    assert [(one.kind, one.path) for one in judged.left_out] == [("damaged", f"box/{night.name}/perf.jsonl")]
    assert judged.health is Health.UNJUDGED


def test_every_machine_has_its_own_answer(build):
    for day in range(3):
        build.night(day=day, machine="one")
        build.night(day=day, machine="other", broken=("DDP-001",) if day == 2 else ())
    judged = build.judge()
    assert [(one.name, one.health) for one in judged.machines] == [
        ("one", Health.HEALTHY),
        ("other", Health.REGRESSED),
    ]
    assert len({one.key for one in judged.series}) == len(judged.series) == 2 * 8


def test_a_machine_that_is_silent_has_no_answer_and_one_that_is_gone_does_not_count(build):
    for day in range(3):
        build.night(day=day, machine="old", broken=("DDP-001",))
    for day in range(40):
        build.night(day=day, machine="new", times={"mlp": {"impl": 1.0}}, clauses=day > 35)
    at = {days: judge(build.history, now=START + timedelta(days=days, hours=1)) for days in (3, 8, 39)}
    told = {days: {one.name: (one.health, one.silent) for one in judged.machines} for days, judged in at.items()}
    assert told[3]["old"] == (Health.REGRESSED, 0)
    assert told[8]["old"] == (Health.UNJUDGED, 5)
    assert at[39].health is Health.HEALTHY


def test_the_same_history_gives_the_same_verdicts(build):
    for day in range(14):
        build.night(USUAL if day < 11 else slower(1.2))
    assert build.judge() == build.judge()


def test_an_empty_history_cannot_be_judged(tmp_path):
    assert judge(opened(tmp_path / "h"), now=START).health is Health.UNJUDGED


def test_the_interval_of_a_rate_counts_groups_and_not_what_hangs_together_in_them():
    assert clustered([], []) == (0.0, 1.0)
    assert clustered([0] * 10, [10] * 10) == (0.0, pytest.approx(0.0369, abs=1e-4))
    apart, together = clustered([1] * 5 + [0] * 5, [100] * 10), clustered([5] + [0] * 9, [100] * 10)
    assert together[0] < apart[0] < 0.005 < apart[1] < together[1]
    assert clustered([4], [4])[1] == 1.0


def test_the_interval_of_a_rate_holds_the_truth_where_groups_differ():
    generator = numpy.random.default_rng(4)
    rates = generator.gamma(0.5, 2e-3 / 0.5, (500, 20))  # of each group; they differ much
    counts = generator.poisson(1000 * rates)
    found = [clustered(one.tolist(), [1000] * 20) for one in counts]
    assert sum(low <= 2e-3 <= high for low, high in found) >= 460
    alone = [clustered([int(one.sum())], [20_000]) for one in counts]  # as if all were independent
    assert sum(low <= 2e-3 <= high for low, high in alone) <= 430
