"""What all ranks know alike: how it changes, what follows from it, and that nobody else changes it."""

import ast
from pathlib import Path

import pytest

from impl.ddp.shared import Agreement, SharedFacts

DDP = Path(__file__).parents[1] / "ddp"
CHANGES = {"start_over", "plan_rebuilt", "reduction_ended"}
#: what may start collectives, or decides that some are due: whole files, or classes
DECIDING = ("stages.py", "iteration.py", "reduction.py:Transport", "reduction.py:BucketQueue")
#: what a rank learns in backwards of its own
OWN = {"learning", "expected", "never_here", "unused", "usage", "readiness", "each_arrives_once", "always_the_same"}


def facts(*, find_unused=False, static=False, skip_unused=False):
    known = SharedFacts(find_unused=find_unused, skip_unused=skip_unused)
    if static:
        known.start_over(turn_static=True)
    return known


def test_buckets_are_rebuilt_after_the_first_reduction_and_once():
    known = facts()
    assert not known.rebuild_due
    known.reduction_ended(None)
    assert known.rebuild_due
    known.plan_rebuilt()
    assert not known.rebuild_due


def test_a_static_graph_holds_back_and_agrees_until_every_rank_has_learned_it():
    known = facts(static=True)
    for _ in range(3):
        assert (known.holds_back, known.agreement_due, known.rebuild_due) == (True, True, False)
        known.reduction_ended(Agreement(frozenset({1, 2})))
    known.reduction_ended(Agreement(frozenset({2}), learned_by_all=True))
    assert (known.holds_back, known.agreement_due, known.rebuild_due) == (False, False, True)
    assert known.never_used == {2}


def test_a_search_for_unused_parameters_agrees_for_ever_and_rebuilds_never():
    known = facts(find_unused=True)
    for _ in range(3):
        known.reduction_ended(Agreement(frozenset({0})))
        assert (known.holds_back, known.agreement_due, known.rebuild_due) == (False, True, False)
    assert known.never_used == frozenset()


def test_what_nobody_uses_is_left_out_once_it_is_settled():
    known = facts(static=True, skip_unused=True)
    known.reduction_ended(Agreement(frozenset({0})))
    assert not known.leaves_out
    known.reduction_ended(Agreement(frozenset({0}), learned_by_all=True))
    assert known.leaves_out
    assert not facts().leaves_out


def test_starting_over_forgets_everything_but_the_settings():
    known = facts(find_unused=True)
    known.reduction_ended(Agreement(frozenset({0})))
    known.start_over(turn_static=True)
    assert (known.static, known.searched, known.reductions, known.holds_back) == (True, False, 0, True)
    known.reduction_ended(Agreement(frozenset({0}), learned_by_all=True))
    known.start_over()
    assert (known.holds_back, known.never_used) == (True, frozenset())


@pytest.mark.parametrize("name", ["static", "searched", "reductions", "rebuilt", "never_used", "holds_back", "noted"])
def test_nobody_can_set_a_fact_from_outside(name):
    with pytest.raises(AttributeError):
        setattr(facts(), name, True)


def attributes(path, of_class=""):
    tree = ast.parse(path.read_text())
    if of_class:
        (tree,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == of_class]
    return [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]


def test_only_the_reduction_and_a_new_beginning_change_the_facts():
    callers = {
        (path.name, node.attr)
        for path in DDP.glob("*.py")
        for node in attributes(path)
        if node.attr in CHANGES and isinstance(node.value, ast.Attribute) and node.value.attr.endswith("facts")
    }
    assert callers == {
        ("reducer.py", "plan_rebuilt"), ("reduction.py", "reduction_ended"), ("reducer.py", "start_over"),
    }


@pytest.mark.parametrize("name", DECIDING)
def test_what_starts_collectives_asks_nothing_that_only_this_rank_knows(name):
    file, _, of_class = name.partition(":")
    asked = {node.attr for node in attributes(DDP / file, of_class)}
    assert not asked & OWN
