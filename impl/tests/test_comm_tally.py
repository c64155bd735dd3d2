"""The count of collectives that a rank has started: one per group object."""

import gc

import torch
import torch.distributed as dist

from impl.comm import collectives
from impl.comm.ranks import GroupRank, Team
from impl.comm.tally import Tally, tally_of


def started(team, function, *args):
    """What the call has added to the team's count."""
    before = team.tally.started
    function(team, *args)
    return team.tally.started - before


def test_a_count_begins_at_none_and_grows_by_one():
    tally = Tally()
    assert tally.started == 0
    tally.count()
    tally.count()
    assert tally.started == 2


def test_every_collective_counts_once_and_objects_count_what_they_send(alone):
    team, buffer = Team.of(None), torch.ones(2)
    assert started(team, collectives.all_reduce, buffer, "sum") == 1
    assert started(team, collectives.all_reduce, buffer.to(torch.complex64), "complex sum") == 1
    assert started(team, collectives.broadcast, buffer, GroupRank(0), "buffers") == 1
    assert started(team, collectives.all_gather, torch.empty(2), buffer, "parts") == 1
    assert started(team, collectives.broadcast_object, "word", GroupRank(0), buffer.device, "object") == 2
    assert started(team, collectives.all_gather_object, "word", buffer.device, "objects") == 2


def test_what_does_not_pass_through_our_collectives_is_not_counted(alone):
    team = Team.of(None)
    assert started(team, lambda _: dist.all_reduce(torch.ones(1))) == 0
    assert started(team, lambda _: dist.monitored_barrier()) == 0


def test_all_who_ask_for_a_groups_count_share_it_and_other_groups_have_their_own(alone):
    group = dist.new_group()
    assert Team.of(group).tally is Team.of(group).tally is tally_of(group)
    collectives.all_reduce(Team.of(group), torch.ones(1), "sum").wait()
    assert tally_of(group).started == 1
    assert tally_of(dist.new_group()).started == 0


class Group:
    """Anything that can be referred to weakly; two may have one name."""

    name = "default"


def test_a_count_ends_with_its_group_and_a_group_of_the_same_name_starts_anew():
    group = Group()
    tally_of(group).count()
    assert tally_of(group).started == 1
    del group
    gc.collect()
    assert tally_of(Group()).started == 0
