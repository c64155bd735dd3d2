"""Defects of area join: normal (non-throwing) operation."""

from __future__ import annotations

from impl.join.channel import ControlChannel
from impl.join.context import Join

from ..planting import defect, edit, swap


@defect("JOIN-031", "JOIN-045")
def count_is_a_maximum() -> None:
    """The handshake takes the maximum instead of the sum: anybody is active, but not how many."""
    edit(
        "collectives.all_reduce(team, number, label)",
        "collectives.all_reduce(team, number, label, torch.distributed.ReduceOp.MAX)",
    )


@defect("JOIN-031", "JOIN-055")
def count_lacks_this_rank() -> None:
    """The number that a notification yields counts the other active ranks only."""
    edit("[number(pending.buffer)]", "[number(pending.buffer) - 1]")


@defect("JOIN-040")
def crossing_ranks_are_not_noticed() -> None:
    """A message in which live ranks begin different iterations is read as if they began the first of them."""
    edit(" or any(slot not in (0, active) for slot in slots)", "")


@defect("JOIN-022")
def disabled_runs_post_hooks() -> None:
    """A disabled context runs the post hooks all the same."""
    edit(
        "            self._leave(self._session, error)\n",
        "            self._leave(self._session, error)\n"
        "        elif error is None:\n"
        "            for hook in self._join_hooks:\n"
        "                hook.post_hook(True)\n",
    )


@defect("JOIN-021")
def entering_binds_the_context() -> None:
    """Entering gives the context itself to the as target."""

    def enter(self: Join) -> Join:
        right(self)
        return self

    right = swap(Join, "__enter__", enter)


@defect("JOIN-021")
def entering_meets() -> None:
    """Entering waits until all ranks have entered."""
    edit(
        "    self._failures.begin()\n",
        "    self._failures.begin()\n    torch.distributed.all_reduce(torch.zeros(1), group=self.team.group)\n",
        within="BaseSession.enter",
    )


@defect("JOIN-023")
def error_of_the_body_is_swallowed() -> None:
    """Leaving the context suppresses what the body has raised."""

    def leave(self: Join, kind: object, error: BaseException | None, trace: object) -> bool:
        right(self, kind, error, trace)
        return isinstance(error, Exception)

    right = swap(Join, "__exit__", leave)


@defect("JOIN-023")
def an_error_has_to_take_notes() -> None:
    """An error that takes no attributes comes out as another one, which says so."""
    edit("    with suppress(Exception):\n        error.add_note(text)\n", "    error.add_note(text)\n")


@defect("JOIN-023")
def error_of_the_body_is_wrapped() -> None:
    """What the body raises comes out wrapped in a RuntimeError."""
    edit(
        "    self._failed = True\n",
        "    self._failed = True\n"
        "    if not isinstance(error, SharedError):\n"
        '        raise RuntimeError("the training loop has failed") from error\n',
        within="SessionFailures.report",
    )


@defect("JOIN-023")
def error_without_words_is_replaced() -> None:
    """An error of the body that has no text comes out as the error about its text."""
    edit("except Exception as second:", "except ZeroDivisionError as second:")


@defect("JOIN-030")
def everybody_came_last() -> None:
    """Every rank is told that it came last."""
    edit("return shadowed == 0", "return True")


@defect("JOIN-024")
def failed_backward_is_forgotten() -> None:
    """A rank goes on after a backward that failed and was caught inside the block."""
    edit("self.iteration.broken is None and reducer.raised", "False")


@defect("JOIN-024")
def failed_forward_is_forgotten() -> None:
    """A rank goes on after a forward that failed and was caught inside the block."""
    edit('self.iteration.break_off("forward", error, shadowed=False)', "pass")


@defect("JOIN-054", "DDPJ-038", worlds=(2,))
def a_backward_on_another_thread_is_taken_for_a_failed_one() -> None:
    """Who evaluates while a backward runs on another thread is told that this backward has raised."""
    edit(
        "self.iteration.broken is None and reducer.raised",
        "self.iteration.broken is None and reducer._armed is not None and torch._C._current_graph_task_id() < 0",
    )


@defect("JOIN-054")
def forwards_that_fail_on_all_ranks_are_refused() -> None:
    """A rank whose forward has failed goes on nowhere, not even where all others have failed alike."""
    edit(" or self._left_open_by_all(place)", "")


@defect("JOIN-054")
def only_the_first_forward_that_fails_on_all_ranks_is_left_out() -> None:
    """Where all have failed alike once, nobody asks about the next one."""
    edit("if all_alike and self._followers[place].broken_off() is None:", "if all_alike:")


@defect("JOIN-024")
def backward_left_out_is_told_to_nobody() -> None:
    """A rank goes on after a forward whose backward it has left out, though the others reduce it."""
    edit("left_open is None or not self._followers[place].left_open()", "True")


@defect("JOIN-024")
def backward_left_out_on_one_rank_is_taken_for_everybodys() -> None:
    """A rank that has left out a backward waits for nobody."""
    edit("for rank in active]", "for rank in active[:0]]", within="LeftOpen.agree")


@defect("JOIN-024")
def backward_left_out_is_not_looked_for() -> None:
    """Who waits in a reduction does not look whether another rank has left it out."""
    edit("if who is not None:", "if False:", within="Session.watch")


@defect("JOIN-024")
def failed_last_batch_is_forgotten() -> None:
    """A rank leaves the block as if its last batch had not failed."""
    edit("self.refuse_to_go_on()", "pass", within="shadow")


@defect("JOIN-024", "JOIN-039")
def failure_is_kept_silent() -> None:
    """A rank that leaves by an error tells nobody, so its peers wait until their time is up."""
    edit("self._notes.leave(error)", "pass", within="SessionFailures.report")


@defect("JOIN-031", "JOIN-048")
def first_returns_nothing() -> None:
    """The first joinable's notification is waited for inside, and returns nothing."""
    edit("    return handle\n", "    handle.wait()\n    return None\n", within="PlainSession.notify")


@defect("JOIN-025", "JOIN-032")
def first_shadow_is_skipped() -> None:
    """A joined rank runs no main hook for the iteration in which it finds that others go on."""
    edit("for hook in self._hooks:", "for hook in self._hooks if shadowed else ():", within="PlainSession.shadow")


@defect("JOIN-031")
def followed_handle_holds_the_whole_message() -> None:
    """Beside a model, the handle of a notification holds the context's message instead of the number of active
    ranks."""
    swap(ControlChannel, "reader_of_active", lambda _: lambda sums: sums[:1])


@defect("JOIN-030")
def followed_last_joiner_mixed_up() -> None:
    """With DDP among the joinables, ranks that shadowed say that they came last."""
    edit("return self._state is SessionState.LIVE", "return self.shadowing", within="join.session.Session.shadow")


@defect("JOIN-031")
def future_of_a_handle_holds_no_list() -> None:
    """The future of a handle holds the bare number, where those of collectives hold a list."""
    edit("return [number(pending.buffer)]", "return number(pending.buffer)")


@defect("JOIN-024")
def futures_are_waited_for_without_looking() -> None:
    """A rank that waits for a reduction of an overlapped step does not look out for failed peers."""
    edit("    poll_on_host(future.done, watch, place, team, on_peers=team.tally.hooks_communicate)\n", "")


@defect("JOIN-031")
def handle_has_no_result() -> None:
    """The handle of a notification holds its number in the future only."""
    edit("[self._number(self._pending.buffer)]", "[]")


@defect("JOIN-023")
def interrupt_taken_for_the_end() -> None:
    """Only an Exception counts as an error: after a KeyboardInterrupt the rank shadows as if it had run out of
    inputs."""
    edit(
        "        if error is None:\n            self._shadow_and_finish(session)",
        "        if not isinstance(error, Exception):\n            self._shadow_and_finish(session)",
    )


@defect("JOIN-035")
def iterations_of_several_models_are_added_up() -> None:
    """The skew that is warned of is the sum over all models of the context."""
    edit("max(self._shadowed.values())", "sum(self._shadowed.values())")


@defect("JOIN-024")
def last_broadcasts_wait_without_looking() -> None:
    """A rank that waits for the parameters of an overlapped step looks out for lost peers only."""
    edit("publication.finish(watch)", "publication.finish(self._shard.team.guard)", within="_receive")


@defect("JOIN-026", "JOIN-030")
def last_joiner_and_first_mixed_up() -> None:
    """The ranks that joined early are told that they came last, and the others that they did not."""
    edit("return shadowed == 0", "return shadowed > 0")


@defect("JOIN-024", worlds=(3,))
def live_ranks_wait_for_parameters_without_looking() -> None:
    """A rank that waits for the owners of a sharded step looks out for lost peers only."""
    edit("pending.wait(watch)", "pending.wait(watch or self.team.guard)", within="Transfer.finish")


@defect("DDP-049", worlds=(3,))
def late_failures_count_as_ends() -> None:
    """A collective that fails late in a slice of its wait is taken to have ended well."""
    edit("self._end(watch)", "pass", within="_wait_in_slices")


@defect("JOIN-057")
def lost_connections_are_told_as_causes() -> None:
    """Where a rank has died, the one after it is named, which has but lost its connection."""
    edit("self._name_of[loss.rank]", "self._name_of[(loss.rank + 1) % len(self._name_of)]")


@defect("JOIN-025", "JOIN-027", "JOIN-034")
def main_hook_of_the_first_only() -> None:
    """Only the first joinable's main hook runs on a joined rank, as if only it communicated."""
    edit("for hook in self._hooks:", "for hook in self._hooks[:1]:", within="PlainSession.shadow")


@defect("JOIN-027", "JOIN-034")
def main_hooks_in_reverse() -> None:
    """The main hooks of an iteration run in the reverse of the list's order."""
    edit("for hook in self._hooks:", "for hook in reversed(self._hooks):", within="PlainSession.shadow")


@defect("JOIN-035")
def messages_are_counted_as_iterations() -> None:
    """A message that tells of several iterations of a lonely rank counts as one."""
    edit("+= reading.iterations", "+= 1")


@defect("JOIN-034", "JOIN-052", worlds=(3,))
def notification_goes_to_everybody() -> None:
    """The handshake goes over the default group instead of the joinable's own."""
    edit("all_reduce(team, ", "all_reduce(Team.of(), ", within="_count")


@defect("JOIN-026", "JOIN-030")
def one_of_the_tied_came_last() -> None:
    """Of the ranks that came last nobody but the highest of the group is told so."""
    edit("return shadowed == 0", "return shadowed == 0 and self.team.rank == self.team.size - 1")


@defect("JOIN-030")
def one_short_counts_as_last() -> None:
    """A rank that came one iteration short is told that it came last too."""
    edit("return shadowed == 0", "return shadowed <= 1")


@defect("JOIN-034")
def plain_joinable_beside_ddp_is_not_shadowed() -> None:
    """Beside DDP the main hook of a user's own joinable is never run."""
    edit("self._hooks[act.joinable].main_hook()", "pass", within="_follow")


@defect("JOIN-027", "JOIN-029")
def post_hooks_do_not_wait() -> None:
    """A rank runs its post hooks when it has run out of inputs itself, before the others have."""
    edit(
        "        is_last_joiner = session.shadow()\n        session.end()\n"
        "        for hook in self._join_hooks:\n            hook.post_hook(is_last_joiner)\n",
        "        for hook in self._join_hooks:\n            hook.post_hook(False)\n"
        "        session.shadow()\n        session.end()\n",
    )


@defect("JOIN-028")
def post_hooks_in_reverse() -> None:
    """The post hooks run in the reverse of the list's order."""
    edit("in self._join_hooks:", "in reversed(self._join_hooks):")


@defect("JOIN-028", "JOIN-030")
def post_hooks_of_last_joiners_only() -> None:
    """Only the last joiners run their post hooks."""
    edit("in self._join_hooks:", "in self._join_hooks if is_last_joiner else ():")


@defect("JOIN-023", "JOIN-043")
def post_hooks_run_after_an_error() -> None:
    """The post hooks run even when the body has raised."""
    edit(
        "            session.report(error)\n    finally",
        "            session.report(error)\n"
        "            for hook in self._join_hooks:\n"
        "                hook.post_hook(False)\n    finally",
    )


@defect("JOIN-028")
def post_hooks_run_twice() -> None:
    """A rank that shadowed runs its post hooks at the end of its shadowing and again when everybody has joined."""
    edit(
        "    for hook in self._join_hooks:\n",
        "    for hook in [*self._join_hooks, *([] if is_last_joiner else self._join_hooks)]:\n",
    )


@defect("JOIN-032", "JOIN-046")
def ranks_without_inputs_do_not_shadow() -> None:
    """A rank whose loop never ran leaves at once, without shadowing anybody."""
    edit("    return handle\n", "    self._ran = True\n    return handle\n", within="PlainSession.notify")
    leaves = "    if not hasattr(self, '_ran'):\n        return False\n"
    edit("    shadowed = 0\n", f"{leaves}    shadowed = 0\n", within="PlainSession.shadow")


@defect("JOIN-025", "JOIN-026")
def shadows_once_too_often() -> None:
    """A rank runs its main hooks once more after everybody has joined."""
    edit(
        "    return shadowed == 0\n",
        "    for hook in self._hooks:\n        hook.main_hook()\n    return shadowed == 0\n",
    )


@defect("JOIN-035", "JOIN-036")
def skew_is_not_warned_of() -> None:
    """Nobody is warned of a large skew in a context of plain joinables."""
    edit("self._warn_of_skew(shadowed)", "pass")


@defect("JOIN-036")
def skew_is_warned_of_every_time() -> None:
    """The warning of a skew comes in every iteration above the threshold."""
    edit("    self._warned_of_skew = True\n", "")


@defect("JOIN-035")
def skew_warning_is_of_another_kind() -> None:
    """The skew is reported as a RuntimeWarning."""
    edit("UserWarning", "RuntimeWarning", within="_warn_of_skew")


@defect("JOIN-038")
def stays_bound() -> None:
    """Leaving a context does not take its bindings off: the joinables go on notifying."""
    edit("    joinable._join_config = _JoinConfig.construct_disabled_join_config()\n", "")


@defect("JOIN-038")
def stays_bound_after_an_error() -> None:
    """A context that an error has ended leaves its joinables bound."""
    edit(
        "        self._end()\n",
        "        if error is None:\n            self._end()\n"
        "        self._state = BlockState.LEFT\n",
        within="__exit__",
    )


@defect("JOIN-035")
def warned_at_a_thousand() -> None:
    """A skew of exactly a thousand iterations is warned of already."""
    edit("shadowed <= SKEW", "shadowed < SKEW")


@defect("JOIN-037")
def warning_filter_stays() -> None:
    """Leaving a context sets a filter for warnings, for the whole process and for good."""
    end = "    self._move(SessionState.ENDING)"
    edit(end, f'    warnings.simplefilter("once")\n{end}')


@defect("JOIN-024", worlds=(3,))
def who_is_not_in_an_inner_context_hears_nothing() -> None:
    """An error that all ranks of an inner context share is not told to the other ranks of the outer one."""
    edit(" and error.shared_in is self._mark", "")


@defect("JOIN-033", "ZERO-021")
def zero_is_not_shadowed() -> None:
    """In a context of DDP and ZeRO only DDP is shadowed: joined ranks do not publish their shard."""
    edit(
        "if act.joinable in self._followers:",
        "if act.joinable > 0:\n        return\n    if act.joinable in self._followers:",
        within="_follow",
    )


@defect("JOIN-055")
def post_hooks_notify() -> None:
    """In a context of plain joinables a notification in a post hook starts a count that nobody else takes part in."""
    edit("if self._state is not SessionState.LIVE or", "if self.shadowing or", within="PlainSession.notify")


@defect("JOIN-055")
def post_hooks_leave_out_who_ran_out_early() -> None:
    """In a post hook a communication hook over a group of its own counts only the ranks that came last."""
    edit("self.ranks, self.active = self._everyone, len(self._everyone)", "self.active = len(self._everyone)")


@defect("JOIN-039")
def only_exceptions_of_hooks_are_told() -> None:
    """A rank that fails in a hook by what is no Exception, such as KeyboardInterrupt, tells nobody."""
    edit("except BaseException as failure:", "except Exception as failure:", within="_shadow_and_finish")


@defect("JOIN-054")
def who_begins_again_calls_no_roll() -> None:
    """An optimizer that steps again with no forward between does not see who has run out since its last step."""
    edit("if place in self._callers or place in self._begun:", "if place in self._callers:")


@defect("JOIN-024", worlds=(1,))
def who_has_no_peers_may_not_go_on() -> None:
    """A rank that is alone in its group is refused after an error that it has caught."""
    edit("if self._state is not SessionState.LIVE or self.team.size == 1:", "if self._state is not SessionState.LIVE:")


@defect("JOIN-023")
def every_group_has_the_default_store() -> None:
    """A failure on a group that torch.distributed was never told of is written to a store of others."""
    edit("if not global_ranks_of(group):", "if False:", within="shared_by")


@defect("JOIN-025")
def main_hooks_run_at_every_notification_beside_a_model() -> None:
    """Beside a model a main hook runs as often as its joinable notifies, and not once in an iteration."""
    edit("elif not first and place in self._notified:", "elif False:")


@defect("JOIN-025")
def who_never_notifies_beside_a_model_is_not_counted_for() -> None:
    """Beside a model the main hook of a joinable that never notifies does not run at all."""
    edit("self._run_unannounced()", "pass", within="Session.shadow")


@defect("JOIN-025")
def hooks_around_those_of_models_are_passed_by() -> None:
    """A join hook of the user's around that of a model is not called in the iterations that a rank lacks."""
    edit("self._run_main_hooks()", "pass")


@defect("ZERO-022")
def hooks_around_those_of_optimizers_go_with_the_last_model() -> None:
    """The hook around an optimizer's runs as often as the last model begins iterations, and not the first."""
    edit("else min(self._leaders)]", "else max(self._leaders)]", within="_run_main_hooks")


@defect("DDPJ-038")
def an_evaluation_begins_no_iteration() -> None:
    """A joinable beside a model notifies after each evaluation, and is heard after the first alone."""
    edit("self._notified.clear()", "pass", within="forward_begins")
