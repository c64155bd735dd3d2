"""Defects of area zero: parameters that come and go, settings that closures change, states from elsewhere."""

from __future__ import annotations

from ..planting import defect, edit


@defect("ZERO-008")
def former_owners_are_forgotten() -> None:
    """A parameter that is put back in its group is dealt out anew, to a rank that does not have its state."""
    edit(
        "    owner_of.update(zip(before, self.plan.owners, strict=True))\n",
        "    owner_of.clear()\n    owner_of.update(zip(before, self.plan.owners, strict=True))\n",
    )


@defect("ZERO-008")
def who_is_added_again_has_another_owner() -> None:
    """A parameter that comes back in a group of its own is dealt out anew, to a rank that does not have its state."""
    edit('map(self._owner_of.get, added["params"])', '(None for _ in added["params"])')


@defect("ZERO-008")
def successors_displace_whom_others_own() -> None:
    """Where one is taken out and another appended, each that moved up goes to the owner of the one before it."""
    edit("if old not in here and new not in owner_of:", "if old not in here:")


@defect("ZERO-008")
def successors_are_dealt_out_anew() -> None:
    """A parameter in the place of another goes where the load is least, and not where the program put its state."""
    edit("if len(listed) == len(members) else ():", "if False else ():")


@defect("ZERO-008")
def successors_are_dealt_out_anew_where_a_group_goes() -> None:
    """Groups are taken for the same by their place, which changes where one before them is dropped."""
    edit("in same or zip(", "in zip(")


@defect("ZERO-008")
def groups_made_anew_are_strangers() -> None:
    """Where the program has replaced the dictionaries themselves, nobody looks at what stands in whose place."""
    edit("in same or zip(looked_at, present, strict=False)", "in same")


@defect("ZERO-008")
def moves_between_groups_are_overlooked() -> None:
    """A parameter that moves to the next group without changing its place is stepped with its former settings."""
    edit("if ids_by_group(present) == ids_by_group(looked_at):", "if all(map(is_, now, before)):")


@defect("ZERO-008")
def replaced_parameters_are_overlooked() -> None:
    """Only the number of parameters in each group is looked at, not which they are."""
    numbers = "[len(each) for _, each in present] == [len(each) for _, each in looked_at]"
    edit("ids_by_group(present) == ids_by_group(looked_at)", numbers)


@defect("ZERO-008")
def groups_are_added_to_what_was_there_at_the_last_step() -> None:
    """Where a group is added, nobody looks at what the program has taken out since the last step."""
    edit("    self.shard.look_at_parameters()\n", "", within="add_param_group")


@defect("ZERO-008")
def states_that_the_optimizer_replaces_come_back() -> None:
    """The state that an optimizer has put in the place of its own is replaced by the former one in its next step."""
    settings_only = "copy_settings(self.optim.param_groups, self.exposed.param_groups)"
    edit("self.show_changes()", settings_only, within="Shard.step")


@defect("ZERO-008")
def saved_states_are_those_before_they_were_replaced() -> None:
    """What is consolidated is the local optimizer's state, though the program has put another in its place."""
    edit("self.look_at_changes()", "self.look_at_parameters()", within="states")


@defect("ZERO-008")
def views_tear_shared_memory_apart() -> None:
    """With bucket views parameters that have memory in common get one each."""
    edit("movable = [member for member in members if id(member) in alone]", "movable = members")


@defect("ZERO-008")
def what_a_closure_thaws_is_sent_behind_the_step_only() -> None:
    """Between two evaluations of a closure what it has thawed is not sent, though its owner has stepped it."""
    edit("            shard.look_at_trainability()  # the closure may have thawed some\n", "")


@defect("ZERO-008")
def what_has_no_gradient_is_not_sent() -> None:
    """A frozen parameter is not sent, though an optimizer that needs no gradient has moved it."""
    edit("any_may_move or parameter.grad", "parameter.grad")


@defect("ZERO-011")
def rates_of_closures_come_too_late() -> None:
    """A rate that a closure sets does not reach the local optimizer, and is taken back after the step."""
    edit("self._heard(closure, before)", "closure")


@defect("ZERO-011")
def rates_in_tensors_of_closures_are_refused() -> None:
    """Steps with a closure take small parameters at once, too: a rate in a tensor that it sets is refused there."""
    edit("if given or self._memory.shared", "if self._memory.shared", within="Shard.step")


@defect("ZERO-020")
def rates_of_closures_do_not_reach_joined_ranks() -> None:
    """Joined ranks are told the settings of before the closure was called."""
    edit(
        "            begun = self._settings()  # the closure may have changed them\n",
        "",
    )


@defect("ZERO-011")
def groups_are_copies() -> None:
    """The optimizer holds copies of the groups that it is given, so that later changes do not reach it."""
    edit('    group["params"] = listed\n    return group\n', '    return {**group, "params": listed}\n')


@defect("ZERO-017")
def older_states_leave_options_out() -> None:
    """Options that a state of an earlier version does not have are missing in the next step."""
    edit("self.show_changes()", "self.exposed.state = self.optim.state", within="load_local")


@defect("ZERO-020")
def gradients_for_joined_ranks_are_of_one_dtype() -> None:
    """All gradients that joined ranks are told are of the dtype of the first parameter's."""
    edit("gradient_dtype(parameters[place])), [])", "gradient_dtype(parameters[0])), [])")


@defect("ZERO-020")
def closures_are_evaluated_twice_beside_absent_ranks() -> None:
    """An optimizer that evaluates its closure twice goes on where a rank has joined, which does not evaluate it."""
    edit("if absent and moved:", "if False:", within="_all_live")


@defect("ZERO-020")
def closures_in_a_context_see_old_shards() -> None:
    """In a context a closure that is called again within a step sees only the rank's own shard stepped."""
    edit("sent = self._publisher.between_evaluations(closure, lambda moved: self._all_live(session, moved))",
         "sent = closure")  # fmt: skip


@defect("ZERO-008")
def states_of_another_dtype_are_stepped_at_once() -> None:
    """Whether small parameters may be stepped at once goes by their dtype alone, which a program may have changed."""
    edit("(parameter, parameter.grad, *state.get(parameter, {}).values())", "(parameter,)")


@defect("ZERO-008")
def states_of_another_wide_dtype_are_stepped_at_once() -> None:
    """Small parameters are stepped at once though their states are of another dtype, of double precision."""
    edit("(tensor.dtype == parameter.dtype or tensor.shape != parameter.shape)", "True")


@defect("ZERO-020")
def hooks_of_all_optimizers_pass_joined_ranks_by() -> None:
    """Of the hooks after a step a joined rank calls only those of the optimizer, not those of all optimizers."""
    edit(", **_global_optimizer_post_hooks}", "}")


@defect("ZERO-008")
def expanded_parameters_are_received_as_they_are() -> None:
    """What has come is copied to each number of an expanded parameter, although several of them are one in memory."""
    edit("stored = each_once(member)", "stored = member")


@defect("ZERO-008")
def added_views_have_owners_of_their_own() -> None:
    """A parameter that is added later, and lies in the memory of another one, goes where the load is least."""
    edit("chosen = known[0] if known else loads.index(min(loads))", "chosen = loads.index(min(loads))")


@defect("ZERO-008")
def hooks_of_all_optimizers_hear_of_local_steps() -> None:
    """Hooks for the steps of all optimizers are called for the step of a shard, too, and so twice."""
    edit('if not getattr(step, "hooked", False):', "if True:")


@defect("ZERO-008")
def what_hooks_make_of_arguments_is_dropped() -> None:
    """A hook before the steps of the local optimizer is called, and the arguments that it returns are not used."""
    edit("hook(optim, positional, arguments) or (", "hook(optim, positional, arguments) and False or (")


@defect("ZERO-008")
def what_has_come_is_no_change_to_a_graph() -> None:
    """Where a parameter is received in place, a graph that has saved it goes on from its new values."""
    edit("    else:\n        note_change(self.members)\n", "", within="Transfer.finish")


@defect("ZERO-008")
def optimizers_of_all_parameters_step_a_part() -> None:
    """An optimizer that needs all parameters together is given those of a rank."""
    edit("if ranks > 1 and isinstance", "if False and isinstance")


@defect("ZERO-008")
def optimizers_of_all_parameters_that_a_function_makes_step_a_part() -> None:
    """An optimizer that needs all parameters together is known where it is given as a class."""
    edit("    check_shardable(made", "    self.constructor is type(made) and check_shardable(made")


@defect("ZERO-011")
def rates_of_closures_that_fail_are_lost() -> None:
    """A rate that a closure has set before it fails does not reach the local optimizer, and is taken back."""
    edit("        try:\n            return closure(", "        try:\n            loss = closure(", within="_heard")
    edit("        finally:\n", "        except ZeroDivisionError:\n            raise\n        else:\n", within="_heard")
    edit("local.pop(key, None)\n", "local.pop(key, None)\n            return loss\n", within="_heard")


@defect("ZERO-011")
def settings_of_steps_that_fail_are_lost() -> None:
    """What a step has changed in its groups before it fails is not shown, and taken back in the next one."""
    edit(
        "        self.show_changes()\n",
        "    self.show_changes()\n",
        within="Shard.step",
    )


@defect("ZERO-011")
def small_ones_stay_at_once_after_a_failure() -> None:
    """After a step that failed the groups say that the user wants parameters to be stepped at once."""
    edit(
        '    try:\n        yield\n    finally:\n        for group in groups:\n            group["foreach"] = None\n',
        '    yield\n    for group in groups:\n        group["foreach"] = None\n',
    )


@defect("ZERO-011")
def what_closures_take_out_of_groups_comes_back() -> None:
    """An entry that a closure takes out of a group comes back from the local optimizer's."""
    edit("for key in was.keys() - shown.keys():", "for key in ():")


@defect("ZERO-016")
def saved_states_belong_to_places() -> None:
    """Parameters that change places after a consolidation leave their states to those that come there."""
    edit("then = [parameter for _, members in self._looked_at for parameter in members]", "then = self.parameters()")


@defect("ZERO-016")
def consolidated_states_outlive_changes_of_groups() -> None:
    """A state that was consolidated before parameters changed places is shown for those that there are now."""
    edit("    self.forget()\n", "    self.copies and self.copies.forget()\n", within="look_at_parameters")


@defect("ZERO-017")
def dictionaries_are_cut_before_hooks_see_them() -> None:
    """A hook before a load, which may make another dictionary, is shown what is left of it for this rank."""
    edit("pre_hook(without_states)", "pre_hook(without_states, prepend=True)")


@defect("ZERO-020")
def groups_can_be_added_in_a_context() -> None:
    """Inside a context a group can be added, of which ranks that have joined do not hear."""
    edit("if self._join_session is not None:", "if False:", within="add_param_group")


@defect("ZERO-020")
def gradients_with_graphs_cannot_be_passed_on() -> None:
    """Gradients that have a graph of their own are copied as a part of it, which fails."""
    edit("@torch.no_grad()  # gradients of ``backward(create_graph=True)`` have a graph of their own\n", "")


@defect("ZERO-020")
def failures_of_one_block_end_the_next() -> None:
    """A step that failed in one block is taken for one of the next, where nothing has been broken off."""
    edit("    self.broken = None\n", "", within="enter")


@defect("ZERO-033")
def conjugates_are_sent_as_they_lie() -> None:
    """A complex parameter that is the conjugate of what lies in its memory is sent, alone, as it lies there."""
    edit(" and not first.is_conj():", ":")


@defect("ZERO-008")
def a_group_that_was_refused_is_shown() -> None:
    """A group that cannot be added stays among those that the program sees, and the next step fails."""
    edit("    del self.param_groups[-1]\n", "    pass\n")


@defect("ZERO-008")
def views_tear_frozen_ones_off() -> None:
    """With bucket views a parameter that has its memory in common with a frozen one gets one of its own."""
    edit("alone = memory_of_its_own(parameters)", "alone = memory_of_its_own(self._sent)")


@defect("ZERO-008")
def small_ones_are_stepped_at_once_though_fused() -> None:
    """Where a program has chosen the fused loop small parameters are stepped by another one."""
    edit(' or group.get("fused") is not None', "")


@defect("ZERO-008")
def pairs_of_tensors_are_stepped_at_once() -> None:
    """Betas in tensors do not keep small parameters from being stepped at once, which refuses them."""
    edit("if type(setting) in (list, tuple):", "if type(setting) is list:")


@defect("ZERO-008")
def copies_begin_to_count_anew() -> None:
    """What a copied optimizer has counted beside its parameters' states stays with the original."""
    edit("other._counters()", "self._counters()", within="become")


@defect("ZERO-008")
def copies_share_their_states() -> None:
    """A copied optimizer steps with the states of the original, which go on with it."""
    edit("copy.deepcopy(other.states(), memo)", "other.states()")


@defect("ZERO-008")
def copies_have_the_settings_of_the_beginning() -> None:
    """A copied optimizer has the settings that the original was constructed with."""
    edit(
        "copy.deepcopy([dict(group) for group in self.param_groups], memo)",
        'copy.deepcopy([{"params": group["params"]} for group in self.param_groups], memo)',
    )


@defect("ZERO-011")
def what_closures_add_to_groups_comes_too_late() -> None:
    """An entry that a closure adds to a group does not reach the local optimizer in the same step."""
    edit("value is not was.get(key, was)}", "value is not was.get(key, value)}")


@defect("ZERO-016")
def objects_in_states_are_not_copied() -> None:
    """What is no container goes on changing in the consolidated state of the rank that owns it."""
    edit("return copy.deepcopy(value) if made is value else made", "return made")


@defect("ZERO-020")
def settings_of_another_shape_are_filled_in() -> None:
    """A setting in a tensor is copied into that which a joined rank has, whatever its shape."""
    edit("held.shape == value.shape and held.dtype", "held.dtype")


@defect("ZERO-014")
def group_that_the_local_optimizer_refuses_stays() -> None:
    """A group that the local optimizer refuses stays among the groups that are shown."""
    edit("        del self.param_groups[-1]\n", "")


@defect("ZERO-008")
def parts_of_a_step_send_nothing() -> None:
    """Who sends parameters apart from the step sends the first rank's only."""
    edit(
        "    self._publisher.publish()\n",
        "    self._publisher.transfers().publish_of(GroupRank(0))\n",
        within="_sync_params",
    )


@defect("ZERO-008")
def local_step_counts_only() -> None:
    """A local step without gradients of its own leaves the parameters as they are."""
    edit("    return self.shard.step(closure, **kwargs)\n", "    return None\n", within="_local_step")


@defect("ZERO-020")
def numbers_are_settings_in_tensors() -> None:
    """A joined rank takes a setting that it holds for a tensor wherever the live ranks' is one."""
    edit("isinstance(held, torch.Tensor) and _alike", "held is not None and _alike")


@defect("ZERO-008")
def copies_have_no_views() -> None:
    """The parameters of a copied optimizer lie apart, though those of the original are views of one tensor."""
    edit("memo), self.parameters_as_bucket_view", "memo), False")
