"""Defects of area zero: what changes between steps, and ranks that own nothing."""

from __future__ import annotations

from ..planting import defect, edit


@defect("ZERO-012")
def given_storage_is_overlooked() -> None:
    """With bucket views a parameter that is given other storage leaves its flat tensor, which is sent all the same."""
    edit(" or self._moved.stale or forms_of(self._sent) != self._forms", "")


@defect("ZERO-012")
def thawing_does_not_move_into_views() -> None:
    """Only a change of owners lays the bucket views out anew: what is thawed later stays by itself and is not sent."""
    edit(
        "any(map(is_not, present, self._made_for))",
        "any(map(is_not, present[:2], self._made_for)) or (not self._flats and shard.sent is not self._made_for[2])",
    )


@defect("ZERO-012")
def storage_is_made_contiguous_for_sending() -> None:
    """Without views a parameter that is sent alone is put into row order first, in storage of its own."""
    edit(
        "    small = [member for member in members",
        "    for member in members:\n"
        "        if not member.is_contiguous():\n"
        "            member.data = member.data.contiguous()\n"
        "    small = [member for member in members",
    )


@defect("ZERO-015")
def target_keeps_an_earlier_consolidation() -> None:
    """A consolidation to another rank leaves the state of the one before with its target."""
    edit(
        "    self.consolidated = None  # frees the last one before the next is gathered\n", "", within="consolidate"
    )
    edit("    self.consolidated = gathered\n", "    self.consolidated = gathered or self.consolidated\n")


@defect("ZERO-015")
def an_addition_leaves_what_was_consolidated() -> None:
    """After a group was added the state of before is saved, which lacks the new parameters."""
    edit("    self.forget()\n", "    self.copies and self.copies.forget()\n", within="Shard.extend")


@defect("ZERO-015")
def step_lets_everybody_ask_for_the_state() -> None:
    """A step leaves a rank without the global state with its own part of it."""
    edit(
        "    self.steps_since_consolidation += 1\n    return loss\n",
        "    self.steps_since_consolidation += 1\n"
        "    self.consolidated = self.consolidated or self.states()\n"
        "    return loss\n",
        within="Shard.step",
    )


@defect("ZERO-018")
def loaded_tensors_are_stepped_in_place() -> None:
    """The states of the own parameters are taken from the dictionary without a copy, and the next step changes them."""
    edit("copy.deepcopy(kept)", "kept")


@defect("ZERO-011")
def idle_rank_shows_old_settings() -> None:
    """A rank that owns nothing does not call its local optimizer, so its groups do not show what a step changes."""
    edit(
        "loss = step_of(self.optim, **given, **kwargs)",
        "if self.owned_by(self.team.rank):\n"
        "                loss = step_of(self.optim, **given, **kwargs)\n"
        "            else:\n"
        "                loss = closure() if closure else None",
    )


@defect("ZERO-020")
def joined_rank_without_a_shard_does_not_step() -> None:
    """A rank that has run out of inputs and owns nothing has nothing to step, and does not count."""
    edit(
        "        self._shard.step(closure, **arguments)\n",
        "        if self._shard.owned_by(self._shard.team.rank):\n"
        "            self._shard.step(closure, **arguments)\n",
        within="shadow_step",
    )


@defect("ZERO-020")
def joined_rank_takes_only_the_learning_rate() -> None:
    """Of the live ranks' settings a joined rank takes over the learning rate and keeps its own counts."""
    edit(
        "    take_settings(received, self.exposed.param_groups)\n",
        "    take_settings([{'lr': group['lr']} for group in settings], self.exposed.param_groups)\n",
        within="Shard.take_settings",
    )


@defect("ZERO-022")
def joined_rank_takes_the_counts_of_a_rank_that_owns_nothing() -> None:
    """A joined rank takes over from the source also what its own local optimizer counts in its groups."""
    edit("    self.counts.keep(self.exposed.param_groups, received, to_follow)\n", "")


@defect("ZERO-020")
def joined_rank_keeps_whatever_its_optimizer_writes() -> None:
    """A joined rank keeps what its local optimizer writes in its groups, also where the source's does and was told."""
    edit("(ours - set(theirs)) & group.keys()", "ours & group.keys()")


@defect("ZERO-020")
def joined_ranks_hear_of_lists_as_the_step_has_left_them() -> None:
    """What an optimizer appends to a list in its groups is told to joined ranks, which append it once more."""
    edit("return copied(value, _kept)", "return value")


@defect("ZERO-033")
def one_in_row_order_stands_for_all() -> None:
    """Bucket views of an owner travel in place as soon as one of them lies in row order."""
    edit("all(member.is_contiguous() for member in inside)", "any(member.is_contiguous() for member in inside)")


@defect("ZERO-016", "ZERO-022")
def what_was_counted_before_the_last_step_is_not_known() -> None:
    """What an optimizer writes in its groups in some of its steps only is not known for its own after the others."""
    edit("former | _changed(before, group)", "frozenset(_changed(before, group))", within="GroupCounts.look")


@defect("HOOK-018", "HOOK-047")
def joined_ranks_follow_whatever_was_written_where_nothing_is_owned() -> None:
    """A joined rank takes over what the source's local optimizer has written in groups of which it owns nothing."""
    edit("zip(self.owned, ended, shown", "zip(self.owned, self.written, shown", within="to_follow")
    edit("else _changed(left, group)", "else left", within="to_follow")


@defect("ZERO-016")
def counts_in_groups_of_others_are_not_saved() -> None:
    """What owners have counted in a group is not told to a target that owns nothing of it."""
    edit("settings[~key].update(counts)", "pass")


@defect("ZERO-016", worlds=(3,))
def counts_of_who_owns_nothing_hide_those_of_owners() -> None:
    """What is written in a group is also saved of ranks that own nothing of it, and may have written less."""
    edit(' if group["params"] and written', " if written")


@defect("HOOK-018", "HOOK-047")
def overlapped_steps_count_in_no_group() -> None:
    """What an optimizer writes in its groups in an overlapped step is not known for its own."""
    edit("self.shard.counts.look(begun)", "pass")


@defect("HOOK-018", "HOOK-047")
def joined_ranks_of_an_overlapped_step_take_the_counts_of_a_rank_that_owns_nothing() -> None:
    """In an overlapped step a joined rank takes over from the source also what its own optimizer counts."""
    edit("received.sent, received.to_follow)", "received.sent)", within="share_settings")


@defect("ZERO-016", "ZERO-022")
def what_is_counted_beside_a_closure_is_not_known() -> None:
    """After steps with closures nobody knows what the optimizer has written in its groups."""
    look = "self.counts.look(before)"
    edit(look, f"given or {look}")


@defect("HOOK-018")
def counts_in_groups_stay_where_owners_move() -> None:
    """A new owner that had nothing of a group is not told what has been counted there."""
    edit("mine | self.counts.to_tell(), plan.owners", "mine, plan.owners", within="Shard.move_to")


@defect("JOIN-057", worlds=(3,))
def survivors_have_the_counts_of_one_of_them() -> None:
    """Who goes on without a rank has the counts in groups that the source of the settings has."""
    edit("    take_told(held, settings, owned)\n", "    take_told(held, settings, [True] * len(owned))\n")


@defect("ZERO-016")
def counts_in_tensors_are_not_known() -> None:
    """What an optimizer counts in a tensor, in place, is not taken for its own."""
    edit("value is former and _changes_in(value) == changes", "value is former")


@defect("ZERO-008")
def copies_know_of_no_counts() -> None:
    """A copy does not know what the local optimizer has written in its groups, until it is stepped."""
    edit("    self.counts.written = other.counts.written\n", "", within="Shard.become")


@defect("ZERO-022")
def joined_rank_forgets_the_gradients_of_the_first_parameter() -> None:
    """The gradients of an absent rank's shard are taken one place too late: its first parameter gets none."""
    edit("id(parameter) in mine]", "id(parameter) in mine and parameter is not parameters[0]]", within="_pass_on")


@defect("ZERO-016")
def tuples_in_states_become_lists() -> None:
    """A state that holds a tuple is saved with a list in its place."""
    edit("made = copied(value, snapshot)", "made = copied(list(value) if type(value) is tuple else value, snapshot)")


@defect("ZERO-008", "ZERO-011")
def loops_are_chosen_against_the_users_word() -> None:
    """Small parameters are stepped at once although the user has asked for one by one, which is then forgotten."""
    edit('group.get("foreach") is not None or', 'group.get("foreach") or')


@defect("ZERO-008", "ZERO-011")
def rates_in_tensors_are_stepped_at_once() -> None:
    """A learning rate in a tensor does not keep small parameters from being stepped at once, which refuses it."""
    edit("if any(_holds_a_tensor(value) for name, value in group.items() if name != \"params\"):", "if group is None:")


@defect("ZERO-008", "ZERO-011")
def betas_in_tensors_are_stepped_at_once() -> None:
    """Only settings that are tensors are looked for, not those that hold some: tensors as betas are refused."""
    edit("any(_holds_a_tensor(value) for name", "any(isinstance(value, torch.Tensor) for name")


@defect("ZERO-008", "ZERO-011")
def nesterovs_momentum_is_added_to_the_gradients() -> None:
    """With Nesterov's momentum the owner's gradients are, after a step, not those that it was given."""
    edit('if group.get("nesterov"):', "if group is None:")


@defect("ZERO-017")
def states_are_loaded_by_the_former_places() -> None:
    """A state that is loaded before the first step in new places goes to those who own what was there before."""
    edit("    self.shard.look_at_parameters()\n", "", within="load_state_dict")


@defect("ZERO-012")
def cast_parameters_travel_in_their_former_dtype() -> None:
    """The buffers of a step stay as they are when the program casts the parameters, which are rounded in them."""
    edit(" or forms_of(self._sent) != self._forms", "")


@defect("ZERO-012", worlds=(2,))
def parameters_of_several_dtypes_share_a_buffer() -> None:
    """What one owner has on a device travels in the dtype of its first parameter."""
    edit("kind = parameter.device, parameter.dtype", "kind = parameter.device, None")


@defect("ZERO-008")
def buffers_belong_to_the_mode_of_the_first_step() -> None:
    """Buffers that are made in a step under inference mode cannot be written to in the next one outside of it."""
    edit("with torch.inference_mode(False):", "if True:", within="new_flat")


@defect("ZERO-002")
def groups_may_have_no_order() -> None:
    """The parameters of a group are accepted in a set, which each rank goes through in another order."""
    edit("if isinstance(params, (set, frozenset)):", "if False:")


@defect("ZERO-020")
def state_is_loaded_by_live_ranks_alone() -> None:
    """Inside a context a state can be loaded, of which ranks that have joined do not hear."""
    edit("if self._join_session is not None or self._joining.inside_unlisted:", "if False:")


@defect("ZERO-020")
def settings_in_tensors_are_sent_as_the_step_left_them() -> None:
    """What joined ranks are told was noted before the step without a copy, so what a step changes in place shows."""
    edit(
        "return value if isinstance(value, nn.Parameter) else value.detach().clone()",
        "return value",
        within="_kept",
    )


@defect("ZERO-020")
def gradients_for_joined_ranks_have_their_parameters_dtype() -> None:
    """A gradient that is kept in a finer dtype than its parameter is rounded on its way to a joined rank."""
    edit("gradient_dtype(parameters[place])), [])", "parameters[place].dtype), [])")


@defect("DDPJ-010")
def shown_gradients_stay_where_there_were_none() -> None:
    """A joined rank without gradients keeps those with which it stepped for the others."""
    edit(
        "        for (parameter, _), gradient in zip(pairs, before, strict=True):\n",
        "        for (parameter, _), gradient in zip(pairs, before, strict=True):\n"
        "            if gradient is None:\n                continue\n",
        within="shown_gradients",
    )


@defect("ZERO-008")
def refused_group_is_listed_all_the_same() -> None:
    """A group whose tensors are refused is in the list of groups afterwards."""
    edit(
        '    check_alike(group["params"])\n    super().add_param_group(group)\n',
        '    super().add_param_group(group)\n    check_alike(group["params"])\n',
    )


@defect("ZERO-008", "ZERO-012", worlds=(3,))
def complex_doubles_are_spread_as_real_numbers() -> None:
    """Between hosts the numbers of wide complex elements that move are counted as if they were real."""
    edit(
        "    if flat.is_complex():\n        arriving, leaving",
        "    if flat.is_complex() and flat.element_size() < 16:\n        arriving, leaving",
    )


@defect("ZERO-008")
def state_may_be_gathered_on_the_rank_behind_the_last() -> None:
    """A consolidation to a rank that does not exist, the next one after the last, is not refused."""
    edit("if to not in range(self.shard.team.size):", "if to not in range(self.shard.team.size + 1):")


@defect("ZERO-011")
def settings_that_are_gone_come_back() -> None:
    """What a program takes out of a group stays in the local optimizer's, from which each step brings it back."""
    edit("        _drop_others(source, target)\n", "", within="copy_settings")


@defect("ZERO-016")
def who_asks_for_a_state_has_it() -> None:
    """A rank that was asked for the state of another's parameter takes the empty one that it gave for the true one."""
    edit(
        "    owned = self.plan.owned_by(self.team.rank)\n    return {index",
        "    owned = range(len(parameters))\n    return {index",
        within="Shard.states",
    )


@defect("ZERO-008")
def turned_parameters_are_sent_in_their_former_shapes() -> None:
    """A parameter that is turned between two steps keeps its size, and so the message that was made for its shape."""
    edit("parameter.shape) for", "torch.Size([parameter.numel()])) for", within="forms_of")


@defect("ZERO-008")
def gradients_of_what_is_frozen_again_are_not_sent() -> None:
    """What was trained during backward only is stepped by its owner, and stays with it."""
    edit("parameter.grad is not None for parameter in parameters])", "False for _ in parameters])")


@defect("ZERO-008")
def views_leave_out_what_shares_memory() -> None:
    """Of an owner whose parameters became views those that could not, since they share memory, are not sent."""
    edit("members = [member for member in members if id(member) not in moved]", "members = []")


@defect("ZERO-020")
def joined_ranks_do_not_hear_of_the_hooks_before_a_step() -> None:
    """Joined ranks call the hooks after a step, and not those before it."""
    edit("self._call({**_global_optimizer_pre_hooks, **self.zero._optimizer_step_pre_hooks})", "pass")


@defect("ZERO-020")
def hooks_before_all_steps_pass_joined_ranks_by() -> None:
    """Of the hooks before a step a joined rank calls only those of the optimizer, not those of all optimizers."""
    edit("{**_global_optimizer_pre_hooks, **", "{**")


@defect("ZERO-017")
def states_are_loaded_in_the_order_of_the_program() -> None:
    """A local optimizer with an order of its own is given the states of other parameters."""
    edit("in self.optim.param_groups]  # in the", "in self.local_groups(self.team.rank)]  # in the")


@defect("ZERO-008")
def what_is_moved_before_a_closure_stays_with_its_owner() -> None:
    """A closure sees what its own rank has moved before it is evaluated, and not what the others have."""
    edit("if check is None or check(evaluated or", "if evaluated if check is None else check(evaluated or")


@defect("ZERO-022")
def joined_ranks_step_without_a_closure() -> None:
    """An optimizer that cannot step without a closure fails on joined ranks, another one steps otherwise."""
    edit("functools.partial(_loss_here, received.loss, self._shard.device) if received.loss else None", "None")


@defect("ZERO-022")
def joined_ranks_are_not_told_the_loss() -> None:
    """The closure that an optimizer is given on joined ranks says that there is no loss."""
    edit("functools.partial(_loss_here, received.loss, self._shard.device)", "(lambda: 0.0)")


@defect("ZERO-022")
def losses_are_told_that_no_optimizer_was_given() -> None:
    """A joined rank gives its optimizer a closure also where live ranks give none."""
    edit("heard: tuple[Any, ...] = ()", "heard: tuple[Any, ...] = (1.5,)", within="Joining.step")


@defect("ZERO-022")
def parameters_in_keywords_travel_as_copies() -> None:
    """The parameters that a step's keywords name are others on ranks that have joined."""
    edit("(given,) = by_place([arguments], parameters)", "given = arguments")


@defect("ZERO-020")
def settings_in_tensors_are_cast_on_joined_ranks() -> None:
    """A setting in a tensor of another dtype than the one that a joined rank holds is cast to that."""
    edit("held.shape == value.shape and held.dtype == value.dtype", "held.shape == value.shape")


@defect("ZERO-022")
def a_hook_around_that_of_the_optimizer_steps_once_more() -> None:
    """On a joined rank the main hook steps the shard, which its follower does as well."""
    edit("if self.zero._join_session is None:", "if True:")


@defect("ZERO-008")
def parameters_in_settings_are_copied() -> None:
    """Where an optimizer is made anew, the parameters that its settings name are copies of those that it steps."""
    edit("further)\n    take_settings(settings, self.exposed.param_groups)", "further)", within="_go_on_with")


@defect("ZERO-008")
def generators_that_come_late_are_not_handed_over() -> None:
    """A generator that an optimizer makes in its first step only is missing where it is made anew behind that."""
    edit("setattr(optim, name, torch.Generator(device.type))", "continue")


@defect("ZERO-008")
def what_was_taken_back_counts() -> None:
    """What an optimizer has set to None is as its constructor sets it where it is made anew."""
    edit("return value is None or isinstance(value, (Number, str))", "return isinstance(value, (Number, str))")


@defect("ZERO-008")
def parameters_of_every_class_are_stepped_at_once() -> None:
    """Parameters that define how they are added to are stepped by loops that do not ask them."""
    edit("if not PLAIN.issuperset(map(type, parameters)):", "if False:")


@defect("ZERO-020")
def parameters_in_settings_travel_as_copies() -> None:
    """Joined ranks get copies of the parameters that the settings of live ranks name."""
    edit("settings = by_place(settings, parameters)", "pass", within="Joining.step")


@defect("ZERO-012")
def parameters_of_inference_mode_become_what_can_be_trained() -> None:
    """With bucket views a parameter that was made under inference mode gets memory that was not, and cannot be read."""
    edit("_under_inference(view) if tensor.is_inference() else view", "view")


@defect("ZERO-022")
def closures_in_a_context_meet_the_owners_of_before() -> None:
    """A step with a closure that begins in a context has not looked at what the program has changed in the groups."""
    edit("shard.look_at_parameters()  # the program may have changed them since the last step\n", "pass\n")


@defect("ZERO-022")
def what_is_no_number_has_moved() -> None:
    """A parameter that holds what is no number counts as moved before its closure is evaluated."""
    edit("map(_same, before", "map(torch.equal, before")


@defect("ZERO-016")
def what_is_saved_besides_goes_by_the_owners_of_before() -> None:
    """Who is asked for its state looks for its own parameters where they were when it last looked."""
    edit('{parameter for group in optim.param_groups for parameter in group["params"]}',
         "set(self.owned_by(self.team.rank))")  # fmt: skip


@defect("ZERO-032")
def places_of_the_beginning_are_those_of_the_owners() -> None:
    """Owners that are fixed late are taken for those of the parameters as they stood in the groups at first."""
    edit("self._looked_at, self._memory = self.by_group(), Memory(self.parameters())", "pass")
