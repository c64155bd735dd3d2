"""Defects of area zero: what the optimizer must look at anew in each step, and on joined ranks."""

from __future__ import annotations

from ..planting import defect, edit


@defect("ZERO-008")
def hooks_behind_local_steps_are_not_called() -> None:
    """The local optimizer steps without the hooks that it has for what follows a step."""
    edit("for hook in list(optim._optimizer_step_post_hooks.values()):", "for hook in ():")


@defect("ZERO-008")
def hooks_before_local_steps_are_not_called() -> None:
    """The local optimizer steps without the hooks that it has for what precedes a step."""
    edit("for hook in list(optim._optimizer_step_pre_hooks.values()):", "for hook in ():")


@defect("ZERO-008", "ZERO-013")
def what_a_closure_thaws_is_not_sent() -> None:
    """Whether parameters are trained is looked at before the closure, which may thaw some, and not after it."""
    edit("    if closure is not None:\n        self.look_at_trainability()\n", "", within="Shard.step")


@defect("ZERO-008", "ZERO-013")
def what_is_frozen_in_each_step_is_not_sent() -> None:
    """A parameter that is frozen whenever the optimizer looks is stepped by its owner, and sent to nobody."""
    edit("if not all(self.sent):", "if False:")


@defect("ZERO-008")
def buffers_keep_the_former_shapes() -> None:
    """The buffers of a step stay as they are when the program gives parameters other shapes."""
    edit("parameter.dtype, parameter.shape) for", "parameter.dtype, torch.Size()) for", within="forms_of")


@defect("ZERO-008")
def who_shares_memory_has_several_owners() -> None:
    """Parameters with memory in common are dealt out like any others, so several ranks step the same elements."""
    edit("self.first = first_in_memory(parameters)", "self.first = list(range(len(parameters)))")


@defect("ZERO-008")
def who_overlaps_two_parameters_goes_with_the_last() -> None:
    """A parameter that overlaps two which do not overlap each other is dealt out with one of them only."""
    edit(
        "                first = [one if head == another else head for head in first]\n",
        "                first[place] = first[other]\n",
    )


@defect("ZERO-008")
def memory_is_looked_at_once() -> None:
    """Parameters that the program ties after the construction keep an owner each."""
    edit("if self._memory.stale:", "if False:")


@defect("ZERO-008")
def memory_that_is_shared_is_refused_once() -> None:
    """The step after a refused one goes on with parameters of several owners."""
    edit(
        "        self._memory = Memory(now, self.plan.owners)\n",
        "        self._memory = Memory(now)\n            Memory(now, self.plan.owners)\n",
    )


@defect("ZERO-008")
def an_added_view_may_have_two_owners() -> None:
    """A parameter that overlaps parameters of two ranks is given to the first of these."""
    edit("memory = Memory(parameters, owners)", "memory = Memory(parameters)")


@defect("ZERO-029")
def parameters_of_later_groups_are_strangers() -> None:
    """A partition may name parameters of the first group only."""
    edit(
        "{id(parameter) for parameter in shard.parameters()}",
        "{id(parameter) for parameter in shard.exposed.param_groups[0]['params']}",
    )


@defect("ZERO-008")
def only_the_same_parameter_counts_as_the_same_memory() -> None:
    """Of parameters that are views of one tensor nobody notices that they overlap."""
    edit("if _overlap(", "if False and _overlap(")


@defect("ZERO-020")
def joined_rank_takes_settings_only_when_they_have_changed() -> None:
    """A joined rank whose optimizer has changed its settings goes on from those, where the live ranks' stay."""
    edit(
        "    self._shard.take_settings(received.settings, received.sent, received.to_follow)\n",
        "    if received != getattr(self, '_taken', None):\n"
        "        self._shard.take_settings(received.settings, received.sent, received.to_follow)\n"
        "    self._taken = received\n",
        within="shadow_step",
    )


@defect("ZERO-020")
def joined_rank_calls_no_hooks() -> None:
    """The hooks after a step are not called on a rank that has joined, so its parameters are not what they make."""
    edit("for hook in hooks.values():", "for hook in ():", within="_call")


@defect("ZERO-017")
def hooks_behind_a_load_come_before_the_local_load() -> None:
    """What the user's hooks after a load change is loaded once more, into the local optimizer, which casts it."""
    edit("load_own, prepend=True", "load_own")


@defect("ZERO-008")
def replaced_states_are_ignored() -> None:
    """The local optimizer keeps the state that it has when the program puts another in its place."""
    settings_only = "copy_settings(self.exposed.param_groups, self.optim.param_groups)"
    edit("self.take_changes()", settings_only, within="look_at_changes")


@defect("ZERO-008")
def closures_see_old_shards_of_others() -> None:
    """A closure that is called again within a step sees only the rank's own shard stepped."""
    edit("closure = self._publisher.between_evaluations(closure)", "pass")


@defect("ZERO-015")
def loading_keeps_what_was_consolidated() -> None:
    """After another state has been loaded, the one that was consolidated before can still be saved."""
    edit("self.shard.forget()", "self.shard.copies and self.shard.copies.forget()", within="load_state_dict")


@defect("ZERO-008")
def memory_is_compared_by_the_element() -> None:
    """Whether parameters of two dtypes have memory in common is told by numbers of elements."""
    edit("if one.dtype != other.dtype:", "if False:", within="_overlap")


@defect("ZERO-007")
def neighbours_in_memory_go_to_one_owner() -> None:
    """Parameters of two dtypes that lie side by side count as one."""
    edit("each[2] > begin]", "each[2] >= begin]")


@defect("ZERO-008", worlds=(3,))
def who_owns_nothing_copies_all_the_same() -> None:
    """On hosts of their own, a rank without a parameter of its own fails where it would copy none."""
    edit("if self._staged and self._owned[rank]:", "if self._staged:")
