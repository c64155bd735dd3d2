"""Defects of area ddp: changing the process group."""

from __future__ import annotations

from ..planting import defect, edit


@defect("DDP-162")
def delayed_gradients_stay_in_the_former_group() -> None:
    """Delayed gradients are averaged over the group of the first reduction, whatever the group is now."""
    edit("self._iteration.team", 'self.__dict__.setdefault("_team", self._iteration.team)', within="_start")


@defect("DDP-162")
def new_group_forgets_no_arrivals() -> None:
    """A static graph that is moved to another group goes on noting arrivals as before, and counts none."""
    edit("self._arrivals.count_each()", "pass", within="forget")


@defect("DDP-164")
def new_group_keeps_the_buckets() -> None:
    """After a change of group the buckets stay as they were rebuilt."""
    edit("self.start_over()", "self.abandon()", within="move_to")


@defect("DDP-163")
def non_members_lose_their_group() -> None:
    """A rank outside of the new group loses its group."""
    edit(
        "        self.reducer.start_over()",
        "        self.process_group = new_process_group\n        self.reducer.start_over()",
    )


@defect("DDP-162", worlds=(3,))
def reducer_stays_in_the_old_group() -> None:
    """After a change of group the reducer goes on in the old one."""
    edit("self.reducer.move_to(Team.of(new_process_group))", "self.reducer.start_over()")


@defect("DDP-164")
def reductions_are_counted_across_a_new_beginning() -> None:
    """A new group's first forward finds that enough reductions have been made to rebuild the buckets."""
    edit(
        "{}), **_BEGINNING)",
        "{}), **{**_BEGINNING, 'reductions': self.reductions})",
    )


@defect("DDP-162", worlds=(4,))
def rows_of_a_former_group_remembered() -> None:
    """After a change of groups there is room for as many sparse rows as the former group had."""
    edit("    self._sparse_capacity = {}\n", "")
