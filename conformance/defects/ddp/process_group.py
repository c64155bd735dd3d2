"""Defects of area ddp: changing the process group."""

from __future__ import annotations

from ..planting import defect, edit


@defect("DDP-162")
def delayed_gradients_stay_in_the_former_group() -> None:
    """Delayed gradients are averaged over the group of the first reduction, whatever the group is now."""
    edit('Transport(iteration, "delayed', "Transport(__import__('copy').copy(iteration), \"delayed")


@defect("DDP-162")
def new_group_forgets_no_arrivals() -> None:
    """A static graph that is moved to another group goes on noting arrivals as before, and counts none."""
    edit("self._arrivals.count_each()", "pass", within="forget")


@defect("DDP-162")
def new_group_has_buffers_synchronised_as_the_former_one_said() -> None:
    """Ranks whose last forwards were not the same, in groups of their own, differ on the buffers of the next one."""
    edit("    self._buffer_sync.begin_anew()\n", "", within="_update_process_group")


@defect("DDP-164")
def new_group_keeps_the_buckets() -> None:
    """After a change of group the buckets stay as they were rebuilt."""
    edit("self.start_over()", "self.abandon()", within="move_to")


@defect("DDP-164", worlds=(3,))
def non_members_keep_the_buckets() -> None:
    """A rank outside of the new group leaves its buckets as they were rebuilt."""
    edit("        self.reducer.start_over()\n        return", "        return")


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


@defect("DDP-162")
def static_graphs_do_not_begin_anew() -> None:
    """A static graph that is moved takes its buckets for rebuilt, though it has the first ones again."""
    edit(
        "**_BEGINNING)",
        "**{**_BEGINNING, 'rebuilt': self.static and self.rebuilt})",
        within="start_over",
    )


@defect("DDP-165")
def a_group_as_the_state_is_replaced() -> None:
    """A move replaces the state of a hook where it is a group."""
    edit(
        "self.reducer.move_to(Team.of(new_process_group))",
        "if isinstance((self.reducer.transport.hook or [None])[0], dist.ProcessGroup):\n"
        "        self.reducer.transport.hook = (new_process_group, self.reducer.transport.hook[1])\n"
        "    self.reducer.move_to(Team.of(new_process_group))",
    )


@defect("DDP-165")
def a_group_in_the_state_is_replaced() -> None:
    """A move writes the new group into the state of a hook that has a place for one."""
    edit(
        "self.reducer.move_to(Team.of(new_process_group))",
        "if hasattr((self.reducer.transport.hook or [None])[0], 'process_group'):\n"
        "        self.reducer.transport.hook[0].process_group = new_process_group\n"
        "    self.reducer.move_to(Team.of(new_process_group))",
    )


@defect("DDP-164")
def use_is_remembered_in_another_group() -> None:
    """In another group a static graph is taken to use what it used in the former one."""
    edit("    self.usage.forget()\n", "")


@defect("DDP-164")
def arrivals_are_noted_on_in_another_group() -> None:
    """In another group the arrivals of a static graph are not counted, so that its use is never learned anew."""
    edit("    self.readiness.forget()\n", "")


@defect("DDP-051")
def waiting_in_another_group_is_a_stall() -> None:
    """Ranks that wait in different groups, one of them for somebody slow, are taken to wait for each other."""
    edit("each.wait.members == whose and each.last >= together", "each.last >= together", within="Waits.stalled")


@defect("DDP-162", worlds=(3,))
def a_context_stays_in_the_group_it_was_built_over() -> None:
    """A context that was built before its model moved to another group talks to the ranks of the former one."""
    edit("if self._state is BlockState.LEFT or team != self._team:", "if self._state is BlockState.LEFT:")


@defect("DDP-162", worlds=(3,))
def a_group_of_as_many_ranks_counts_as_the_same() -> None:
    """A context that was built before its model moved to other partners, as many as before, talks to the former."""
    edit("or team != self._team:", "or team.size != self._team.size:", within="Join.__enter__")


@defect("DDP-162", worlds=(3,))
def a_context_that_is_entered_again_stays_in_its_group() -> None:
    """A context that is entered in another group than before talks to the ranks of the former one."""
    edit("self._team = team\n", "pass\n", within="Join.__enter__")


@defect("DDP-162", worlds=(3,))
def a_moved_model_keeps_the_number_of_its_former_group() -> None:
    """Models that have moved to one group from several are taken for different ones, since they have other numbers."""
    edit("self._config = replace(self._config, number=None)", "pass")
