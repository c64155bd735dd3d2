"""The message layout of followed contexts: whatever live and joined ranks add, every rank reads the same truth."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impl.errors import RanksDisagree
from impl.join.message import DEEPEST, Act, MessageLayout, Reading


def total(messages):
    return [sum(column) for column in zip(*messages, strict=True)]


@st.composite
def layouts(draw):
    acts = draw(st.lists(st.lists(st.text("abc", min_size=1), max_size=3).map(tuple), min_size=1, max_size=4))
    names = tuple(f"joinable {place}" for place in range(len(acts)))
    return MessageLayout(names, tuple(acts), draw(st.integers(1, 8)))


@st.composite
def situations(draw):
    """A layout, the ranks that are live, and what they all say."""
    layout = draw(layouts())
    live = draw(st.sets(st.integers(0, layout.ranks - 1)))
    acts = [Act(j, number) for j, names in enumerate(layout.acts) for number in range(len(names))]
    begins = draw(st.none() | st.integers(0, len(layout.names) - 1))
    act = draw(st.sampled_from(acts)) if acts and (begins is None or draw(st.booleans())) else None
    if begins is None and act is None:
        begins = 0
    return layout, sorted(live), begins, act


@given(situations())
def test_every_rank_reads_who_is_live_and_what_comes_next(situation):
    layout, live, begins, act = situation
    messages = [
        layout.live(rank, begins, act) if rank in live else layout.joined() for rank in range(layout.ranks)
    ]
    assert {len(message) for message in messages} == {layout.size}
    reading = layout.read(total(messages))
    expected = Reading(tuple(live), 0, begins if live else None, act if live else None)
    assert reading == expected
    assert reading.active == len(live)


@given(situations(), st.data())
def test_ranks_that_run_out_in_throwing_mode_are_counted(situation, data):
    layout, live, begins, act = situation
    out = [rank for rank in range(layout.ranks) if rank not in live]
    exhausted = data.draw(st.sets(st.sampled_from(out))) if out else set()
    messages = [
        layout.live(rank, begins, act) if rank in live else layout.joined(exhausted=rank in exhausted)
        for rank in range(layout.ranks)
    ]
    assert layout.read(total(messages)).exhausted == len(exhausted)


THREE = MessageLayout(("joinable 0 (A)", "joinable 1 (B)"), (("forward", "backward"), ("step",)), 3)
ACTS = [Act(0, 0), Act(0, 1), Act(1, 0)]
SAYINGS = [(0, None), (1, None), *[(None, act) for act in ACTS], (0, ACTS[0]), (1, ACTS[2])]


@pytest.mark.parametrize("one", SAYINGS)
@pytest.mark.parametrize("other", SAYINGS)
def test_live_ranks_that_say_different_things_are_told_so(one, other):
    messages = [THREE.live(0, *one), THREE.live(1, *other), THREE.joined()]
    if one == other:
        assert THREE.read(total(messages)).ranks == (0, 1)
        return
    with pytest.raises(RanksDisagree) as caught:
        THREE.read(total(messages))
    told = str(caught.value)
    for begins, act in (one, other):
        assert begins is None or f"an iteration of {THREE.names[begins]} begins on" in told
        assert act is None or f"{THREE.name_of(act)} follows on" in told


@pytest.mark.parametrize(("outer", "inner"), [*pairwise(range(DEEPEST + 1)), (0, DEEPEST)])
def test_ranks_in_contexts_inside_each_other_are_told_so(outer, inner):
    outer, inner = replace(THREE, depth=outer), replace(THREE, depth=inner)
    assert inner.read(total([inner.live(0, 0, None), inner.joined(), inner.joined()])).ranks == (0,)
    sums = total([outer.live(0, 0, None), outer.live(1, 0, None), inner.joined()])
    for layout in (outer, inner):
        with pytest.raises(RanksDisagree, match="inside another"):
            layout.read(sums)


def test_a_live_rank_with_nothing_to_say_is_refused():
    with pytest.raises(ValueError, match="iteration begins or an act follows"):
        THREE.live(0, None, None)


def test_a_sum_in_which_active_ranks_said_nothing_is_refused():
    said = THREE.joined(begins=0)
    sums = [one - other for one, other in zip(total([THREE.live(0, 0, None)]), said, strict=True)]
    with pytest.raises(RanksDisagree):
        THREE.read(sums)


@pytest.mark.parametrize("arguments", [(("A",), (), 2), (("A",), ((),), 0)])
def test_a_layout_checks_itself(arguments):
    with pytest.raises(ValueError):
        MessageLayout(*arguments)
