"""Failure notes: the first one counts, they reach other ranks only, and a lost store silences them."""

from functools import cached_property

import pytest
import torch.distributed as dist

from impl.comm import losses
from impl.comm.guard import DETECTION
from impl.comm.ranks import GroupRank, Team
from impl.comm.tally import Tally
from impl.errors import PeerFailed
from impl.join.failures import FailureNotes, Note
from impl.join.group_record import record_of


class Placed(Team):
    """A team without processes, whose global ranks are its own plus ten."""

    def global_rank(self, rank):
        return rank + 10

    @cached_property
    def tally(self):
        return Tally()


class Group:
    """What a team needs of one."""

    def __init__(self, name):
        self.group_name = name


def team(rank, name="g", started=0):
    made = Placed(Group(name), rank, 3)
    made.tally.started = started
    return made


def notes(store, key="k", started=(0, 0, 0)):
    return [FailureNotes(team(rank, started=started[rank]), key, store) for rank in range(3)]


def test_nobody_is_disturbed_while_no_note_is_left():
    for mine in notes(dist.HashStore()):
        assert mine.first() is None
        mine.watch(waits=True)


def test_a_note_names_the_rank_its_error_and_text_to_the_others_only():
    first, second, third = notes(dist.HashStore(), started=(8, 7, 8))
    second.leave(KeyError("bad batch"))
    assert third.first() == Note(1, 11, "KeyError", "'bad batch'", 7, "")
    for mine in (first, third):
        with pytest.raises(PeerFailed, match=r"rank 1 \(global rank 11\) left .* KeyError: 'bad batch'"):
            mine.watch(waits=True)
    second.watch(waits=True)


def test_a_rank_is_waited_for_where_it_has_taken_part_before_it_left(monkeypatch):
    for started, behind in ((7, 7), (8, 7)):
        left, late, further = notes(dist.HashStore(), started=(started, behind, started + 1))
        left.leave(KeyError("all raise"))
        late.watch(waits=True)
        with pytest.raises(PeerFailed):
            further.watch(waits=True)
        with pytest.raises(PeerFailed):  # what is waited for has failed
            late.watch(waits=False)
        monkeypatch.setenv(DETECTION, "0")  # and not for ever
        with pytest.raises(PeerFailed):
            late.watch(waits=True)
        monkeypatch.undo()


def test_who_waits_is_told_once_another_has_left_without_what_is_waited_for():
    store, teams = dist.HashStore(), [team(rank) for rank in range(3)]
    left, behind, late = (FailureNotes(each, "k", store) for each in teams)
    for each, started in zip(teams, (8, 7, 8), strict=True):
        record_of(each)  # a context begins
        each.tally.started = started
    left.leave(KeyError("first"))
    late.watch(waits=True)
    behind.end()
    with pytest.raises(PeerFailed, match="KeyError: 'first'"):
        late.watch(waits=True)


def test_only_the_first_note_of_a_session_is_kept():
    first, second, third = notes(dist.HashStore())
    first.leave(ValueError("cause"))
    second.leave(RuntimeError("connection reset"))
    note = third.first()
    assert note is not None
    assert note.text == "cause"


def test_notes_of_another_session_are_not_seen():
    store = dist.HashStore()
    notes(store, "one")[0].leave(ValueError("old"))
    notes(store, "two")[1].watch(waits=True)


def test_long_texts_are_cut():
    first, second, _ = notes(dist.HashStore())
    first.leave(ValueError("x" * 100_000))
    note = second.first()
    assert note is not None
    assert 0 < len(note.text) < 1000


class Mute(Exception):
    def __str__(self):
        raise AttributeError("no text")


def test_an_error_whose_text_cannot_be_made_is_told_all_the_same():
    first, second, _ = notes(dist.HashStore())
    first.leave(Mute())
    note = second.first()
    assert note is not None
    assert (note.kind, note.text) == ("Mute", "(its text raised AttributeError)")


class Lost:
    """A store whose host is gone."""

    def compare_set(self, *_):
        raise RuntimeError("Broken pipe")

    def check(self, *_):
        raise RuntimeError("Broken pipe")


def test_a_lost_store_neither_raises_nor_hides_the_error_that_is_reported():
    mine = FailureNotes(team(0), "k", Lost())
    error = ValueError("mine")
    mine.leave(error)
    assert "Broken pipe" in error.__notes__[0]
    assert mine.first() is None
    looking = FailureNotes(team(1), "k", Lost())
    looking.watch(waits=True)


def reset():
    return RuntimeError("[gloo/transport/tcp/pair.cc:1] Connection reset by peer")


def raised_from(cause, *, hidden=False):
    try:
        try:
            raise cause
        except Exception as error:
            raise KeyError("of the user's") from (None if hidden else error)
    except KeyError as error:
        return error


@pytest.mark.parametrize(("error", "is_one"), [
    (reset(), True), (dist.DistBackendError("NCCL error"), True), (raised_from(reset()), True),
    (raised_from(reset(), hidden=True), True), (raised_from(ValueError("mine")), False),
    (RuntimeError("of the user's"), False), (dist.DistStoreError("timed out"), False), (Mute(), False),
])  # fmt: skip
def test_errors_that_come_from_a_collective_are_known(error, is_one):
    assert losses.of_a_collective(error) is is_one


def test_without_a_store_there_are_no_notes():
    mine = FailureNotes(team(0), "k", None)
    mine.leave(ValueError("unheard"))
    assert mine.first() is None


def key_of_next_session(group):
    return record_of(Team(group, GroupRank(0), 1)).next_session_key()


def test_each_session_of_a_group_has_its_own_key_equal_on_all_ranks():
    by_rank = []
    for _ in range(2):  # each rank is a process of its own, so each has a world of its own
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        g, h = dist.group.WORLD, dist.new_group()
        by_rank.append([key_of_next_session(group) for group in (g, h, g, g)])
        dist.destroy_process_group()
    assert by_rank[0] == by_rank[1]
    assert len(set(by_rank[0])) == 4


@pytest.mark.usefixtures("alone")
def test_a_new_group_of_an_old_name_in_one_world_has_keys_of_its_own():
    keys = []
    for _ in range(2):
        group = dist.new_group([0], use_local_synchronization=True)  # named after its ranks
        keys.append((group.group_name, key_of_next_session(group)))
        dist.destroy_process_group(group)
    assert keys[0][0] == keys[1][0]
    assert keys[0][1] != keys[1][1]
