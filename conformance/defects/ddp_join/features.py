"""Defects of area ddp_join: interplay with other ddp features."""

from __future__ import annotations

from impl.ddp.delayed import DelayedReduction
from impl.ddp.reduction import BucketQueue

from ..planting import defect, edit, swap


@defect("DDPJ-029")
def all_ranks_must_synchronise() -> None:
    """Joined ranks reduce only if every rank announces that it synchronises."""
    edit('"any backward to synchronise")', '"any backward to synchronise", dist.ReduceOp.MIN)')


@defect("DDPJ-028")
def buffers_are_synchronised_after_no_sync() -> None:
    """The forward after one under no_sync synchronises the buffers, although nothing was reduced in between."""
    edit("self.allowed = self._iteration.wants_reductions", "self.allowed = True")


@defect("DDPJ-039")
def delayed_gradients_always_divided_by_all() -> None:
    """Delayed gradients are divided by the number of all ranks where the active ones were asked for."""
    edit(
        "    self._queue.deliver(frozen)\n",
        "    size = self._queue.iteration.team.size\n"
        "    self._queue._transport.result = lambda bucket, flight, watch: (flight.wait(watch), size)\n"
        "    self._queue.deliver(frozen)\n",
    )


@defect("DDPJ-039")
def delayed_parameters_are_not_shadowed() -> None:
    """The reduction of delayed parameters has no shadow."""
    swap(DelayedReduction, "shadow", lambda self: None)


@defect("DDPJ-039")
def delayed_parameters_stay_behind() -> None:
    """Delayed parameters are left out when a context ends."""
    edit("final = [*self._module_parameters, *self._delayed_parameters]", "final = self._module_parameters")


@defect("DDPJ-033")
def hook_is_not_called_on_joined_ranks() -> None:
    """A joined rank sums its zeros without calling the registered communication hook."""
    def shadow_next(self: BucketQueue) -> bool:
        transport = self._transport
        hook, transport.hook = transport.hook, None
        try:
            return right(self)
        finally:
            transport.hook = hook

    right = swap(BucketQueue, "shadow_next", shadow_next)


@defect("DDPJ-014", "DDPJ-033")
def hooks_of_joined_ranks_find_old_gradients() -> None:
    """The gradients that a hook on a joined rank is shown are not those of the bucket of zeros."""
    edit("self.views if contribution is self.flat else self.views_of(contribution)", "self.views")


@defect("DDPJ-031")
def joined_rank_does_not_rebuild() -> None:
    """A joined rank takes part in the agreement on the order of buckets, but keeps its old buckets."""
    edit(
        "    self.rebuild(",
        "    if self.iteration.session is not None and self.iteration.session.shadowing:\n        return\n"
        "    self.rebuild(",
    )


@defect("DDPJ-030")
def joined_rank_reports_its_last_use() -> None:
    """A joined rank reports the parameters that it used in its own last iteration."""
    edit("tells and self.here(index)", "self.here(index)")


@defect("DDPJ-030")
def joined_rank_reports_use() -> None:
    """A joined rank reports all parameters as used, so nobody's unused ones keep what they had."""
    edit("tells and self.here(index)", "not live or self.here(index)")


@defect("DDPJ-029")
def joined_rank_says_that_it_synchronises() -> None:
    """A joined rank's own setting counts in the announcement whether anybody synchronises."""
    edit("wanted = not is_joined_rank and self", "wanted = is_joined_rank or self")


@defect("DDPJ-033")
def joined_ranks_hook_sees_no_last_bucket() -> None:
    """On a joined rank the communication hook is never told that a bucket is the last one."""
    edit("last=last, alone=False)", "last=False, alone=False)")


@defect("DDPJ-034")
def last_forward_of_the_context_decides_about_buffers() -> None:
    """After a context each rank goes by its own last forward when it decides whether buffers are synchronised."""
    edit("self.allowed, self.due_after_evaluation = True, False", "pass")


@defect("DDPJ-029")
def live_ranks_use_the_announcement() -> None:
    """Live ranks too wait for the announcement, and get its result."""
    edit(".item()) if is_joined_rank else None", ".item())")


@defect("DDPJ-031", "DDPJ-034")
def shadowed_reductions_are_not_counted() -> None:
    """A joined rank does not count the reductions that it has shadowed, so later it disagrees about the rebuild."""
    edit("self._note_reduction(self._results(live=False))", "self._results(live=False)")


@defect("DDPJ-032")
def static_agreement_is_not_remembered() -> None:
    """A joined rank forgets the one agreement of a static graph on what nobody uses, and waits for another."""
    edit("self._note_reduction(self._results(live=False))", "self._results(live=False), self._note_reduction(None)")


@defect("DDPJ-032")
def static_agreement_is_not_shadowed() -> None:
    """A joined rank shadows an agreement on use only where unused parameters are searched for."""
    edit("if self._facts.agreement_due else", "if self._facts.searched or (live and self._facts.agreement_due) else")


@defect("DDPJ-032")
def static_agreement_is_settled_by_those_present() -> None:
    """What a static graph never uses is settled by the first reduction, whoever was absent from it."""
    edit("_learned_by_all=agreement.learned_by_all", "_learned_by_all=True")


@defect("DDPJ-032")
def static_learning_is_each_ranks_own_affair() -> None:
    """Only the rank that still learns a static graph holds its buckets back; the others reduce them in another
    order."""
    edit("self.facts.holds_back", "self.usage.learning", within="_bucket_filled")


@defect("DDPJ-034")
def who_was_alone_stays_so() -> None:
    """A rank that was alone with its inputs in one context reduces alone, too, what it shadows in the next."""
    edit("last=last, alone=False)", "last=last, alone=self.alone)")


@defect("DDPJ-038")
def failed_evaluation_counts_in_training_mode() -> None:
    """An evaluation that fails, and is caught, in training mode counts as an iteration that was broken off."""
    edit(
        "(torch.is_grad_enabled() and self.iteration.wants_reductions) or",
        "((torch.is_grad_enabled() or self.iteration.training) and self.iteration.wants_reductions) or",
    )


@defect("DDPJ-026")
def buffer_hook_is_left_out_by_a_lone_rank() -> None:
    """The last rank with inputs does not call its buffer hook before a forward in training."""
    edit("session.alone and self.hook is None", "session.alone and (self.hook is None or self._iteration.training)")


@defect("DDPJ-034", worlds=(3,))
def reductions_of_a_lone_rank_are_counted() -> None:
    """What the last rank with inputs reduces by itself counts as collectives, which nobody else has started."""
    edit(
        "    return Pending(label, flat, None, team) if alone else",
        "    team.tally.started += int(alone)\n    return Pending(label, flat, None, team) if alone else",
    )


@defect("JOIN-024")
def lone_rank_forgets_buckets_that_others_shadow() -> None:
    """A rank whose peers have run out goes on after a backward that failed, although they shadow its buckets."""
    edit("if not broken.shadowed and (", "if not (broken.shadowed and self.everyone_active) and (")


@defect("JOIN-024")
def only_the_last_model_is_asked_for_its_backward() -> None:
    """At the end of the block nobody asks whether a model that began before another one has had its backward."""
    edit("_if_only_here_left_open(self._followers)", "_if_only_here_left_open(sorted(self._begun))", within="shadow")


@defect("JOIN-024")
def who_notifies_asks_nobody() -> None:
    """A rank whose loss has failed goes on to another joinable's collective, which meets its peers' reductions."""
    edit("self._refuse_if_only_here_left_open(self._followers)", "pass", within="notify")


@defect("JOIN-024")
def accumulated_batches_await_a_reduction() -> None:
    """A forward under no_sync counts as one whose backward is to be reduced."""
    edit("awaits_backward = pending.sync", "awaits_backward = pending is not None")


@defect("JOIN-054")
def who_waits_for_a_message_answers_nobody() -> None:
    """A rank that has run out waits for an answer from ranks that wait for its own message."""
    edit("self._say_left_open(left_open, self._channel.posted)", "pass")


@defect("JOIN-054")
def of_several_backwards_one_is_answered_for() -> None:
    """Two ranks that have left out the backwards of two models each wait for the other's word about another one."""
    edit("self._say_left_open(left_open, message)", "left_open.say(place, self._iterations[place], message)")


@defect("JOIN-054")
def an_answer_may_be_taken_back() -> None:
    """A rank that waits for the others' word says meanwhile that it has come less far."""
    edit("if message > self._said[place, iteration]:", "if True:")


@defect("JOIN-054", worlds=(3,))
def joined_ranks_must_leave_out_backwards_too() -> None:
    """Where live ranks leave out a backward, they wait until ranks without inputs say that they do."""
    edit("ranks, message = self._membership.ranks,", "ranks, message = self.team.members,")


@defect("JOIN-040", worlds=(3,))
def acts_are_not_compared() -> None:
    """The live ranks' messages are compared only in whose iteration begins, not in what follows."""
    edit(
        "any(slot not in (0, active) for slot in slots)",
        "any(slot not in (0, active) for slot, _ in zip(slots, self.names, strict=False))",
    )


@defect("DDPJ-012")
def absent_divide_setting_is_that_of_before() -> None:
    """A context without the divide keyword divides as the one before it did."""
    edit("kwargs.get(name, True)", 'kwargs.get(name, getattr(self, "_divide_by_initial_world_size", True))')


@defect("DDPJ-039")
def who_has_no_inputs_shadows_delayed_gradients_of_the_former_dtype() -> None:
    """A rank that has made no forward since the model was cast shadows the delayed reduction as it was before."""
    edit("    self._follow_changes()\n", "", within="DelayedReduction.shadow")


@defect("DDPJ-039")
def shadowing_overwrites_delayed_gradients() -> None:
    """A joined rank's delayed gradients become those that the others average."""
    edit(
        "while self._queue.shadow_next():",
        "for bucket in self._queue.buckets:\n        bucket.flat.zero_()\n    while self._queue.shadow_next():",
    )


@defect("DDP-034")
def a_cast_that_all_ranks_have_made_is_refused_later() -> None:
    """A model that was cast while all ranks had inputs is refused where one of them has run out."""
    edit("    self.recast = False\n", "", within="_refuse_recast")


@defect("DDP-034")
def a_move_hides_a_cast_inside_the_block() -> None:
    """A cast that joined ranks cannot follow is not refused where the model is moved, or cast to the same, after it."""
    edit("self.iteration.recast |= specs", "self.iteration.recast = specs")


@defect("DDP-034")
def a_model_that_stays_as_it_is_counts_as_cast() -> None:
    """Moving a model to where it is already counts as a change of its parameters."""
    edit("self.iteration.recast |= specs != self.specs", "self.iteration.recast |= specs == self.specs")


@defect("DDPJ-009")
def a_lowered_model_that_stays_as_it_is_counts_as_cast() -> None:
    """Moving a model of mixed precision to where it is already counts as a change of its parameters."""
    edit(
        "self.iteration.recast |= specs != self.specs",
        "self.iteration.recast |= respecified(self.specs, self.parameters) != self.specs",
    )


@defect("DDPJ-009")
def what_no_bucket_holds_is_cast_unseen() -> None:
    """A frozen or delayed layer that is cast where joined ranks cannot follow is not refused."""
    edit("self.iteration.recast |= dtypes != self._dtypes", "pass")


@defect("DDPJ-009")
def what_was_cast_before_a_block_counts_in_it() -> None:
    """A frozen or delayed layer that was cast before a block counts as cast inside it."""
    edit("    self.notice_casts()\n", "", within="UnevenInputs.enter")


@defect("JOIN-024")
def a_backward_that_failed_in_a_block_is_tried_again() -> None:
    """A rank whose backward has failed in a block reduces again what its peers have reduced."""
    edit("self.iteration.session.refuse_to_go_on()", "pass", within="Reducer.begin")


@defect("DDPJ-028", "ZERO-022", worlds=(3,))
def a_local_forward_that_fails_breaks_off() -> None:
    """A forward under no_sync that fails, and is caught, counts as an iteration that was broken off."""
    edit("is_grad_enabled() and self.iteration.wants_reductions", "is_grad_enabled()", within="note_failed_forward")


@defect("DDPJ-009")
def thawing_after_a_rank_has_run_out_goes_unnoticed() -> None:
    """A parameter that is thawed once a rank has run out changes the buckets, and nobody says so."""
    edit("self.iteration.recast = True", "pass", within="_take_in_thawed")


@defect("DDPJ-035")
def last_forwards_count_after_the_block() -> None:
    """After the block each rank goes on from its own last forward, which may have been under no_sync."""
    edit("    buffers.begin_anew()\n", "", within="sync_final_model")


@defect("DDPJ-009")
def what_was_thawed_is_noticed_by_forwards_alone() -> None:
    """A rank that enters a context with a model of which a part was thawed, and makes no forward, does not know it."""
    edit("self._reducer.notice_changes()", "self._reducer.watch_anew()", within="UnevenInputs.enter")


@defect("DDPJ-031")
def buckets_follow_the_order_of_the_first_rank() -> None:
    """In a context, too, the order of the buckets is the first rank's, which may have had no inputs."""
    edit("source = self.iteration.source()", "source = 0", within="Reducer.replan")
