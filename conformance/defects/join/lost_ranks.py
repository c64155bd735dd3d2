"""Defects of area join: what peers learn of a rank that is killed or freezes."""

from __future__ import annotations

from impl.comm.heartbeats import Heartbeats

from ..planting import defect, edit, swap


@defect("JOIN-057")
def nobody_gives_signs_of_life() -> None:
    """Heartbeats are made and never begun."""
    swap(Heartbeats, "start", lambda self: None)


@defect("JOIN-057")
def silence_is_not_judged() -> None:
    """A peer that says nothing any more counts as alive as long as its connection stands."""
    edit("            self._report(peer, End.SILENT)\n", "            pass\n")


@defect("JOIN-057")
def silence_of_this_machine_is_forgiven() -> None:
    """A process on the same machine counts as alive whether or not it has moved."""
    edit("if same_machine and has_moved(", "if same_machine or has_moved(")


@defect("JOIN-057")
def short_stops_end_the_job() -> None:
    """A rank that stands still for a second is given up at once."""
    edit("if peer.silent_s >= self.detection_s:", "if peer.silent_s >= self.detection_s / 9:")
    edit("if peer.silent_s < self.detection_s / 2 or ", "if peer.silent_s < self.detection_s / 9 or ")


@defect("JOIN-057")
def waits_are_not_broken_off() -> None:
    """A lost peer interrupts no wait: it is only named where a collective has failed by itself."""
    edit("return [loss for loss, _ in first] if due else []", "return []")


@defect("JOIN-057", worlds=(4,))
def each_model_goes_on_over_a_group_of_its_own() -> None:
    """Models that shared a group do not any more once a rank is lost, so no context takes them both."""
    edit("group = record_of(team).smaller.get(tuple(plan[\"ranks\"]))", "group = None")


@defect("JOIN-057", worlds=(3,))
def survivors_go_on_from_the_slowest() -> None:
    """What another survivor had made is made again, or twice."""
    edit("steps = max(made.values())", "steps = min(made.values())")


@defect("JOIN-057")
def a_lost_shard_is_not_restored() -> None:
    """Each survivor brings what it owned itself."""
    edit("if copies is self._own or rank in lost:", "if copies is self._own:")


@defect("JOIN-057", worlds=(3,))
def the_copies_are_taken_for_those_of_the_next_rank() -> None:
    """They come from the one before."""
    edit("(team.rank - self._away(team)) % team.size: self", "(team.rank + self._away(team)) % team.size: self")


@defect("JOIN-057", worlds=(3,))
def who_hides_the_cause_is_the_cause() -> None:
    """A rank that raises another error ``from None`` where a collective has failed is named in the lost one's place."""
    edit(
        "error = error.__cause__ or error.__context__",
        "error = error.__cause__ if error.__suppress_context__ else error.__context__",
    )


@defect("JOIN-057", worlds=(3,))
def survivors_keep_the_limit_of_their_meeting() -> None:
    """The new group's collectives may last only as long as its ranks had to come."""
    edit("    group.set_timeout(timedelta(seconds=timeout_s))\n", "")


@defect("JOIN-057", worlds=(4,))
def survivors_count_as_the_furthest_hook() -> None:
    """An iteration that is made again is counted twice by hooks that count."""
    edit("counted = [min(each) for each in zip(", "counted = [max(each) for each in zip(")


@defect("JOIN-057", worlds=(4,))
def what_an_optimizer_saves_by_itself_begins_anew() -> None:
    """Where ranks go on with copies of a shard, entries of the local optimizer's own ``state_dict`` are lost."""
    edit("._replace(further=self.further_entries() if saves_more else None)", "")


@defect("JOIN-057", worlds=(4,))
def random_numbers_are_not_handed_over() -> None:
    """A rank that was a step behind draws other numbers than the rest."""
    edit("getattr(optim, name).set_state(state)", "pass")


@defect("JOIN-057", worlds=(4,))
def hooks_stay_in_the_group_of_before() -> None:
    """A hook whose state has the model's group waits for the rank that was lost."""
    edit('elif getattr(state, "process_group", None) is former:', "elif False:")
