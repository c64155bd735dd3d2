"""Defects of area join: what peers learn of a rank that is killed or freezes."""

from __future__ import annotations

from impl.comm.heartbeats import Heartbeats

from ..planting import defect, edit, swap


@defect("JOIN-057")
def nobody_gives_signs_of_life() -> None:
    """Heartbeats are made and never begun."""
    swap(Heartbeats, "start", lambda self, world: None)


@defect("JOIN-057")
def silence_is_not_judged() -> None:
    """A peer that says nothing any more counts as alive as long as its connection stands."""
    edit("        self._report(peer, End.SILENT)\n", "        pass\n")


@defect("JOIN-057")
def silence_of_this_machine_is_forgiven() -> None:
    """A process on the same machine counts as alive whether or not it has moved."""
    edit("peer.signs is not None and has_moved(peer.signs, peer.process.signs())", "peer.signs is not None")


@defect("JOIN-057")
def short_stops_end_the_job() -> None:
    """A rank that stands still for a second is given up at once."""
    edit("peer.silent_s < (self.detection_s if near else self._elsewhere_s)", "peer.silent_s < self.detection_s / 9")
    edit("or peer.silent_s < self.detection_s / 2:", "or peer.silent_s < self.detection_s / 9:")


@defect("JOIN-057")
def waits_are_not_broken_off() -> None:
    """A lost peer interrupts no wait: it is only named where a collective has failed by itself."""
    edit("return [loss for loss, _ in first] if due else []", "return []")


@defect("JOIN-057", worlds=(4,))
def each_model_goes_on_over_a_group_of_its_own() -> None:
    """Models that shared a group do not any more once a rank is lost, so no context takes them both."""
    edit("group = record_of(team).smaller.get(tuple(plan[\"ranks\"]))", "group = None")


@defect("JOIN-057")
def who_fails_again_goes_on_over_the_group_of_before() -> None:
    """Ranks of which one has failed a second time, and none is lost, keep the group in which it had left things."""
    edit("if group is None or group is team.group:", "if group is None:")


@defect("JOIN-057", worlds=(3,))
def survivors_go_on_from_the_slowest() -> None:
    """What another survivor had made is made again, or twice."""
    edit("steps = max(made.values())", "steps = min(made.values())")


@defect("JOIN-057")
def a_lost_shard_is_not_restored() -> None:
    """Each survivor brings what it owned itself."""
    edit("if copies is self._own or rank in lost:", "if copies is self._own:")


@defect("JOIN-057", worlds=(3,))
def the_copies_are_taken_for_those_of_the_next_rank() -> None:
    """They come from the one before."""
    edit("(team.rank - self._away()) % team.size: self", "(team.rank + self._away()) % team.size: self")


@defect("JOIN-057", worlds=(3,))
def who_hides_the_cause_is_the_cause() -> None:
    """A rank that raises another error ``from None`` where a collective has failed is named in the lost one's place."""
    edit(
        "error = error.__cause__ or error.__context__",
        "error = error.__cause__ if error.__suppress_context__ else error.__context__",
    )


@defect("JOIN-057", worlds=(3,))
def survivors_keep_the_limit_of_their_meeting() -> None:
    """The new group's collectives may last only as long as its ranks had to come."""
    edit("    group.set_timeout(timedelta(seconds=timeout_s))\n", "")


@defect("JOIN-057", worlds=(4,))
def the_state_of_the_lowest_rank_is_that_of_all() -> None:
    """Survivors go on from the state of the lowest rank, though it may have made a step less than others."""
    edit("min(rank for rank in by_rank if made[rank] == steps)", "min(by_rank)")


@defect("JOIN-057", worlds=(4,))
def the_source_is_looked_for_among_all_ranks() -> None:
    """Behind the loss of a rank before it, another one's state is taken for the source's."""
    edit('plan["ranks"].index(plan["source"])', 'plan["source"] % len(plan["ranks"])')


@defect("JOIN-057", worlds=(4,))
def survivors_count_as_the_furthest_hook() -> None:
    """An iteration that is made again is counted twice by hooks that count."""
    edit("counted = [min(each) for each in zip(", "counted = [max(each) for each in zip(")


@defect("JOIN-057", worlds=(4,))
def what_an_optimizer_saves_by_itself_begins_anew() -> None:
    """Where ranks go on with copies of a shard, entries of the local optimizer's own ``state_dict`` are lost."""
    edit("._replace(further=self.further_entries() if saves_more else None)", "")


@defect("JOIN-057", worlds=(4,))
def random_numbers_are_not_handed_over() -> None:
    """A rank that was a step behind draws other numbers than the rest."""
    edit("getattr(optim, name).set_state(state)", "pass")


@defect("JOIN-057", worlds=(4,))
def hooks_stay_in_the_group_of_before() -> None:
    """A hook whose state has the model's group waits for the rank that was lost."""
    edit('elif getattr(state, "process_group", None) is former:', "elif False:")


@defect("JOIN-057")
def children_keep_the_connections() -> None:
    """A child that a rank forks holds its connections, so nobody notices that the rank is killed."""
    swap(Heartbeats, "close", lambda self: None)


@defect("JOIN-057")
def who_computes_counts_as_frozen() -> None:
    """A rank that keeps the interpreter is given up, although it uses a processor."""
    edit('return now.state in "RD" or', "return False and")


@defect("JOIN-057")
def who_was_given_up_is_told_of_itself_as_of_another() -> None:
    """A rank that had stood still for too long reads that it has stopped answering."""
    edit("if any(loss.rank == own for loss in losses):", "if False:")


@defect("JOIN-057")
def errors_of_programs_are_kept_secret() -> None:
    """A program that ends with an exception says only that it ends."""
    edit('beats.leave(End.RAISED, f"{type(error).__name__}: {error}")', 'beats.leave(End.LEFT, "has ended")')


@defect("JOIN-057")
def every_exit_is_a_good_one() -> None:
    """A child of multiprocessing's that exits because of an error counts as one that has done its work."""
    edit("error = error.__context__ if error.code else None", "error = None")


@defect("DDP-049")
def an_interrupted_reduction_is_waited_for() -> None:
    """After Ctrl-C in a reduction the program waits for the peers at its end."""
    edit("if not self.work.is_completed():  # Ctrl-C", "if False:  # Ctrl-C", within="Pending._wait_in_slices")


@defect("DDP-049")
def a_reduction_that_a_handlers_error_interrupts_is_waited_for() -> None:
    """After an error of a signal handler in a reduction the program waits for the peers at its end."""
    edit("    except BaseException:\n", "    except KeyboardInterrupt:\n", within="Pending._wait_in_slices")


@defect("DDP-049")
def a_failed_backward_is_waited_for() -> None:
    """What a failed backward has begun is waited for at the end of the program, or ends it by an abort."""
    edit("self.iteration.team.abandon()", "pass", within="BucketQueue.abandon")


@defect("DDP-049")
def a_model_goes_without_a_word_of_its_failed_backward() -> None:
    """A model that is dropped behind a failed backward leaves what that has begun to the end of the program."""
    edit("self.abandon()", "pass", within="BucketQueue.__del__")


@defect("DDP-049")
def messages_of_a_failed_context_are_waited_for() -> None:
    """A rank that fails in a context waits at its end for the peers to answer its last message."""
    edit("self.team.abandon()", "pass", within="BaseSession.report")


@defect("DDP-049")
def a_handlers_error_is_taken_for_the_end_of_a_slice() -> None:
    """What a signal handler raises in a wait is lost where the collective ends before the wait looks."""
    edit("if _is_of_a_handler(error, self.work):", "if False:", within="Pending._wait_in_slices")


@defect("JOIN-057")
def who_was_never_met_is_waited_for() -> None:
    """A rank that has lost the store waits on for peers of which it can learn nothing."""
    edit("if waited_s >= self._beats.detection_s and self._beats.cut_off:", "if False:")


@defect("JOIN-057")
def a_lost_store_ends_the_job() -> None:
    """Where the store has gone before the first model is built, that model is refused."""
    edit("except RuntimeError:\n", "except OSError:\n", within="Rendezvous.publish")


@defect("JOIN-057")
def who_was_never_met_is_not_named() -> None:
    """A failed collective is said to be the network's, although a peer has given no sign of life."""
    edit("missing = self._unmet()", "missing = \"\"")


@defect("JOIN-057")
def a_guard_that_is_off_says_that_all_answer() -> None:
    """Nobody has looked, and a failed collective is explained as if all ranks had been seen."""
    edit("        return _UNWATCHED\n", '        return "Every rank of this group still answers."\n')


@defect("JOIN-057")
def a_refusal_of_a_backend_is_raised_as_it_is() -> None:
    """A collective that is not even started names no rank."""
    edit("fail(error, watch_of(team), team.tally.place_of(label), team)", "raise error")


@defect("JOIN-057")
def a_failed_collective_of_the_program_is_not_explained() -> None:
    """In a context, what is known of a lost rank is not said where a collective of the program has failed."""
    edit("        if cause not in notes:\n            add_note(error, cause)\n", "", within="SessionFailures._explain")


@defect("JOIN-057")
def a_mistake_counts_as_a_failed_peer() -> None:
    """Whatever a collective raises is taken for a lost connection."""
    edit("watch(*([error] if isinstance(error, RuntimeError) else []))", "raise PeerFailed(\"rank 0 has failed\")")


@defect("JOIN-057")
def any_detection_time_is_taken() -> None:
    """What is no number of seconds is taken for the usual one."""
    edit("        chosen = -1.0\n", "        chosen = _DETECTION_S\n")


@defect("DDP-049")
def a_store_in_a_file_is_none() -> None:
    """Ranks that share a file do not find each other."""
    edit('        return "127.0.0.1"\n', "        return None\n")
@defect("JOIN-057", worlds=(3,))
def added_groups_leave_the_copies() -> None:
    """After a group has been added who is left goes on from copies that know nothing of it."""
    edit("    self.forget()\n", "    self.consolidated = None\n", within="Shard.extend")


@defect("JOIN-057", worlds=(3,))
def loaded_states_leave_the_copies() -> None:
    """After a load who is left goes on from copies of the states of before."""
    edit("self.shard.forget()", "self.shard.consolidated = None", within="load_state_dict")


@defect("JOIN-057", worlds=(3,))
def copies_are_taken_for_those_of_other_parameters() -> None:
    """What was taken out of a group since the last step shifts the copies to other parameters."""
    edit("    self._shard.look_at_parameters()  # of others than those that are there now nobody can go on\n", "")


@defect("JOIN-057", worlds=(3,))
def a_refusal_holds_for_the_next_model() -> None:
    """The plan by which one model was refused is that of the next one, too."""
    edit("record.regroups += 1", 'record.regroups += not (plan["otherwise"] or plan["gone"])')


@defect("JOIN-057", worlds=(3,))
def who_has_failed_for_another_is_never_missed() -> None:
    """A rank that ends because of one of another group is not named, though nobody else is missing."""
    edit("or [each for rank, each in self._known.items() if rank in ranks]", "")


@defect("DDP-049")
def infinite_sums_are_damage() -> None:
    """In strict mode what has overflowed does not add up."""
    edit("if not all(map(math.isfinite, (given, magnitude, got))):", "if False:")


@defect("JOIN-057", worlds=(4,))
def states_of_before_a_loss_are_told() -> None:
    """What was consolidated before a rank was lost is given out as the state of those who are left."""
    edit("parameters), counters)\n    self.consolidated = None\n", "parameters), counters)\n", within="Shard.restore")


@defect("JOIN-057", worlds=(4,))
def states_that_are_handed_on_lie_row_by_row() -> None:
    """A fused optimizer is handed states that do not lie in memory as their parameters do."""
    edit("    lie_like_parameters(optim.state)\n    for key in begun", "    for key in begun")


@defect("JOIN-057", worlds=(4,))
def what_is_kept_by_place_goes_to_as_many_others() -> None:
    """What an optimizer keeps by place stays there, though the places are those of other parameters, equally many."""
    edit("if further and not (len(owned) == len(before) and all(map(is_, owned, before))):",
         "if further and len(owned) != len(before):")  # fmt: skip


@defect("JOIN-057", worlds=(3,))
def hooks_go_on_over_the_former_group() -> None:
    """Hooks whose state is the model's group, or no group, go on with a group that has lost a rank."""
    edit("if state is former or (state is None and averaged_over(hook, state) is former):", "if False:")


@defect("JOIN-057", worlds=(3,))
def what_has_no_state_is_handed_over_as_a_state() -> None:
    """A parameter of which the optimizer keeps nothing is handed over with a state of None."""
    edit("for index, (_, state) in held.items() if state is not None}", "for index, (_, state) in held.items()}")


@defect("JOIN-057", worlds=(3,))
def sparse_states_are_copied_as_dense_ones() -> None:
    """Sparse tensors of a state are put into the copies of shards as if they lay in one place."""
    edit("type(value) in PLAIN and value.layout == torch.strided:", "type(value) in PLAIN:")


@defect("JOIN-057", worlds=(3,))
def every_hook_is_taken_for_a_function() -> None:
    """Whether a hook steps an optimizer is asked of objects, too, as if they were functions."""
    edit("    if not inspect.isfunction(hook):\n        return False\n", "", within="steps_in_backward")


@defect("JOIN-057")
def optimizers_in_the_backward_go_on_as_they_are() -> None:
    """Survivors go on though optimizers step in the backward, of which some ranks may have made a step more."""
    edit("if model._steps_in_backward:", "if False:")


@defect("JOIN-057")
def hooks_that_step_go_on_as_they_are() -> None:
    """Survivors go on though the communication hook steps the optimizer, bucket by bucket."""
    edit("if any(steps_in_backward(hook) for hook, _ in model._comm_hooks):", "if False:")


@defect("JOIN-057")
def delayed_optimizers_in_the_backward_go_on_as_they_are() -> None:
    """Survivors go on though optimizers of delayed parameters step in the backward."""
    edit("bool(self.reducer.optimizers) or late is not None", "bool(self.reducer.optimizers)")


@defect("JOIN-057", worlds=(4,))
def survivors_get_copies_of_what_groups_name() -> None:
    """The settings of an ordinary optimizer that goes on name copies of its parameters."""
    edit("        group.update(its)\n", "        pass\n", within="_load")


@defect("JOIN-057", worlds=(4,))
def survivors_of_a_shard_get_copies_of_what_groups_name() -> None:
    """The settings of a sharded optimizer that goes on name copies of its parameters."""
    edit("snapshot(by_place(known, shard.parameters()))", "snapshot(known)")


@defect("JOIN-023")
def a_child_speaks_for_its_rank() -> None:
    """A child that is forked inside a context, and ends there by an exception, says that its rank fails."""
    edit("self._session is not None and os.getpid() == self._process", "self._session is not None", within="__exit__")


@defect("JOIN-057")
def who_is_in_a_context_goes_on_in_it() -> None:
    """Ranks may form a smaller group inside a context over the ranks of before."""
    edit("if model._join_session is not None:", "if False:", within="regroup")


@defect("JOIN-057")
def copies_may_lie_on_the_rank_itself() -> None:
    """A distance around the whole group is taken, so that copies are lost with their rank."""
    edit("farthest = max(self.shard.team.size - 1, 1)", "farthest = self.shard.team.size")


@defect("JOIN-057")
def shards_of_other_ranks_go_on() -> None:
    """An optimizer that is sharded over other ranks than those of the model is taken."""
    edit("if mirror.team.global_ranks() != team.global_ranks():", "if False:")


@defect("JOIN-057")
def who_is_left_alone_cannot_fail() -> None:
    """A rank that is left alone and fails by itself is told that the failure guard is off."""
    edit("if team.size == 1:", "if False:", within="regroup")


@defect("JOIN-057")
def refused_copies_are_made_in_every_step() -> None:
    """Where copies of a shard are refused, as states that cannot leave their process, every later step is refused."""
    edit(
        "self._shard.copy_into(copies, step)\n    self._shard.copies = copies",
        "self._shard.copies = copies\n    self._shard.copy_into(copies, step)",
    )


@defect("JOIN-057", worlds=(3,))
def a_second_loss_ends_the_job() -> None:
    """A rank that is lost while the others regroup is not left out."""
    edit('if not guard.lost() & set(plan["here"]):\n', "if True:\n")


@defect("JOIN-057", worlds=(2,))
def what_has_not_come_is_taken_apart() -> None:
    """When an owner is lost, parameters with memory in common get memory of their own."""
    edit("if id(member) in movable:", "if True:")
@defect("JOIN-024")
def errors_of_other_groups_are_told_in_the_innermost_context_only() -> None:
    """A rank whose own collective failed on another group tells the peers of the inner one of two contexts only."""
    edit("if not self._team.tally.failed and", "if not notes and not self._team.tally.failed and", within="_explain")


@defect("JOIN-024", worlds=(2,))
def ways_between_two_hosts_are_counted_apart() -> None:
    """A rank that waits for what the other host has failed to send is not told at once."""
    edit("    count_together(team.group, ways)\n", "")


@defect("JOIN-024")
def errors_of_other_groups_are_told_with_a_guard_only() -> None:
    """A rank whose own collective failed on another group leaves its peers waiting where nobody guards them."""
    edit("(guard is None or not guard.lost())", "(guard is not None and not guard.lost())")


@defect("JOIN-057", worlds=(3,))
def who_regroups_later_is_not_found() -> None:
    """A model that has gone on before one more rank was lost forms a group of its own with the ranks that are left."""
    edit("record_of(Team.of(taken.group)).smaller = record.smaller", "pass")


@defect("DDP-049")
def looking_at_connections_changes_them() -> None:
    """Where a program limits its sockets, the connections that are looked at wait no longer."""
    edit("socket.socket(type=_KIND, fileno=", "socket.socket(fileno=")


@defect("DDP-049")
def every_thread_makes_the_same_group() -> None:
    """While strict mode makes a group, one that another thread of the program makes gets its name."""
    edit("cls.names.get(threading.get_ident())", "next(iter(cls.names.values()), None)")


@defect("JOIN-057")
def what_a_rank_does_is_not_kept() -> None:
    """Peers tell which collective they have started last, and nobody says it of one that is lost."""
    edit("peer.doing = said[\"at\"]", "pass")


@defect("JOIN-057")
def long_errors_are_told_whole() -> None:
    """The text of an error is longer than peers read, so they take a program that ends by it for killed."""
    edit("\"text\": self.text[:_LONGEST_TEXT]", "\"text\": self.text")


@defect("JOIN-057", worlds=(2, 3))
def losses_are_told_to_nobody() -> None:
    """A rank that notices a loss keeps it to itself: of many, those without a connection never learn of it."""
    edit("        self._tell({\"loss\": loss.as_json()})\n", "        pass\n", within="_learn")


@defect("JOIN-057", worlds=(2, 3))
def who_fails_for_another_is_known_to_neighbours_only() -> None:
    """That a rank fails because of another one is not passed on to those without a connection to it."""
    edit("elif self.losses.add_affected(int(said[\"affected\"]), int(said[\"epoch\"])):\n        self._tell(said)\n",
         "else:\n        self.losses.add_affected(int(said[\"affected\"]), int(said[\"epoch\"]))\n")  # fmt: skip


@defect("JOIN-057", worlds=(3,))
def who_ends_before_it_is_met_leaves_no_word() -> None:
    """Of a program that ends by an error before all have met it, the others learn that it was killed."""
    edit("if store is not None:\n", "if False:\n", within="Rendezvous.leave")


@defect("JOIN-057", worlds=(3,))
def who_cannot_be_called_gives_no_signs_of_life() -> None:
    """Ranks on other machines that cannot be called count as lost after the detection time."""
    edit("self._signs += 1", "self._signs = 1")


@defect("JOIN-057", worlds=(3,))
def processes_of_containers_are_looked_for_here() -> None:
    """A rank in a container is looked for by its number among the processes outside, and not found."""
    edit("machine_marks(\"pid\", \"net\")", "machine_marks(\"net\")")


@defect("JOIN-057", worlds=(3,))
def the_end_of_who_was_never_met_is_not_awaited() -> None:
    """Where a rank on another machine is killed before it was met, its peers do not wait until that is known."""
    edit("(0.0 if met else self._beats.detection_s)", "0.0")


@defect("JOIN-057", worlds=(3,))
def who_is_stopped_before_it_is_met_is_waited_for() -> None:
    """A process on this machine that was stopped before its peers have met it counts as one that is slow."""
    edit("is_stopped = state in STOPPED", "is_stopped = False")


@defect("JOIN-057")
def a_frozen_store_is_waited_for() -> None:
    """A rank that was never met is waited for where the store does not answer."""
    edit("or self._ran_s - self._looked_s >= self._detection_s", "")


@defect("JOIN-057")
def who_waits_for_a_disk_counts_as_frozen() -> None:
    """Only a process that uses a processor is late and not lost."""
    edit('now.state in "RD" or now.used_s', "now.used_s")


@defect("JOIN-057")
def who_holds_the_interpreter_counts_as_at_work() -> None:
    """A process that does nothing, and lets no thread go on, is waited for as long as it is not stopped."""
    edit("now.used_s - then.used_s > _WORK * (now.at - then.at)", "now.used_s >= then.used_s")


@defect("JOIN-057")
def who_gives_up_its_groups_looks_killed() -> None:
    """A process that has destroyed its groups, and lives on, says nothing of it."""
    edit("self.leave(End.LEFT, \"has destroyed its process groups\")", "self.close()")


@defect("DDP-049")
def a_stall_is_noticed_by_each_rank_alone() -> None:
    """A rank that has noticed a stall does not tell, and goes on; bytes that it sends mislead the rest."""
    edit("if self.waits.declare(str(said[\"stall\"]), str(said[\"mark\"])):", "if False:")


@defect("DDP-049")
def a_slow_network_counts_as_a_stall() -> None:
    """Ranks wait for each other although bytes move between them."""
    edit("return sum(struct.unpack_from(_BYTES, info, _BYTES_AT))", "return 0")


@defect("JOIN-057", worlds=(3,))
def who_fails_for_an_exception_is_blamed_for_it() -> None:
    """A rank that ends because another has left a context by an exception is named beside that one."""
    edit("            self._team.guard.mark_affected()\n", "            pass\n", within="SessionFailures._read_notes")


@defect("JOIN-057", worlds=(3,))
def members_are_named_by_their_global_ranks() -> None:
    """In a group of some ranks an error takes global ranks for ranks of the group, and the other way round."""
    edit("name_of(rank, global_rank) for", "name_of(global_rank, rank) for")


@defect("JOIN-057")
def requests_to_the_store_wait_for_the_network_for_ever() -> None:
    """A host that is cut off from the store waits there."""
    edit("option, int(seconds * 1000)", "option, 0")


@defect("JOIN-057")
def what_has_failed_is_not_said() -> None:
    """The error of a collective whose cause nobody knows does not say which one it was."""
    edit('add_note(error, f"The collective that failed: {place}.")', "pass")


@defect("DDP-049", worlds=(3,))
def the_first_to_notice_a_stall_is_taken_for_its_cause() -> None:
    """Of ranks that wait for each other the second is told that the first has ended."""
    edit("self.refuse_stall(self._beats.detection_s / 4)", "pass")


@defect("DDP-049")
def sums_that_are_wrong_alike_are_believed() -> None:
    """In strict mode a wrong sum that all ranks have gotten is no damage."""
    edit("return bool(abs(got - given) >", "return bool(0.0 >")


@defect("DDP-047")
def long_descriptions_end_in_another_error() -> None:
    """In strict mode a collective whose description is too long is told by an error of the inside."""
    edit("what.encode()[:_LONGEST_VIEW]", "what.encode()")
@defect("JOIN-057", worlds=(3,))
def what_one_survivor_has_seen_is_sent_by_it_alone() -> None:
    """A survivor that has seen a first gradient in a step that is made again sends its parameter; another does not."""
    edit("    shard.sent = sent\n", "    shard._also_send(sent)\n")


@defect("JOIN-057", worlds=(3,))
def survivors_keep_their_own_buffers() -> None:
    """Only parameters are taken over from the rank whose state is that of all."""
    edit("(*model.module.parameters(), *model.module.buffers())", "model.module.parameters()")


@defect("JOIN-057", worlds=(3, 4))
def what_came_from_a_rank_that_is_lost_meanwhile_stays() -> None:
    """Survivors write what they get into their model at once, before all have got it."""
    edit("if left.rank != source:", "if False:")


@defect("JOIN-057", worlds=(2, 3))
def who_was_given_up_goes_on() -> None:
    """A rank that the others have given up is not refused."""
    edit('if team.global_rank(team.rank) not in plan["ranks"]:', "if False:")


@defect("JOIN-057", worlds=(3,))
def copies_that_are_begun_anew_count_from_the_beginning() -> None:
    """Copies of two mirrors have the same numbers, as if they were of the same steps."""
    edit("0 if former is None else former.number + 1", "0")


@defect("JOIN-057", worlds=(4,))
def survivors_go_back_further_than_they_have_to() -> None:
    """Of two steps of which the survivors hold all shards, the earlier one counts."""
    edit("return max(whole), []", "return min(whole), []")


@defect("JOIN-057", worlds=(4,))
def survivors_draw_numbers_of_their_own() -> None:
    """PowerSGD's random numbers go on from rank to rank as they were."""
    edit("            state.rng = mersenne_twister(count)", "            pass", within="go_on")
