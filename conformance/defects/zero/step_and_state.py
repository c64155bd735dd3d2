"""Defects of area zero: partition, step, state."""

from __future__ import annotations

from typing import Any

import torch

import impl.comm.flat
import impl.zero.checkpoint

from ..planting import defect, edit, swap


@defect("ZERO-014")
def added_group_has_the_defaults() -> None:
    """An added group is stepped with the defaults instead of its own settings."""
    edit("    super().add_param_group(group)\n", '    super().add_param_group({"params": group["params"]})\n')


@defect("ZERO-014")
def added_group_does_not_show_what_the_local_optimizer_gives_it() -> None:
    """Settings that the local optimizer gives to an added group are not seen in it before the next step."""
    edit("    copy_settings(self.optim.param_groups[-1:], self.exposed.param_groups[-1:])\n", "")


@defect("ZERO-014")
def added_group_is_not_sent() -> None:
    """The transfers are not made anew when a group has been added."""
    edit(
        "any(map(is_not, present, self._made_for))",
        "len(shard.sent) == len(self._made_for[2]) and any(map(is_not, present, self._made_for))",
    )


@defect("ZERO-014")
def added_groups_are_spread_as_if_nobody_owned_anything() -> None:
    """Owners of an added group are chosen without regard to what each rank owns already."""
    edit("loads[owner] += numels[place]", "pass", within="greedy")


@defect("ZERO-014")
def adding_a_group_deals_out_anew() -> None:
    """Adding a group deals all parameters out anew, so some change their owner."""
    edit("size, memory.first, owners)", "size, memory.first)")


@defect("ZERO-015", "ZERO-016")
def always_consolidated_to_rank_0() -> None:
    """The state is consolidated to rank 0, whatever target is asked for."""
    edit("self.shard.consolidate(GroupRank(to))", "self.shard.consolidate(GroupRank(0))")


@defect("ZERO-013")
def change_of_trainability_is_logged_for_ever() -> None:
    """Once requires_grad has changed, every later step says so again."""
    edit("    self.trainable = now\n", "    self.trainable = self.trainable or now\n")


@defect("ZERO-013")
def change_of_trainability_is_not_logged() -> None:
    """A change of requires_grad is noticed, but nobody is told."""
    edit("logger.warning(", "logger.debug(", within="look_at_trainability")


@defect("ZERO-010")
def closure_is_called_by_the_wrapper() -> None:
    """The closure is called before the local step instead of being passed on to it."""
    edit(
        "loss = step_of(self.optim, **given, **kwargs)",
        "loss = (closure() if closure is not None else None, step_of(self.optim, **kwargs))[0]",
    )


@defect("ZERO-015", "ZERO-016")
def consolidated_to_the_last_rank() -> None:
    """The state is consolidated to the last rank unless told otherwise."""
    edit(
        "to: int = 0) -> None:",
        "to: int | None = None) -> None:\n    to = self.shard.team.size - 1 if to is None else to",
    )


@defect("ZERO-007", "ZERO-008")
def each_rank_begins_with_itself() -> None:
    """Each rank gives itself the largest parameter, so the ranks disagree about the owners."""
    edit(
        "    if self.overlap is not None:\n        self._overlap_info",
        "    rolled = tuple((owner + team.rank) % team.size for owner in self.shard.plan.owners)\n"
        "    self.shard.plan = type(self.shard.plan)(team.size, self.shard.plan.numels, rolled)\n"
        "    if self.overlap is not None:\n        self._overlap_info",
    )


@defect("ZERO-009")
def every_rank_keeps_all_state() -> None:
    """The local optimizer is built over all parameters, so every rank keeps the whole state."""
    edit("self.exposed.param_groups, self.owned_by(rank))", "self.exposed.param_groups, self.parameters())")


@defect("ZERO-017")
def every_rank_loads_everything() -> None:
    """Each rank keeps the loaded states of all parameters, those of others too."""
    edit("if index not in owned}", "if index < 0}")


@defect("ZERO-016")
def fresh_state_is_called_old() -> None:
    """A state that was consolidated a moment ago is said to be as old as the optimizer."""
    edit("    self.steps_since_consolidation = 0", "", within="Shard.consolidate")


@defect("ZERO-013")
def frozen_once_never_sent_again() -> None:
    """The transfers are not made anew when a parameter is thawed, so it is stepped by its owner and sent to
    nobody."""
    edit("map(is_not, present, self._made_for)", "map(is_not, present[:2], self._made_for)")


@defect("ZERO-010")
def keywords_are_dropped_beside_a_closure() -> None:
    """Further keywords of step() are passed on only where there is no closure."""
    edit("step_of(self.optim, **given, **kwargs)", "step_of(self.optim, **(given or kwargs))")


@defect("ZERO-010")
def keywords_of_step_are_dropped() -> None:
    """Further keywords of step() do not reach the local optimizer."""
    edit("self.shard.step(closure, **kwargs)", "self.shard.step(closure)", within="ZeroRedundancyOptimizer.step")


@defect("ZERO-008")
def large_parameters_are_not_sent() -> None:
    """Parameters that are large enough to travel by themselves are stepped by their owner and not sent."""
    edit(" + [[member] for member in large]", "")


@defect("ZERO-011")
def learning_rate_does_not_reach_the_shard() -> None:
    """Changed settings of the exposed groups do not reach the local optimizer."""
    edit("self.take_changes()", "self.optim.state = self.exposed.state", within="look_at_changes")


@defect("ZERO-017")
def loaded_scalars_are_dropped() -> None:
    """Loading sets the zero-dimensional entries of a state back to zero, such as step counts."""
    def own_states(*arguments: Any) -> dict:
        found = right(*arguments)
        for state in found.values():
            for value in state.values():
                if isinstance(value, torch.Tensor) and value.dim() == 0:
                    value.zero_()
        return found

    right = swap(impl.zero.checkpoint, "own_states", own_states)


@defect("ZERO-017")
def loaded_states_are_cast_on_the_way() -> None:
    """What is loaded has the parameters' dtype before the local optimizer, which may know better, comes to it."""
    def own_states(*arguments: Any) -> dict:
        found = right(*arguments)
        for parameter, state in found.items():
            tensors = {key: each for key, each in state.items() if isinstance(each, torch.Tensor)}
            state.update({key: each.to(parameter.dtype) for key, each in tensors.items()})
        return found

    right = swap(impl.zero.checkpoint, "own_states", own_states)


@defect("ZERO-017")
def loaded_states_are_counted_from_zero() -> None:
    """Each rank loads the first states of the dictionary, as many as it owns parameters."""
    edit("if index not in owned}", "if index >= len(owned)}")


@defect("ZERO-018")
def loading_empties_its_argument() -> None:
    """Loading replaces other ranks' entries in the given dictionary by None."""
    edit(
        "    kept = {",
        "    for key in foreign & set(state_dict['state']):\n        state_dict['state'][key] = None\n    kept = {",
        within="own_states",
    )


@defect("ZERO-017")
def loading_leaves_the_groups() -> None:
    """Loading takes the states, but leaves the groups' settings as they are."""
    edit(
        "        super().load_state_dict(state_dict)\n",
        "        before = [{key: group[key] for key in group if key != 'params'} for group in self.param_groups]\n"
        "        super().load_state_dict(state_dict)\n"
        "        for group, kept in zip(self.param_groups, before, strict=True):\n"
        "            group.update(kept)\n",
    )


@defect("ZERO-007")
def loads_count_parameters() -> None:
    """The load of a rank is the number of its parameters, not of their elements."""
    edit("loads[chosen] += numels[place]", "loads[chosen] += 1", within="greedy")


@defect("ZERO-011")
def local_changes_are_not_shown() -> None:
    """What the local optimizer changes in its groups is not shown, and undone by the next step."""
    edit("self.show_changes()", "self.exposed.state = self.optim.state", within="Shard.step")


@defect("ZERO-010")
def loss_is_lost() -> None:
    """step() returns nothing, even if a closure has computed a loss."""
    edit("    return loss\n", "    return None\n", within="ZeroRedundancyOptimizer.step")


@defect("ZERO-008")
def low_precision_is_stepped_at_once() -> None:
    """Parameters of low precision are stepped by the loops that round elsewhere."""
    edit("tensor.dtype in _SAME_IN for", "tensor.layout == torch.strided for")


@defect("ZERO-015")
def missing_consolidation_is_a_value_error() -> None:
    """Asking for the state without a consolidation raises a ValueError."""
    edit("raise RuntimeError(", "raise ValueError(", within="whole_state")


@defect("ZERO-007", "ZERO-008")
def nothing_is_sent() -> None:
    """Each rank steps its own parameters and sends them to nobody."""
    edit("    self._publisher.publish()\n", "", within="ZeroRedundancyOptimizer.step")


@defect("ZERO-016")
def numbers_in_states_are_not_saved() -> None:
    """Of the optimizer states only tensors reach the rank to which they are consolidated."""
    edit("return copy.deepcopy(value)", "return None")


@defect("ZERO-008")
def only_the_first_transfer_arrives() -> None:
    """Of several transfers only the first is waited for and unpacked."""
    edit(
        "    for transfer in self.transfers:\n        transfer.finish(",
        "    for transfer in self.transfers[:1]:\n        transfer.finish(",
    )


@defect("ZERO-011")
def only_the_learning_rate_is_copied() -> None:
    """Of the groups' settings only the learning rate is kept in step."""
    edit('if key != "params":', 'if key == "lr" or key not in target:')


@defect("ZERO-007")
def parameters_are_dealt_out_in_turn() -> None:
    """Parameters are dealt out round robin, without looking at loads."""
    edit("else loads.index(min(loads))", "else places[0] % world", within="greedy")


@defect("ZERO-007")
def parameters_are_not_sorted() -> None:
    """Parameters are dealt out in the order in which they are given."""
    edit("key=lambda places: -sum(numels[place] for place in places)", "key=lambda places: 0")


@defect("ZERO-008")
def parameters_are_sent_before_the_step() -> None:
    """The owners send their parameters before they step them."""
    edit(
        "    loss = self.shard.step(closure, **kwargs)\n    self._publisher.publish()\n",
        "    self._publisher.publish()\n    loss = self.shard.step(closure, **kwargs)\n",
    )


@defect("ZERO-017")
def settings_are_missing_in_the_state() -> None:
    """A learning rate that the local optimizer has changed is missing in the consolidated state."""
    edit(
        "        self.show_changes()\n",
        "        for ours, local in zip(self.exposed.param_groups, self.optim.param_groups, strict=True):\n"
        '            ours["lr"] = local["lr"]\n'
        "        self.exposed.state = self.optim.state\n",
        within="Shard.step",
    )


@defect("ZERO-011")
def settings_of_the_first_group_only() -> None:
    """Only the first group's settings are kept in step."""
    edit("zip(sources, targets, strict=True)", "list(zip(sources, targets, strict=True))[:1]")


@defect("ZERO-015")
def shard_is_given_for_the_whole_state() -> None:
    """Without a consolidation the state dictionary holds this rank's shard, without an error."""
    edit(
        "    whole = self.shard.whole_state()\n",
        "    if self.shard.consolidated is None:\n        return super().state_dict()\n"
        "    whole = self.shard.whole_state()\n",
    )


@defect("ZERO-007")
def smallest_parameter_goes_first() -> None:
    """Parameters are dealt out in ascending order of size."""
    edit("key=lambda places: -sum(", "key=lambda places: sum(")


@defect("ZERO-016")
def states_are_in_the_order_of_arrival() -> None:
    """The whole state stands in the order in which the shards have arrived."""
    edit("{parameter: states[parameter] for parameter in self.parameters() if parameter in states}", "states")


@defect("ZERO-016")
def states_are_indexed_by_shard() -> None:
    """A rank's states are indexed by their place in its shard, so those of several ranks overwrite each other."""
    edit(
        "return {index: held[parameters[index]] for index in owned",
        "return {owned.index(index): held[parameters[index]] for index in owned",
    )


@defect("ZERO-016", worlds=(3,))
def target_is_a_global_rank() -> None:
    """The target of a consolidation is taken for a global rank."""
    edit(
        "self.shard.consolidate(GroupRank(to))",
        "self.shard.consolidate(GroupRank(list(map(self.shard.team.global_rank, self.shard.team.members)).index(to)))",
    )


@defect("ZERO-013")
def trainability_is_looked_at_once() -> None:
    """requires_grad is looked at when the optimizer is built, and never again."""
    edit("if now != self.trainable:", "if not self.trainable:", within="look_at_trainability")


@defect("ZERO-012")
def views_are_always_made() -> None:
    """Parameters are moved into flat tensors without being asked to."""
    edit("Transfers(self._shard, self._as_views)", "Transfers(self._shard, True)")


@defect("ZERO-012")
def views_are_made_anew_in_each_step() -> None:
    """Parameters as views of one flat tensor move to a new one in each step."""
    edit(
        "or self._moved.stale",
        "or bool(self._flats) or self._moved.stale",
        within="Transfers.stale",
    )


@defect("ZERO-012")
def views_are_never_made() -> None:
    """The option for bucket views is accepted and ignored."""
    edit("Transfers(self._shard, self._as_views)", "Transfers(self._shard, False)")


@defect("ZERO-012")
def views_begin_without_values() -> None:
    """The flat tensors are made, but the values are not moved into them."""
    edit("copy_all(views, [tensor.detach() for tensor in tensors])", "[view.zero_() for view in views]")


@defect("ZERO-009")
def whole_state_stays_with_the_asker() -> None:
    """Whoever asks for the whole state keeps all of it in the place of its own shard's."""
    edit("self.state = own\n", "pass\n")


@defect("ZERO-007")
def one_owner_is_asked_for_and_all_send() -> None:
    """Sending one rank's part sends every rank's, so that nobody keeps a value of his own until his turn."""
    edit("transfers().publish_of(GroupRank(rank))", "publish()")


@defect("ZERO-017")
def foreign_states_are_known_by_their_keys() -> None:
    """Whose a loaded state is goes by its key, as if the keys were always places."""
    edit("if index not in owned}", "if key not in owned}")


@defect("ZERO-008")
def a_group_without_parameters_is_refused() -> None:
    """One group without parameters is taken for an optimizer without any."""
    edit("if not everything:", 'if not all(group["params"] for group in groups):')


@defect("ZERO-017")
def only_states_of_parameters_are_loaded() -> None:
    """A state that belongs to no parameter is left out where a state is loaded, and the optimizer starts it anew."""
    edit("if key not in foreign and", "if key in keys and key not in foreign and")


@defect("ZERO-033")
def what_fills_its_storage_is_sent_in_place() -> None:
    """A parameter that is sent alone and fills its storage is sent as it lies, in whatever order its elements are."""
    edit(
        "not others and first.is_contiguous() and not first.is_conj()",
        "not others and first.nbytes == first.untyped_storage().nbytes()",
    )


@defect("ZERO-008", worlds=(3,))
def parts_within_a_share_do_not_move() -> None:
    """Where no owner has more than an equal share, parts are taken for the shares of an all-gather."""
    edit("return max(moved)", "return max(moved) if max(self.numels) > self.share else 0")


@defect("ZERO-008", worlds=(3,))
def complex_numbers_come_from_a_global_rank() -> None:
    """Where complex numbers are sent, the source's rank in its group is taken for one in the world."""
    edit("partial(dist.broadcast, buffer, group_src=source", "partial(dist.broadcast, buffer, src=source")


@defect("ZERO-011")
def defaults_are_what_was_given() -> None:
    """Of the local optimizer's defaults only those are shown that were given to the constructor."""
    edit("{**self.given_defaults, **local.defaults}", "{key: local.defaults[key] for key in self.given_defaults}")


@defect("ZERO-016")
def what_an_optimizer_adds_to_its_state_is_left_out() -> None:
    """The consolidated state holds what every optimizer saves, and nothing that the local one adds."""
    edit("made | self.shard.further_entries()", "made")


@defect("ZERO-016")
def what_an_optimizer_adds_to_its_state_is_loaded_as_it_is() -> None:
    """Where a state is loaded, the local optimizer is handed what it adds itself, and not what was saved."""
    edit("checkpoint.further_entries(whole)", "None")


@defect("ZERO-033")
def bucket_views_lie_row_by_row() -> None:
    """Parameters lose their layout where they become views of a flat tensor, and gradients that are there keep it."""
    swap(impl.comm.flat, "dense_views", impl.comm.flat.flat_views)


@defect("ZERO-033")
def what_lies_in_bucket_views_is_sent_as_it_lies() -> None:
    """Flat tensors are sent in place whatever the layout of their parameters, which other ranks may not share."""
    edit("flat if row_by_row else None", "flat")


@defect("ZERO-016")
def what_was_loaded_first_is_loaded_again() -> None:
    """Each load repeats those before it, with what the local optimizer had saved of itself then."""
    edit("        first.remove()\n", "", within="ZeroRedundancyOptimizer.load_state_dict")
