"""Defects of area join: join construction."""

from __future__ import annotations

from impl.join.hooks import Follower, _JoinConfig

from ..planting import defect, edit, swap


@defect("JOIN-012", "JOIN-025")
def context_entered_again_is_over() -> None:
    """A context that is entered again goes on where it ended: with a session that is closed."""
    edit("self._state is BlockState.LEFT or ", "")


@defect("JOIN-020")
def device_is_examined_behind_the_hooks() -> None:
    """The first joinable's device is looked at when hooks have been made already."""
    edit("    self._device = device_of(self._joinables[0])\n", "")
    edit(
        "    self._state = BlockState.BUILT  #",
        "    self._device = device_of(self._joinables[0])\n    self._state = BlockState.BUILT  #",
    )


@defect("JOIN-019")
def duplicates_are_let_in() -> None:
    """A joinable that is listed twice is let in, and is no longer the first when its second binding is on."""
    edit("if first < place:", "if False:", within="listed")


@defect("JOIN-011")
def empty_list_is_not_examined() -> None:
    """An empty list of joinables is not examined, so it fails with an IndexError inside."""
    edit("if not found:", "if False:")


@defect("JOIN-017", worlds=(3,))
def errors_name_the_global_rank() -> None:
    """The error of a rank that has exhausted its inputs names its global rank."""
    edit("{self._team.rank}", "{int(self._team.global_rank(self._team.rank))}", within="raise_exhausted_here")


@defect("JOIN-014", "JOIN-045", "JOIN-048")
def every_joinable_is_first() -> None:
    """Every joinable of the list is marked as the first, so each of them notifies."""
    edit("is_first_joinable=place == 0", "is_first_joinable=True")


@defect("JOIN-018")
def failed_construction_leaves_joinables_bound() -> None:
    """The process groups are compared only after the joinables have been bound."""
    edit(
        "    self._team = ",
        "    for place, joinable in enumerate(self._joinables):\n"
        "        joinable._join_config = type(joinable._join_config)(enable, throw_on_early_termination, place == 0)\n"
        "    self._team = ",
        within="Join.__init__",
    )


@defect("JOIN-015")
def groups_compared_by_their_members() -> None:
    """Two process groups of the same ranks are taken for one."""
    edit(
        "if resolved(group) is not resolved(groups[0]):",
        "if dist.get_process_group_ranks(group) != dist.get_process_group_ranks(groups[0]):",
    )


@defect("JOIN-015", worlds=(2,))
def no_group_is_another_than_that_of_all_ranks() -> None:
    """Groups are compared as joinables name them: None beside the default group is refused."""
    edit("if resolved(group) is not resolved(groups[0]):", "if group is not groups[0]:")


@defect("JOIN-015")
def groups_compared_with_the_neighbour_only() -> None:
    """Only the first two joinables' process groups are compared, so a third one on another group is let in."""
    edit("enumerate(groups)", "enumerate(groups[:2])", within="common_group")


@defect("JOIN-012")
def hooks_are_made_again_at_entry() -> None:
    """Entering the context makes the hooks once more."""
    edit(
        "    for binding in self._bindings:\n        binding.open()\n",
        "    for binding in self._bindings:\n        binding.open()\n"
        "    self._join_hooks = [joinable.join_hook() for joinable in self._joinables]\n",
    )


@defect("JOIN-056")
def joins_of_others_are_let_in() -> None:
    """Another implementation's Join may enable a model, whose joined ranks it cannot lead."""
    def enable(self: Follower, config: _JoinConfig) -> None:
        self._followed_config = _JoinConfig(*config)

    right = vars(Follower)["_join_config"]
    swap(Follower, "_join_config", right.setter(enable))


@defect("JOIN-016")
def last_device_wins() -> None:
    """The context communicates on the last joinable's device."""
    edit("device_of(self._joinables[0])", "device_of(self._joinables[-1])")


@defect("JOIN-014", "JOIN-048")
def last_is_first() -> None:
    """The last joinable of the list is marked as the first."""
    edit("place == 0", "place == len(self._joinables) - 1", within="Join._bind")


@defect("JOIN-013")
def bound_only_at_entry() -> None:
    """The joinables learn of the context when it is entered, not when it is built."""
    taken_off = "    for binding in self._bindings:\n        binding.take_off()\n"
    edit("    self._bind()\n", "    self._bind()\n" + taken_off, within="__init__")


@defect("JOIN-020")
def strangers_are_let_in() -> None:
    """What is no joinable is noticed only where it is used, after other joinables have made their hooks."""
    edit("if not isinstance(joinable, Joinable):", "if False:", within="listed")


@defect("JOIN-013", "JOIN-042", "JOIN-045")
def joinables_are_not_told_of_throwing() -> None:
    """The joinables are not told that the context throws on early termination."""
    edit("config(self._enable, self._throw, ", "config(self._enable, False, ")


@defect("JOIN-017", "JOIN-035", worlds=(3,))
def warning_names_the_global_rank() -> None:
    """The warning of a skew names the global rank."""
    edit("{self.team.rank}", "{int(self.team.global_rank(self.team.rank))}", within="_warn_of_skew")


@defect("JOIN-024")
def a_refused_entry_counts_as_one() -> None:
    """A context that was refused at its entry says later that it is entered already."""
    edit(
        "        self._end()\n",
        "        for binding in self._bindings:\n            binding.take_off()\n",
        within="Join._enter",
    )
