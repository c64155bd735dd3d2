"""Defects of area zero: join."""

from __future__ import annotations

import torch.distributed as dist

from impl.join.hooks import JoinHook
from impl.zero.optimizer import ZeroRedundancyOptimizer, _ZeROJoinHook

from ..planting import defect, edit, swap


@defect("ZERO-020")
def consolidation_is_not_preceded_by_a_roll_call() -> None:
    """A consolidation trusts the last roll call, since which another rank may have run out."""
    edit("session.begin(self._zero)\n", "pass\n")


@defect("JOIN-024", worlds=(3,))
def a_step_that_failed_alone_is_passed_over() -> None:
    """The only rank with inputs goes on after a step that failed, in which the others stand."""
    edit("shadowed=True):\n            loss =", "shadowed=False):\n            loss =")


@defect("ZERO-020")
def joined_ranks_keep_parameters_in_their_order() -> None:
    """A joined rank does not follow where live ranks have moved parameters, and takes gradients for those of others."""
    edit("self._arrange(received.members)", "pass")


@defect("ZERO-020")
def parameters_in_the_place_of_others_are_let_pass() -> None:
    """Parameters that live ranks put in the places of others are stepped by joined ranks with the momentum of these."""
    edit("set(self._shard.parameters()) != set(self._known) or ", "")
    edit("number_of[parameter] for", "number_of.get(parameter, place) for place,", within="_members")
    edit("in group[\"params\"]] for", "in enumerate(group[\"params\"])] for", within="_members")


@defect("ZERO-023")
def hook_refuses_with_a_type_error() -> None:
    """The join hook refuses a foreign object with a TypeError."""
    edit("raise AssertionError(", "raise TypeError(", within="__init__")


@defect("ZERO-023")
def hook_takes_any_optimizer() -> None:
    """The join hook can be built around any optimizer, and fails later."""
    edit("if not isinstance(zero, ZeroRedundancyOptimizer):", "if not hasattr(zero, 'step'):")


@defect("ZERO-019", worlds=(3,))
def join_group_is_the_whole_world() -> None:
    """The optimizer names the default group as its join group."""
    swap(ZeroRedundancyOptimizer, "join_process_group", lambda self: dist.group.WORLD)


@defect("ZERO-020")
def joined_rank_consolidates_to_rank_0() -> None:
    """A joined rank sends its states to rank 0, wherever the live ranks want them."""
    edit("    assert target is not None", "    target = 0 if to is None else target\n    assert target is not None")


@defect("ZERO-020")
def joined_ranks_save_in_their_order() -> None:
    """A joined rank tells its states by the places of before, though live ranks have moved the parameters."""
    edit("    self._arrange(members)\n", "    pass\n", within="Joining.consolidate")


@defect("ZERO-020")
def joined_rank_looks_for_gradients_in_groups_of_before() -> None:
    """A joined rank looks at what others own before it knows of what was taken out of groups before the block."""
    edit("sparse_gradients(self._shard.owned_by(*absent)) if team.rank == session.source else {}",
         "sparse_gradients(self._shard.owned_by(*absent))")  # fmt: skip


@defect("ZERO-022")
def groups_are_those_of_before_the_closure() -> None:
    """A step goes on with the parameters that groups had before its closure was evaluated."""
    edit("self.look_at_parameters()", "pass", within="_heard")


@defect("ZERO-020")
def joined_rank_keeps_what_live_ones_have_dropped() -> None:
    """A setting that live ranks take out of a group in a context stays on ranks that have joined."""
    edit("_drop_others(source, target)", "pass", within="take_settings")


@defect("ZERO-020")
def settings_of_closures_count_as_the_optimizers_own() -> None:
    """What a closure has set is told by the owners of a group as if the local optimizer had counted it."""
    edit("first.update(*noted([changed]))", "pass", within="_heard")


@defect("ZERO-020")
def joined_rank_does_not_hear_of_thawed_parameters() -> None:
    """A joined rank does not learn that live ranks train a parameter that was frozen."""
    edit("self._also_send(sent)", "pass")


@defect("ZERO-020")
def joined_rank_does_not_receive() -> None:
    """A joined rank sends its own shard, but takes nothing over from the others."""
    edit(
        "    self._publisher.publish()\n",
        "    mine = {id(parameter) for parameter in self._shard.owned_by(self._shard.team.rank)}\n"
        "    others = [parameter for parameter in self._shard.parameters() if id(parameter) not in mine]\n"
        "    before = [parameter.detach().clone() for parameter in others]\n"
        "    self._publisher.publish()\n"
        "    for parameter, value in zip(others, before, strict=True):\n"
        "        parameter.detach().copy_(value)\n",
        within="shadow_step",
    )


@defect("JOIN-024", worlds=(3,))
def a_setting_that_cannot_be_sent_breaks_nothing_off() -> None:
    """The last rank with inputs goes on behind a step in which its peers wait for settings that cannot be pickled."""
    caught = "    except BaseException as error:\n"
    edit(caught, f"{caught}        if isinstance(error, TypeError):\n            raise\n", within="_noting_failure")


@defect("ZERO-020", "ZERO-022")
def joined_rank_does_not_step() -> None:
    """A joined rank sends its shard as it is, without stepping it."""
    edit("        self._shard.step(closure, **arguments)\n", "        pass\n", within="shadow_step")


@defect("ZERO-022", worlds=(3,))
def joined_rank_keeps_its_learning_rate() -> None:
    """A joined rank steps with the settings that it had when it ran out of inputs."""
    edit(
        "self._shard.take_settings(received.settings, received.sent, received.to_follow)",
        "self._shard._also_send(received.sent)",
        within="shadow_step",
    )


@defect("ZERO-020", "ZERO-022")
def joined_rank_steps_with_its_old_gradients() -> None:
    """A joined rank steps its shard with the gradients of its own last iteration."""
    edit("with shown_gradients(gradients):", "with shown_gradients([]):")


@defect("ZERO-022")
def keywords_beside_a_closure_are_lost_in_a_context() -> None:
    """Inside a context a step with a closure drops its keywords."""
    edit("self._shard.step(closure=evaluate, **arguments)", "self._shard.step(closure=evaluate)")


@defect("ZERO-022", worlds=(3,))
def keywords_do_not_reach_joined_ranks() -> None:
    """Further keywords of the live ranks' step() do not reach the shards of ranks that have joined."""
    edit("self._shard.step(closure, **arguments)", "self._shard.step(closure)", within="shadow_step")


@defect("ZERO-019", "ZERO-021")
def keywords_of_others_are_refused() -> None:
    """join_hook takes no keywords, so those meant for DDP are an error."""
    edit("self, **kwargs: Any", "self", within="ZeroRedundancyOptimizer.join_hook")


@defect("ZERO-019")
def main_hook_does_not_send() -> None:
    """The join hook's main hook steps the shard without sending it."""
    edit("self.zero.step()", "self.zero.shard.step()")


@defect("ZERO-019")
def post_hook_steps() -> None:
    """The join hook's post hook sends the parameters once more."""
    swap(
        JoinHook, "post_hook",
        lambda self, is_last_joiner: self.zero._sync_params() if isinstance(self, _ZeROJoinHook) else None,
    )


@defect("ZERO-022")
def sparse_gradients_travel_with_new_settings_only() -> None:
    """Sparse gradients reach joined ranks only where settings have changed."""
    edit(" or bool(sparse)", "")


@defect("ZERO-020")
def step_does_not_begin() -> None:
    """A step does not say that an iteration begins, because a model may have."""
    edit("session.begin(zero, HOOKS)", "session.announce(zero, HOOKS)")


@defect("ZERO-021")
def hooks_before_a_step_are_told_of_by_those_that_have_them() -> None:
    """A rank tells of the hooks before a step if it has any, while others do not."""
    edit("if session is not None and zero.overlap is None", "if session and zero._optimizer_step_pre_hooks")


@defect("ZERO-022")
def step_with_a_closure_is_not_announced() -> None:
    """In a join context ranks that have joined do not hear of a step that was given a closure."""
    edit("        session.announce(zero, STEP)\n    absent", "    absent")


@defect("ZERO-020")
def tensors_of_joined_ranks_are_replaced() -> None:
    """A joined rank puts the received learning rate in the place of the tensor that its user holds."""
    edit(
        "                with torch.no_grad():\n                    held.copy_(value)",
        "                target[key] = value",
    )


@defect("ZERO-022", worlds=(3,))
def notes_of_a_failed_context_are_found_by_the_next() -> None:
    """All contexts of a group share one key for failures: an error that ended one is found by the next."""
    edit("last + 1)", "max(last, 1))", within="GroupRecord.next_session_key")


@defect("ZERO-020", worlds=(3,))
def joined_rank_adds_up_keywords() -> None:
    """On a joined rank a keyword of one step holds for all that follow, until a step has another value for it."""
    edit(
        "self._shard.step(closure, **arguments)",
        "self._arguments = {**getattr(self, '_arguments', {}), **arguments}\n"
        "        self._shard.step(closure, **self._arguments)", within="shadow_step",
    )  # fmt: skip


@defect("ZERO-020")
def second_act_of_an_iteration_calls_no_roll() -> None:
    """An optimizer that begins again trusts the last roll call, as long as nobody was known to be absent by then."""
    edit("or place in self._begun:", "or (place in self._begun and self._absence):")


@defect("DDPJ-010")
def joined_owners_lose_gradients_of_what_nobody_uses() -> None:
    """A joined owner gives up its own gradient of a parameter for which the live ranks have none."""
    edit(
        "for (parameter, _), gradient in zip(pairs, before, strict=True):",
        "for (parameter, _), gradient in [each for each in zip(pairs, before, strict=True) if each[0][1] is not None]:",
        within="shown_gradients",
    )


@defect("JOIN-024", worlds=(3,))
def who_catches_a_failed_step_goes_on() -> None:
    """A rank whose step has failed and was caught inside the block goes on, while its peers send what they own."""
    edit("return self.zero._joining.broken", "return None")


@defect("ZERO-020")
def what_live_ranks_cast_is_sent_to_joined_ones() -> None:
    """Parameters that live ranks have cast or reshaped are sent to ranks that have joined, whose own are as before."""
    edit(" or forms_of(self._known) != self._forms", "")


@defect("ZERO-022")
def what_is_listed_first_only_announces() -> None:
    """An optimizer that is listed before its model calls the roll only if its first step comes before all else."""
    edit("if place <= min(self._leaders)}", "if place < 0}")


@defect("JOIN-025")
def counts_reach_the_sign() -> None:
    """The counts of a message take up the sign of its numbers, too, where a context lists several joinables."""
    edit("if used + width > _BITS:", "if used + width > _BITS + 2:")


@defect("ZERO-020")
def hooks_of_joined_ranks_consolidate_as_live_ones() -> None:
    """A hook that consolidates, called on a rank that has run out, announces this as a live rank does."""
    edit("elif session.shadowing:", "elif False:")


@defect("ZERO-020")
def hooks_of_joined_ranks_consolidate_later() -> None:
    """A hook that consolidates, called on a rank that has run out, returns without the state, which comes after it."""
    edit("session.follow_to(self, CONSOLIDATE)", "self.shard.consolidated = None")


@defect("DDP-049")
def gradients_for_joined_ranks_lie_row_by_row() -> None:
    """A joined rank is given gradients that do not lie as their parameters do: a fused optimizer mixes elements up."""
    edit("laid_out_like(view, model)", "view")


@defect("ZERO-022")
def joined_ranks_give_a_closure_to_whoever_takes_one() -> None:
    """An optimizer that steps otherwise with a closure gets one on ranks that have joined, whatever live ones give."""
    edit(" if received.loss else None", " if received.loss else (lambda: 1.0)")


@defect("DDPJ-014", worlds=(3,))
def steps_by_hand_are_told_in_overlap_mode_too() -> None:
    """In overlap mode, where step() does nothing, a rank that calls it says so, and the others have not called it."""
    edit("if session is not None and zero.overlap is None:", "if session is not None:")
