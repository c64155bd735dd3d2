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
    edit("if _numbers_in(present) == _numbers_in(looked_at) and all(", "if all(")


@defect("ZERO-008")
def replaced_parameters_are_overlooked() -> None:
    """Only the number of parameters in each group is looked at, not which they are."""
    edit("and all(map(is_, now, before)):", "and now:")


@defect("ZERO-008")
def groups_are_added_to_what_was_there_at_the_last_step() -> None:
    """Where a group is added, nobody looks at what the program has taken out since the last step."""
    edit("    self.shard.look_at_parameters()\n", "", within="add_param_group")


@defect("ZERO-008")
def states_that_the_optimizer_replaces_come_back() -> None:
    """The state that an optimizer has put in the place of its own is replaced by the former one in its next step."""
    edit("        self.exposed.state = self.optim.state\n", "", within="Shard.step")


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
    edit("            self._shard.look_at_trainability()  # the closure may have thawed some\n", "")


@defect("ZERO-011")
def rates_of_closures_come_too_late() -> None:
    """A rate that a closure sets does not reach the local optimizer, and is taken back behind the step."""
    edit("self._heard(closure)", "closure")


@defect("ZERO-020")
def rates_of_closures_do_not_reach_joined_ranks() -> None:
    """Joined ranks are told the settings of before the closure was called."""
    edit(
        "            settings = settings_of(self._shard.exposed.param_groups)  # the closure may have changed them\n",
        "",
    )


@defect("ZERO-011")
def groups_are_copies() -> None:
    """The optimizer holds copies of the groups that it is given, so that later changes do not reach it."""
    edit('    group["params"] = listed\n    return group\n', '    return {**group, "params": listed}\n')


@defect("ZERO-017")
def older_states_leave_options_out() -> None:
    """Options that a state of an earlier version does not have are missing in the next step."""
    edit("copy_settings(self.optim.param_groups, self.exposed.param_groups)", "pass", within="load_local")


@defect("ZERO-020")
def gradients_for_joined_ranks_are_of_one_dtype() -> None:
    """All gradients that joined ranks are told are of the dtype of the first parameter's."""
    edit("gradient_dtype(parameters[place])), [])", "gradient_dtype(parameters[0])), [])")


@defect("ZERO-020")
def closures_are_evaluated_twice_beside_absent_ranks() -> None:
    """An optimizer that evaluates its closure twice goes on where a rank has joined, which does not evaluate it."""
    edit("if self._absent_ranks(session):", "if False:", within="_check_all_live")


@defect("ZERO-020")
def closures_in_a_context_see_old_shards() -> None:
    """In a context a closure that is called again within a step sees only the rank's own shard stepped."""
    edit(
        "sent = self._publisher.between_evaluations(closure, lambda: self._check_all_live(session), session.watch)",
        "sent = closure",
    )


@defect("ZERO-008")
def states_of_another_dtype_are_stepped_at_once() -> None:
    """Whether small parameters may be stepped at once goes by their dtype alone, which a program may have changed."""
    edit("(parameter, parameter.grad, *state.get(parameter, {}).values())", "(parameter,)")


@defect("ZERO-020")
def hooks_of_all_optimizers_pass_joined_ranks_by() -> None:
    """Of the hooks behind a step a joined rank calls only those of the optimizer, not those of all optimizers."""
    edit(", **_global_optimizer_post_hooks}", "}")


@defect("ZERO-008")
def added_views_have_owners_of_their_own() -> None:
    """A parameter that is added later, and lies in the memory of another one, goes where the load is least."""
    edit("chosen = known[0] if known else loads.index(min(loads))", "chosen = loads.index(min(loads))")
