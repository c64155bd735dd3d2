"""Defects of area overlap: wrappers in turns, warm-ups, failures, what an optimizer's step or the program replaces."""

from __future__ import annotations

from ..planting import defect, edit


@defect("HOOK-018")
def owners_of_another_wrapper_are_overlooked() -> None:
    """With two wrappers in turns each goes by the owners that its own hook has named."""
    edit(" or self.plan.owners is not owners", "")


@defect("HOOK-018")
def a_second_wrapper_begins_anew() -> None:
    """A second wrapper around the same parameters begins with an optimizer that has no state."""
    edit("if self.initialized:", "if False:", within="name_owners")


@defect("HOOK-018")
def states_that_the_program_puts_away_stay() -> None:
    """In backward the local optimizer keeps the state that it has when the program puts another in its place."""
    edit(
        "    self.shard.take_changes()\n",
        "    former = self.shard.optim.state\n    self.shard.take_changes()\n    self.shard.optim.state = former\n",
        within="Overlap.begin",
    )


@defect("HOOK-010")
def a_warm_up_is_one_too_short() -> None:
    """The last iteration of a warm-up is stepped."""
    edit("if begun <= warm_up_iterations:", "if begun < warm_up_iterations:")


@defect("HOOK-010")
def a_warm_up_counts_buckets() -> None:
    """A warm-up is over after so many buckets."""
    edit("begun += bucket.index() == 0", "begun += 1")


@defect("HOOK-018")
def answers_are_stepped_in_their_own_dtype() -> None:
    """What a hook answers in another dtype is stepped without a cast."""
    edit("return gradients.to(self._bucket.spec.dtype)", "return gradients")


@defect("HOOK-018")
def complex_answers_are_taken_for_real_ones() -> None:
    """The two real numbers of each complex gradient are stepped with as they were shown."""
    edit('gradients = self._bucket.answered(value, "wrapped hook")', "gradients = value")


@defect("HOOK-018")
def complex_gradients_are_cut_as_real_ones() -> None:
    """Complex gradients are reduced to their owners by places counted in real numbers."""
    edit("self._flat = part.bucket.as_gradients(bucket.buffer())", "self._flat = bucket.buffer()")


@defect("HOOK-018")
def a_greatest_element_of_nothing_is_asked_for() -> None:
    """The norm of a parameter without elements is taken, which has no greatest one."""
    edit("if gradient is not None and gradient.numel():", "if gradient is not None:")


@defect("HOOK-018")
def the_norm_is_not_told() -> None:
    """The norm before clipping is that of the first iteration."""
    edit(
        "        self._overlap.info.total_norm = self._clipping.apply(due_flights, self._shard, watch)\n",
        "        norm = self._clipping.apply(due_flights, self._shard, watch)\n"
        "        self._overlap.info.total_norm = norm if self._overlap.info.total_norm is None else "
        "self._overlap.info.total_norm\n",
    )


@defect("HOOK-018")
def clipped_gradients_stay_in_a_copy() -> None:
    """What a hook answers in another dtype is clipped in the copy that is stepped with, and handed out as it was."""
    edit("team, changed=clipping is not None)", "team, changed=False)")


@defect("HOOK-037")
def what_was_sent_before_a_failure_is_left() -> None:
    """What has been sent in a backward that then failed is not received, so ranks go on from different values."""
    edit("    ddp.reducer.iteration.if_raised.append(self._backward_raised)\n", "")


@defect("HOOK-037")
def gradients_set_aside_outlive_a_failure() -> None:
    """After a backward that failed the buckets of before are asked which gradients nobody has renewed."""
    edit("self.parts[0].bucket is not buckets[0] or ", "")


@defect("HOOK-045")
def lost_states_do_not_begin_again() -> None:
    """Where only ranks outside the new group had a state, the optimizer is left without any."""
    edit("        optim.state[key] = begun[key]\n", "        pass\n")


@defect("ZERO-031")
def settings_come_with_the_first_backward() -> None:
    """In overlap mode settings that nobody gave cannot be read before the owners are fixed."""
    edit("        self.shard.show_defaults()\n", "        pass\n")


@defect("ZERO-031")
def schedulers_miss_the_step() -> None:
    """A scheduler warns in overlap mode that nobody has called step()."""
    edit("    self.shard.exposed._opt_called = True  # type: ignore[attr-defined]\n", "")


@defect("ZERO-032")
def checkpoints_in_a_context_of_the_model_hang() -> None:
    """In a context that does not list the optimizer its live ranks consolidate, and those that have run out do not."""
    edit("return session is not None and session.live and", "return False and")


@defect("ZERO-032")
def checkpoints_in_a_second_context_of_the_model_hang() -> None:
    """An optimizer knows its model's first context alone, so that in later ones its checkpoints are not refused."""
    edit("if self._session is None or self._session() is not session:", "if self._session is None:")


@defect("ZERO-032")
def checkpoints_behind_a_context_are_refused() -> None:
    """As long as the program keeps a context of the model, after its block a checkpoint is refused."""
    edit("session.live and ", "")


@defect("HOOK-018")
def sets_begin_anew_with_another_owner() -> None:
    """What an optimizer counts in a set of its own begins anew where owners move."""
    edit("in (list, tuple, set, frozenset, deque)", "in (list, tuple, frozenset, deque)")


@defect("HOOK-018")
def queues_begin_anew_with_another_owner() -> None:
    """What an optimizer counts in a queue of its own begins anew where owners move."""
    edit("in (list, tuple, set, frozenset, deque)", "in (list, tuple, set, frozenset)")


@defect("HOOK-018")
def counters_begin_anew_with_another_owner() -> None:
    """What an optimizer counts in a Counter of its own begins anew where owners move."""
    edit("in _BY_KEY:", "in _BY_KEY - {Counter}:", within="_may_count")


@defect("HOOK-018")
def filled_dicts_begin_anew_with_another_owner() -> None:
    """What an optimizer counts in a defaultdict of its own begins anew where owners move."""
    edit("in _BY_KEY:", "in _BY_KEY - {defaultdict}:", within="_may_count")


@defect("HOOK-018")
def words_grow_with_the_parts_of_a_step() -> None:
    """A word that an optimizer changes in each step begins anew where owners move."""
    edit("isinstance(value, (Number, str))", "isinstance(value, Number)")


@defect("HOOK-018")
def complex_numbers_begin_anew_with_another_owner() -> None:
    """A complex number that an optimizer changes in each step begins anew where owners move."""
    edit("isinstance(value, (Number, str))", "isinstance(value, (Number, str)) and type(value) is not complex")


@defect("HOOK-018")
def states_that_were_put_away_come_back_where_owners_move() -> None:
    """Where owners move, they hand over the states of before the program put another in their place."""
    states = "mine, settings = self.states()"
    edit(states, f"self.exposed.state = self.optim.state; {states}", within="move_to")


@defect("JOIN-057", worlds=(4,))
def what_an_optimizer_saves_of_itself_stays_where_owners_move() -> None:
    """When owners move, the new local optimizer is not told what the former one's state_dict has added."""
    edit("further=self.further_entries() if saves_more else None", "further=None", within="Shard._counters")


@defect("HOOK-018")
def a_wrapper_with_the_same_owners_begins_anew() -> None:
    """Where the hook of another wrapper names the owners that there are, the optimizer begins without a state."""
    edit("if self.initialized:", "if self.initialized and plan.owners != self.shard.plan.owners:", within="name_owners")


@defect("HOOK-018")
def states_that_one_part_drops_come_back() -> None:
    """Where an optimizer replaces its state, what it leaves out in one iteration is there again in the next."""
    edit(
        "    self.shard.show_changes()\n",
        "    shown = self.shard.exposed.state\n    self.shard.show_changes()\n    self.shard.exposed.state = shown\n",
        within="Overlap.end",
    )


@defect("HOOK-018")
def parameters_in_attributes_become_copies() -> None:
    """The parameters that an optimizer keeps in an attribute are taken for counters, and copies of them move along."""
    edit("return not value.requires_grad", "return True")


@defect("HOOK-018")
def ordered_dictionaries_do_not_count() -> None:
    """What an optimizer counts in an ordered dictionary begins anew where owners move."""
    edit("in _BY_KEY:", "in _BY_KEY - {OrderedDict}:", within="_may_count")


@defect("HOOK-018")
def only_plain_numbers_count() -> None:
    """What an optimizer counts in fractions, or in the numbers of another library, begins anew where owners move."""
    edit("isinstance(value, (Number, str))", "isinstance(value, (bool, int, float, complex, str))")


@defect("JOIN-057", worlds=(4,))
def states_that_move_are_loaded_as_from_a_file() -> None:
    """A state that goes over to another owner is one that the optimizer can load, or the step fails."""
    edit("self.load_local(loadable(states), ", "self.load_local(states, ")


@defect("HOOK-018", worlds=(3,))
def what_is_gathered_is_no_change_to_a_graph() -> None:
    """Where parameters are gathered in place, a graph that has saved them goes on from their new values."""
    edit("        else:\n            note_change(members)\n", "", within="Gathering.finish")


@defect("HOOK-037")
def a_context_forgets_what_a_failure_has_left() -> None:
    """What has been sent in a backward that failed before a context is not received there."""
    edit(
        "self._reducer.end_what_raised()",
        "self._reducer.abandon() if self._reducer.raised else None",
        within="UnevenInputs.enter",
    )


@defect("HOOK-018", worlds=(3,))
def hooks_of_the_local_optimizer_go_with_the_owners() -> None:
    """When owners change, hooks that the program has given to the local optimizer are called no more."""
    edit("keep_hooks(former, self.optim, self._own_hooks)", "keep_hooks(None, self.optim, self._own_hooks)")


@defect("HOOK-018")
def joined_ranks_step_with_gradients_of_before() -> None:
    """A user's optimizer steps on a joined rank with the old gradients of what nobody uses any more."""
    edit("[(parameter, gradients.get(parameter)) for parameter in self._owned]", "list(gradients.items())")


@defect("HOOK-018")
def nobody_keeps_the_optimizer() -> None:
    """The hook knows the parts of its optimizer only, which fall away with the program's last reference to it."""
    edit("self._zero = zero", "pass", within="OverlapSession.__init__")


@defect("HOOK-018")
def what_is_in_no_bucket_is_not_sent() -> None:
    """A frozen parameter that an optimizer moves without a gradient stays as it was on all ranks but its owner."""
    edit("self._publish_at_the_end(outside)", "pass")


@defect("HOOK-018")
def who_has_no_gradient_steps_behind_the_messages() -> None:
    """A rank whose parameters have no gradients steps only when all parameters have been sent."""
    edit("if gradients or not self._overlap.in_parts:", "if gradients:")


@defect("HOOK-007")
def hooks_step_with_gradients_of_other_models() -> None:
    """A hook that is registered with another model than its own takes that one's gradients for its own model's."""
    edit("if index == 0 and bucket.parameters()[0] is not part.bucket.parameters[0]:", "if False:")
