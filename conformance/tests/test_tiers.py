"""Tiers: what the quick one may leave out and what never; on made-up offers, and on the suite's own checks."""

import importlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import deviations
from conformance.deviations import Deviation
from conformance.engine import inventory, tiers
from conformance.engine.tiers import Offer, choose
from conformance.results import Case

pytestmark = pytest.mark.slow


def offer(check, world=2, scenario="", clauses=("JOIN-001",), subject="mine", file="test_a.py", each=False):
    return Offer(Case(check, scenario, subject, "gloo", world), clauses, file, each)


def places(cases):
    return sorted((case.check, case.scenario, case.world) for case in cases)


def test_a_check_runs_once_at_the_smallest_world_of_several_ranks():
    offers = [offer("test_a", world) for world in (4, 1, 2)] + [offer("test_b", 3), offer("test_b", 4)]
    assert ("test_a", "", 2) in places(choose("quick", offers, {}))
    assert ("test_b", "", 3) in places(choose("quick", offers, {}))
    assert not any(case.world == 4 for case in choose("quick", offers, {}))


def test_of_checks_that_run_with_two_ranks_and_with_three_about_half_run_with_three():
    offers = [offer(f"test_{n}", world, scenario) for n in range(200) for world in (4, 3, 2) for scenario in "yx"]
    found = choose("quick", offers, {})
    assert Counter(case.scenario for case in found) == {"y": 200}
    worlds = Counter(case.world for case in found)
    assert set(worlds) == {2, 3}
    assert 70 < worlds[3] < 130
    assert choose("quick", offers[::-1], {}) != found, "else the scenario would not be the first"


def test_a_check_that_has_one_rank_only_runs_there():
    assert places(choose("quick", [offer("test_a", 1)], {})) == [("test_a", "", 1)]


def test_of_every_file_one_case_runs_alone_and_one_with_more_than_a_pair():
    offers = [offer(f"test_{name}", world) for name in "abcdef" for world in (1, 2, 4)]
    worlds = Counter(case.world for case in choose("quick", offers, {}))
    assert worlds == {1: 1, 2: 6, 4: 1}


def test_what_a_listed_deviation_speaks_of_runs_whatever_its_scenario_and_world():
    offers = [offer("test_a", world, scenario) for world in (2, 3, 4) for scenario in ("first", "second")]
    listed = {"mine": [Deviation("JOIN-001", "known", scenario="second", worlds=(4,))], "other": [Deviation("*", "r")]}
    assert ("test_a", "second", 4) not in places(choose("quick", offers, {}))
    assert ("test_a", "second", 4) in places(choose("quick", offers, listed))


def test_every_scenario_runs_and_of_dozens_the_first():
    offers = [offer("test_a", 2, scenario, each=True) for scenario in "xyz"] + [offer("test_b", 2, s) for s in "xyz"]
    assert places(choose("quick", offers, {})) == [*(("test_a", s, 2) for s in "xyz"), ("test_b", "x", 2)]


def test_a_clause_is_judged_in_part_where_a_scenario_ran_at_no_world():
    offers = [offer("test_a", 2, scenario, ("JOIN-001",)) for scenario in "xy"]
    offers += [offer("test_b", world, "", ("JOIN-002",)) for world in (2, 4)]
    left_out = [each for each in offers if each.case not in choose("quick", offers, {})]
    ran = [each.case for each in offers if each not in left_out]
    assert tiers.in_part(left_out, ran) == {"mine": ["JOIN-001"]}
    more = [each.case for each in left_out if each.case.scenario == "y"][:1]
    assert tiers.in_part(left_out, [*ran, *more]) == {}, "what a deviation asked for besides counts, too"


def test_without_a_tier_and_in_the_full_one_everything_runs():
    offers = [offer("test_a", world) for world in (1, 2, 3, 4, 8)]
    for tier in ("", "full"):
        assert choose(tier, offers, {}) == {each.case for each in offers}


names = st.sampled_from(["test_a", "test_b", "test_c"])
cases = st.builds(
    lambda check, world, scenario, subject: offer(check, world, scenario, (f"JOIN-00{ord(check[-1]) % 3}",), subject),
    names, st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from(["", "x", "y"]), st.sampled_from(["mine", "theirs"]),
)  # fmt: skip


@given(st.lists(cases, unique_by=lambda each: each.case))
def test_no_subject_loses_a_check_or_a_clause_and_the_order_of_offers_does_not_lose_one_either(offers):
    for order in (offers, offers[::-1]):
        chosen = choose("quick", order, {})
        assert chosen <= {each.case for each in offers}
        kept = [each for each in offers if each.case in chosen]
        for what in (lambda each: each.case.check, lambda each: each.clauses):
            assert {(each.case.subject, what(each)) for each in kept} == {
                (each.case.subject, what(each)) for each in offers
            }


# --- the suite's own checks -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def offers():
    """Every case of both subjects that a run at the usual worlds could make."""
    found = []
    for path in sorted(inventory.CHECKS.glob("test_*.py")):
        module = importlib.import_module(f"conformance.checks.{path.stem}")
        for name, check in [(name, getattr(value, "check", None)) for name, value in vars(module).items()]:
            if name.startswith("test_") and check is not None:
                found += [
                    Offer(Case(name, scenario, subject, "gloo", world), check.clauses, path.name, check.each)
                    for subject in ("impl", "torch")
                    for world in tiers.WORLDS["quick"]
                    for scenario, value in (check.scenarios or {"": None}).items()
                    if check.runs_at(world) and (not check.scenarios or check.fits(value, world))
                ]
    return found


def test_the_quick_tier_of_the_suite_asks_every_clause_of_every_subject_in_a_fraction_of_the_cases(offers):
    chosen = choose("quick", offers, {"torch": deviations.built_in("torch")})
    asked = {(each.case.subject, clause) for each in offers if each.case in chosen for clause in each.clauses}
    assert asked == {(each.case.subject, clause) for each in offers for clause in each.clauses}
    assert len(chosen) < 0.4 * len(offers)


def test_the_quick_tier_looks_for_every_listed_deviation_of_torch(offers):
    listed = deviations.built_in("torch")
    chosen = choose("quick", offers, {"torch": listed})
    for deviation in listed:
        about = [each for each in offers if each.case.subject == "torch" and each.is_about(deviation)]
        assert any(each.case in chosen for each in about), str(deviation)
