"""Defects of area overlap: numerical result."""

from __future__ import annotations

from ..planting import defect, edit


@defect("HOOK-024", "ZERO-026")
def all_groups_have_the_settings_of_the_first() -> None:
    """In overlap mode every parameter is stepped with the settings of the first group."""
    edit("groups[self._group_of[id(parameter)]]", "groups[0]")


@defect("HOOK-018", "HOOK-019")
def broadcast_before_the_step() -> None:
    """A bucket's parameters are sent before their owner has stepped them."""
    edit(
        "    if self._overlap.in_parts:\n"
        "        self._step([flight])\n"
        "    under_way = len(self._publications)\n"
        "    self._publish(flight.part)\n",
        "    under_way = len(self._publications)\n"
        "    for publication in flight.part.publications:\n"
        "        publication.start()\n"
        "        publication.finish(watch)\n"
        "    if self._overlap.in_parts:\n"
        "        self._step([flight])\n",
    )


@defect("HOOK-019", "HOOK-029")
def broadcasts_are_not_waited_for() -> None:
    """Backward returns while the owners' parameters are still on their way."""
    edit("        publication.finish(watch)\n", "        pass\n", within="_receive")


@defect("HOOK-021")
def calling_step_is_not_warned_of() -> None:
    """In overlap mode step() does nothing without a word."""
    edit("logger.warning(", "logger.debug(", within="step")


@defect("HOOK-021")
def calling_step_steps() -> None:
    """In overlap mode step() warns, and then steps with the gradients that are there."""
    edit(
        "        return None\n",
        "        self._local_step()\n        self._publisher.publish()\n        return None\n",
        within="step",
    )


@defect("HOOK-018")
def counters_are_whole_numbers_only() -> None:
    """What an optimizer counts in fractions begins anew where owners move."""
    edit("isinstance(value, (Number, str))", "isinstance(value, (Number, str)) and type(value) is not float")


@defect("HOOK-018", "HOOK-022")
def each_part_steps_the_whole_shard() -> None:
    """A partial step shows the local optimizer its whole shard, so early buckets are stepped again with every
    later one."""
    edit(", self._shown(gradients):", ":")


@defect("HOOK-018", "HOOK-049")
def future_is_not_waited_for() -> None:
    """A bucket is stepped without waiting for its future: the wrapped hook has returned, so it must be averaged."""
    edit(
        "value = wait_for_future(self.future, watch, self._team, label)",
        "value = self.future.value() if self.future.done() else self._bucket.flat",
    )


@defect("HOOK-018", "HOOK-022")
def gradients_of_other_buckets_are_zero_not_none() -> None:
    """A partial step gives the parameters of other buckets zero gradients, so decay and momentum move them."""
    zeros = "{parameter: torch.zeros_like(parameter) for parameter in self._owned}"
    edit("with shown_gradients(list(gradients.items())), self._shown(gradients):",
         f"with shown_gradients(list(({zeros} | dict(gradients)).items())):")  # fmt: skip


@defect("HOOK-022")
def local_step_takes_a_missing_gradient_for_zeros() -> None:
    """A local step that is given gradients of some parameters decays the others, too."""
    edit(
        "p: g for p, g in zip(self._owned, gradients, strict=True) if g is not None",
        "p: torch.zeros_like(p) if g is None else g for p, g in zip(self._owned, gradients, strict=True)",
    )


@defect("HOOK-018", "HOOK-020")
def interleaved_forgets_the_last_bucket() -> None:
    """The interleaved hook steps each bucket when the next one comes, and so never the last one."""
    edit("elif not last:", "else:")


@defect("HOOK-018", "HOOK-019", "HOOK-020")
def interleaved_steps_with_local_gradients() -> None:
    """The interleaved hook steps a bucket with what it held before its reduction."""
    edit(
        "    part = self._layout.parts[index]\n",
        "    part = self._layout.parts[index]\n"
        "    if self._schedule is Schedule.INTERLEAVED and part.own:\n"
        "        before = part.bucket.views_of(bucket.buffer().clone())\n"
        "        self._overlap.begin(ddp.reducer.iteration.session) if index == 0 else None\n"
        "        self._overlap.step({part.bucket.parameters[place]: before[place] for place in part.own})\n",
    )


@defect("HOOK-025", "HOOK-028", worlds=(3,))
def last_owner_of_a_bucket_is_forgotten() -> None:
    """Of a bucket with several owners the last one is left out: its parameters are neither stepped nor sent."""
    edit("in sorted(places))", "in sorted(places)[:-1] or places)")


@defect("HOOK-018")
def parameters_are_taken_back_row_by_row() -> None:
    """Parameters that travel together are laid out by their strides, and taken for rows from then on."""
    rows = "view.as_strided(view.shape, view.new_empty(view.shape).stride())"
    edit("_under_inference(view) if tensor.is_inference() else view", rows, within="PlacedTensors.move")


@defect("HOOK-023")
def slice_begins_at_the_buckets_beginning() -> None:
    """A piece of a bucket is stepped with gradients counted from the bucket's beginning instead of the piece's."""
    edit("views[place]\n", "next(v for v in views if v.shape == views[place].shape)\n", within="_reduce")


@defect("HOOK-018")
def sparse_buckets_taken_for_flat_ones() -> None:
    """The gradient of a sparse table is looked for in a flat bucket."""
    edit("if self.bucket.spec.sparse:", "if False:", within="views_of")


@defect("HOOK-018")
def states_do_not_move_with_their_owners() -> None:
    """When owners change with the rebuilt buckets, the states stay behind."""
    edit("    self.load_local(loadable(states), further)\n", "    states = {}\n")


@defect("HOOK-018")
def unused_parameters_of_a_static_graph_are_stepped() -> None:
    """What a static graph never uses is stepped with the zeros that were reduced for it."""
    edit("never = ddp.reducer.facts.never_used", "never = frozenset()")


@defect("HOOK-018")
def parameters_without_an_optimizer_are_not_reduced() -> None:
    """Where gradients are reduced to their owners, those of parameters that the optimizer lacks stay local."""
    edit("if strangers else part.pieces", "if False else part.pieces")


@defect("HOOK-018")
def sums_of_owners_are_not_divided() -> None:
    """Gradients that were reduced to their owners are sums."""
    edit("elif not self._early:", "elif False:")


@defect("HOOK-018")
def each_rank_clips_by_its_own_norm() -> None:
    """In an overlapped step each rank clips by the norm of the gradients that it owns."""
    edit('all_reduce(shard.team, norms, "overlap: norms of the gradients").wait(watch)', "pass")


@defect("HOOK-018")
def answers_that_lie_apart_are_clipped_in_a_copy() -> None:
    """What a hook answers with is stepped with as it was before it was clipped, if it does not lie in one piece."""
    edit("return value if value.is_sparse else value.contiguous()", "return value")


@defect("HOOK-037", worlds=(3,))
def a_window_that_failed_half_way_is_not_sent() -> None:
    """Behind a backward that failed, only what the stepped buckets themselves would send is sent."""
    edit("in self._layout.parts if self._completed else ():", "in self._layout.parts[: self._completed]:")


@defect("HOOK-037", worlds=(2,))
def a_step_that_failed_half_way_is_not_sent() -> None:
    """Behind a step that failed, nothing is sent of the buckets that it was about to step."""
    edit("self._completed = due", "pass", within="_advance")
    edit("watch)\n    if last:", "watch)\n    self._completed = due\n    if last:", within="_advance")


@defect("HOOK-018")
def only_the_last_parameter_is_looked_for() -> None:
    """Whether parameters still lie in their flat tensors is asked of the last one only: others drift apart."""
    edit(
        "list(map(torch.Tensor.data_ptr, self._addresses)) != list(self._addresses.values())",
        "next(reversed(self._addresses)).data_ptr() != next(reversed(self._addresses.values()))",
    )


@defect("HOOK-018")
def never_used_parameters_are_looked_up_in_the_optimizers_order() -> None:
    """What a static graph never uses is told by the optimizer's numbers, which are not always those of the model."""
    edit(
        "for place, index in enumerate(bucket.spec.parameters) if index in never",
        "for place, index in enumerate(flight.part.members) if index in never",
    )


@defect("HOOK-018")
def states_are_cast_when_their_owners_change() -> None:
    """A state that moves to another owner is loaded there, which casts its tensors to the parameter's dtype."""
    edit("as_it_was(state, optim.state[parameter])", "optim.state[parameter]", within="_go_on_with")


@defect("HOOK-018", worlds=(2,))
def an_owner_leaves_out_its_own_gradient() -> None:
    """Between two hosts the owner steps with what has come from the other rank, without its own part."""
    edit("buffer.add_(arrived)", "buffer.copy_(arrived)")
