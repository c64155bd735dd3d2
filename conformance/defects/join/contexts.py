"""Defects of area join: contexts in an unusual order, groups out of step, and who says what when one throws."""

from __future__ import annotations

from ..planting import defect, edit


@defect("JOIN-038")
def left_in_the_order_of_entering_it_comes_back() -> None:
    """A context that is left before the one inside it comes back on its joinables when that one is left."""
    edit("if each is not self)", "if each is not self or each is not joinable._join_bindings[-1])")


@defect("JOIN-038")
def inner_context_is_taken_off_with_the_outer_one() -> None:
    """Leaving a context disables its joinables though a context inside it is still open."""
    edit("if others and", "if others and joinable._join_session is self._session and", within="Binding.take_off")


@defect("JOIN-013")
def contexts_built_in_between_stay() -> None:
    """Entering a context does not put its session back where another one was built since."""
    edit("    self.put()\n", "    pass\n", within="Binding.open")


@defect("JOIN-015")
def who_names_no_group_counts_otherwise_in_an_inner_context() -> None:
    """In a context inside another a joinable that names no group counts otherwise than the ranks that shadow it."""
    edit("group = resolved(joinable.join_process_group)", "group = joinable.join_process_group", within="notify")


@defect("JOIN-041")
def exhausted_rank_speaks_as_its_peers_do() -> None:
    """A rank that has run out raises what its peers raise: that some rank, not which, has exhausted its inputs."""
    edit(
        'f"Rank {self._team.rank} exhausted all inputs. Other ranks still have some, and the join context was asked "',
        'f"Detected at least one rank that exhausted inputs. (Seen by rank {self._team.rank}; the context was asked "',
    )


@defect("JOIN-041")
def exhausted_rank_names_its_neighbour() -> None:
    """A rank that has run out names the rank after it as well."""
    edit(
        'f"Rank {self._team.rank} exhausted all inputs. Other',
        'f"Rank {self._team.rank} exhausted all inputs. Rank {(self._team.rank + 1) % self._team.size} exhausted or '
        'not: other',
    )


@defect("JOIN-024")
def the_last_rank_is_not_compared() -> None:
    """The comparison of the numbers of collectives leaves out the last rank."""
    edit("if len(set(by_rank)) > 1:", "if len(set(by_rank[:-1])) > 1:")


@defect("JOIN-039")
def hook_beside_a_model_fails_in_silence() -> None:
    """An error in a main hook beside a follower is not told to the peers."""
    edit(
        "        session.report(failure)\n",
        "        if not isinstance(session, Session):\n            session.report(failure)\n",
        within="_shadow_and_finish",
    )


@defect("JOIN-038")
def the_context_around_does_not_come_back() -> None:
    """Where a context inside another is left, its own flags stay on the joinables."""
    edit("        others[-1].put()\n", "        pass\n", within="Binding.take_off")


@defect("JOIN-024")
def a_peer_that_failed_before_is_not_named() -> None:
    """A rank that cannot go on after a failed batch takes itself for the first that failed."""
    edit("self.watch(in_collective=False)", "pass", within="refuse_to_go_on")


@defect("DDPJ-034")
def messages_between_two_ranks_are_compared() -> None:
    """After a failure the backend's own numbers are compared, which count messages between two ranks as well."""
    edit(
        "str(record.started))",
        "str(team.group._get_sequence_number_for_group()))",
    )


@defect("JOIN-038")
def stays_bound_where_it_could_not_be_entered() -> None:
    """A context that is refused where it is entered leaves its joinables bound."""
    edit("self._end()", "self._state = BlockState.LEFT", within="_enter")


@defect("JOIN-038")
def built_inside_and_never_entered_it_stays() -> None:
    """A context that was built inside another one, and never entered, stays on its joinables when that one is left."""
    edit(
        "    joinable = self._joinable\n",
        "    joinable = self._joinable\n    if joinable._join_session is not self._session:\n        return\n",
        within="Binding.take_off",
    )


@defect("JOIN-038")
def built_beside_another_it_forgets_the_outer_one() -> None:
    """Of two contexts that are built one after the other inside a third, the second brings nothing back."""
    edit(
        "    self._joinable._join_config = self._config\n",
        "    it, opened = self._joinable, self._joinable._join_bindings\n"
        "    if opened and it._join_session not in (self._session, opened[-1]._session):\n"
        "        it._join_bindings = ()\n"
        "    it._join_config = self._config\n",
        within="Binding.put",
    )


@defect("JOIN-040")
def only_leaders_begin_iterations() -> None:
    """A loop that begins with an optimizer's step calls the roll at the forward only."""
    edit("if not self._begun:", "if not self._begun and place in self._leaders:", within="join.session.Session.begin")


@defect("JOIN-040")
def models_of_a_kind_are_taken_for_each_other() -> None:
    """In the first message of a block ranks compare the kinds of what they list, not which models these are."""
    edit("hook.acts, hook.alike())", "hook.acts)")


@defect("JOIN-027", "JOIN-034")
def only_the_first_of_a_mixed_list_is_announced() -> None:
    """After a model in the list, a joinable of the user's is not shadowed."""
    edit("self._call_roll(place, Act(place, 0))", "self._call_roll(place, Act(place, 0) if first else None)")


@defect("JOIN-024")
def what_others_shadow_is_forgotten_by_the_last_one() -> None:
    """The last rank with inputs goes on after a backward that failed, though the others are in it."""
    edit("shadowed=reducer.reducing_with_others", "shadowed=False")


@defect("JOIN-024")
def the_last_one_goes_on_behind_what_others_are_in() -> None:
    """The last rank with inputs never looks whether others are in what an exception has ended."""
    edit("if not broken.shadowed and (self._membership.active == 1 or ", "if (self._membership.active == 1 or ")


@defect("JOIN-023")
def a_rank_that_left_is_not_waited_for_where_it_has_taken_part() -> None:
    """Whoever waits when another rank leaves a context by an error fails, though what it waits for comes."""
    edit("if not (waits and self._all_have_taken_part(note, store)):", "if True:")


@defect("JOIN-024")
def a_hook_that_failed_is_forgotten() -> None:
    """A rank goes on after a hook of the user's that has raised, though others are in its collectives."""
    edit('self.break_off("backward" if row.moment is Moment.IN_BACKWARD else "forward", error, shadowed=True)', "pass")


@defect("JOIN-024")
def an_unfinished_backward_is_forgotten() -> None:
    """A rank goes on after the complaint about a backward that has left a parameter out, in which its peers wait."""
    edit('    self.iteration.break_off("backward", RuntimeError(text), shadowed=self.reducing_with_others)\n', "")


@defect("JOIN-024")
def what_all_have_left_out_counts_in_later_contexts() -> None:
    """That all ranks have left out a backward is looked for in every later context of the group."""
    edit("record_of(team).session_key", "record_of(team).token", within="LeftOpen.of")


@defect("JOIN-051")
def a_handle_waits_for_what_came_after_it() -> None:
    """To wait for a notification's handle is to wait for the latest message of the context."""
    edit("if self._channel.in_flight is roll:", "if self._channel.in_flight is not None:")


@defect("JOIN-055")
def beside_a_model_a_joined_rank_that_notifies_counts() -> None:
    """In a context that holds a model a joined rank's main hook that notifies is taken for that of a live rank."""
    edit("    if self._state is not SessionState.LIVE:\n        return None\n", "", within="session.Session.notify")


@defect("JOIN-054")
def what_an_inner_context_gave_up_counts_in_the_outer_one() -> None:
    """A batch that the last rank gave up in an inner context still counts in the one around it."""
    edit("    self._begin_anew()  # also for a context around this one\n", "")


@defect("JOIN-055", "DDPJ-035")
def in_post_hooks_only_the_last_ones_count() -> None:
    """What is trained in a post hook is divided by the number of ranks that came last."""
    edit("    self._membership.gather()\n", "")


@defect("JOIN-024")
def an_unfinished_last_backward_is_told_to_nobody() -> None:
    """A rank runs out of inputs after a backward that has left a parameter out, in which its peers wait."""
    edit("self._reducer.check_finished()", "pass", within="UnevenInputs.leave")


@defect("ZERO-022", worlds=(3,))
def a_forward_that_was_left_open_before_the_block_counts_in_it() -> None:
    """A forward without a backward that one rank made before the block is waited for by the others in it."""
    edit("self.iteration.broken, self.iteration.awaits_backward = None, False", "self.iteration.broken = None")


@defect("ZERO-022", worlds=(3,))
def only_the_first_joinable_hears_that_a_block_begins() -> None:
    """A forward of the second model that one rank made before the block is waited for by the others in it."""
    edit("for hook in self._followers.values():", "for hook in self._hooks[:1]:", within="join.session.Session.enter")


@defect("JOIN-023")
def who_has_left_with_as_many_collectives_counts_as_behind() -> None:
    """What a rank waits for counts as lost where one that has taken part in it has left."""
    edit("int(store.get(key)) < started", "int(store.get(key)) <= started")


@defect("JOIN-024")
def contexts_inside_others_are_numbered_with_all_the_rest() -> None:
    """A rank that fails around a context that its peers are in has another number for the next one than they have."""
    edit("[: len(self._tally.blocks) + 1]", "[:1]")


@defect("JOIN-024")
def the_last_one_looks_at_one_model_only() -> None:
    """Where the last rank has failed in one model in peace, nobody looks whether others are in another one."""
    asked = "self._left_open_by_all(place)):\n"
    edit(f"{asked}            continue\n", f"{asked}            return\n")


@defect("JOIN-038", worlds=(2,))
def the_outer_contexts_session_does_not_come_back() -> None:
    """Behind a context inside another a joinable has the outer one's flags, and still the session of the inner one."""
    edit("others[-1].put()", "joinable._join_config = others[-1]._config", within="Binding.take_off")


@defect("JOIN-030")
def shadows_only_where_something_is_sent() -> None:
    """A rank that has shadowed iterations in which nothing was sent takes itself for a last joiner."""
    edit(
        "if self._state is SessionState.LIVE:",
        "if self._state is SessionState.LIVE and reading.act is not None:",
        within="join.session.Session.shadow",
    )


@defect("JOIN-040")
def contexts_inside_each_other_are_not_told_apart() -> None:
    """A message of an outer context is taken for one of the inner context in which a rank has run out."""
    edit("if counts[_DEPTH] != self.ranks * self.depth:", "if False:")


@defect("JOIN-038")
def blocks_are_counted_beyond_what_a_message_holds() -> None:
    """Of contexts inside each other more are told apart than a message has room for."""
    edit("min(len(self.team.tally.blocks) - 1, DEEPEST)", "len(self.team.tally.blocks) - 1")


@defect("JOIN-040")
def all_inner_contexts_are_one() -> None:
    """A context inside another is told from that one, and not from one inside itself."""
    edit("depth=min(len(self.team.tally.blocks) - 1, DEEPEST)", "depth=min(len(self.team.tally.blocks) - 1, 1)")


@defect("JOIN-040")
def the_fourth_context_is_as_deep_as_the_third() -> None:
    """Of contexts inside each other the fourth is not told from the third, though a message has room for it."""
    edit("min(len(self.team.tally.blocks) - 1, DEEPEST)", "min(len(self.team.tally.blocks), DEEPEST)")


@defect("JOIN-040")
def plain_contexts_inside_others_count_as_by_themselves() -> None:
    """The counts of a plain context inside a model's, or around it, have the shape that they have outside."""
    edit("if team is not self.team or len(team.tally.blocks) < 2:", "if True:")


@defect("JOIN-040")
def messages_of_contexts_inside_each_other_differ_in_length() -> None:
    """Messages are as long as their own context asks for, also where they may meet those of another one."""
    edit("if len(blocks) > 1:", "if False:")


@defect("JOIN-024")
def in_an_inner_context_no_other_failures_are_heard_of() -> None:
    """A rank waits in an inner context for a peer that has failed in the outer one."""
    edit("for notes in (self._notes, *self._around):", "for notes in (self._notes,):")


@defect("JOIN-024")
def in_the_innermost_of_three_contexts_the_outermost_is_not_heard_of() -> None:
    """A rank waits in the innermost context for a peer that has failed in the outermost one."""
    edit("tuple(self._entered)", "tuple(self._entered[-1:])", within="SessionFailures.begin")


@defect("JOIN-024")
def behind_a_failed_context_only_the_next_one_is_refused() -> None:
    """What comes behind a context that has failed is mixed with what that one has left, where it is in no next one."""
    edit("team.tally.doubt = make_sure_of_group", "pass", within="in_step.doubt")


@defect("JOIN-024")
def behind_a_failed_context_hooks_go_on() -> None:
    """What a communication hook sends is mixed with what a failed context has left."""
    edit("if tally.doubt is not None:", "if False:", within="calling_a_hook")


@defect("JOIN-024", worlds=(3,))
def who_has_left_later_and_further_behind_is_not_looked_at() -> None:
    """Where the rank that has failed first took part in a collective, its peers wait for it, though another has not."""
    edit("if in_step.is_left_behind(self._team, self._key, store):", "if False:")


@defect("JOIN-024")
def who_waits_for_the_roll_call_is_taken_for_one_that_reduces() -> None:
    """In a context that throws, a rank whose roll call comes late refuses a backward that all ranks leave out."""
    edit("    channel = self._channel\n    self._shadow_pending()\n",
         "    channel = self._channel\n    self._iterations[place] += 1\n    self._shadow_pending()\n")  # fmt: skip
    edit("    self._iterations[place] += 1  # not before", "    self._iterations[place] += 0  # not before")


@defect("JOIN-024")
def what_a_hook_starts_is_on_the_models_group() -> None:
    """A rank whose hook has failed on another group leaves its peers waiting."""
    edit(", elsewhere=team.tally.hooks_leave_group", "")


@defect("JOIN-024", worlds=(3,))
def who_differs_is_heard_by_all() -> None:
    """Ranks that differ on a part of the group leave the rest of it waiting."""
    edit("error.among.issuperset(global_ranks_of(self._team.group))", "True")


@defect("JOIN-024")
def rows_count_as_sent_before_they_are() -> None:
    """Behind sparse gradients whose message was refused, every later error is one of the inside."""
    edit("    self._capacity.kept = None\n", "    self._capacity.kept, self._capacity.unread = None, self\n",
         within="SparseRound.send")  # fmt: skip


@defect("JOIN-024")
def notes_go_by_the_programs_own_connection() -> None:
    """A store in which a thread of the program waits for long counts as gone."""
    edit("stores.StoreWithDeadline(guard.store, detection_s())", "stores.StoreWithDeadline(store, detection_s())")


@defect("JOIN-024")
def what_a_rank_had_started_is_forgotten_too_soon() -> None:
    """A rank that is late after a failed context waits for what another has taken back when the next one failed."""
    edit("len(record.published) > 2:", "len(record.published) > 1:")


@defect("JOIN-024")
def who_is_refused_a_context_tells_nobody() -> None:
    """Ranks that enter a context later than one that was refused it wait there."""
    edit("        self.leave(error)\n        raise\n", "        raise\n", within="FailureNotes.make_sure_of_step")


@defect("JOIN-024")
def a_failure_before_ones_own_is_not_said() -> None:
    """The error of a rank that fails behind another does not say so."""
    edit('add_note(error, f"Join: before this, {first}. That failure may be the cause.")', "pass")


@defect("JOIN-040")
def a_handle_knows_of_the_number_alone() -> None:
    """Who waits for a handle sends what meets other ranks' collectives."""
    edit("seen=lambda: self._read_if(roll), ", "")


@defect("JOIN-023")
def a_frozen_store_is_waited_for() -> None:
    """An error leaves a context when a store that has frozen answers."""
    edit("timeout=self._limit_s / _SLICES", "timeout=None")


@defect("JOIN-024")
def who_cannot_go_on_says_so_at_its_end() -> None:
    """Peers of a rank that stays in its block behind a broken backward wait until it leaves."""
    edit("        self.report(error)\n", "", within="Session.refuse_to_go_on")


@defect("JOIN-024")
def the_last_rank_does_not_know_that_it_is() -> None:
    """A rank that has found itself alone only now cannot leave out a batch that has failed."""
    edit("        self._read_message()  # it may tell", "        pass  # it may tell")
