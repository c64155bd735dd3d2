"""Defects of area overlap: counts, rebuilt buckets, and gradients that are reduced to their owners."""

from __future__ import annotations

from ..planting import defect, edit


@defect("HOOK-018")
def group_counts_are_lost_when_buckets_settle() -> None:
    """When owners move, entries that the optimizer's constructor sets in its groups begin anew."""
    edit("    take_settings(settings, self.exposed.param_groups)\n", "", within="_go_on_with")
    edit("further)\n    take_settings(settings, self.exposed.param_groups)", "further)", within="_go_on_with")


@defect("HOOK-018")
def tensors_begin_anew_with_another_owner() -> None:
    """What an optimizer counts in a tensor of its own begins anew where owners move."""
    edit("return not value.requires_grad", "return False", within="_may_count")


@defect("HOOK-018")
def shared_state_counts_the_parts_of_a_step() -> None:
    """What an optimizer counts in state that belongs to no parameter begins anew where owners move."""
    edit("    optim.state.update(shared)\n", "", within="take_over")


@defect("HOOK-018")
def flags_begin_anew_with_another_owner() -> None:
    """A flag that an optimizer turns in each step begins anew where owners move."""
    edit("isinstance(value, (Number, str))", "isinstance(value, (Number, str)) and type(value) is not bool")


@defect("HOOK-018")
def lists_begin_anew_with_another_owner() -> None:
    """What an optimizer counts in a list of its own begins anew where owners move."""
    edit("in (list, tuple, set, frozenset, deque)", "in (tuple, set, frozenset, deque)")


@defect("HOOK-018")
def dicts_begin_anew_with_another_owner() -> None:
    """What an optimizer counts in a dict of its own begins anew where owners move."""
    edit("in _BY_KEY:", "in _BY_KEY - {dict}:", within="_may_count")


@defect("HOOK-018")
def counts_are_lost_with_another_group() -> None:
    """When owners move, the new local optimizer begins to count what it keeps in its attributes from 0."""
    edit("    take_over(counters, optim)\n", "")


@defect("HOOK-018")
def reduced_to_owners_by_the_whole_group() -> None:
    """Gradients that are reduced to their owners are divided by the number of all ranks, whoever has joined."""
    edit("self._divisor = bucket.divisor()", "self._divisor = team.size", within="__init__")


@defect("HOOK-018")
def reduced_to_a_global_rank() -> None:
    """Gradients that are reduced to their owners go to the global rank of that number."""
    edit("group_dst=owner", "dst=int(owner)")


@defect("HOOK-018")
def partial_sums_are_left_as_gradients() -> None:
    """Ranks that do not own a gradient show what the reduction left on them instead of zeros."""
    edit("buffer.zero_()  # what a reduction leaves on other ranks is no gradient", "pass")


@defect("HOOK-018")
def pieces_in_runs_keep_their_first_run_only() -> None:
    """Of a piece that lies in several runs only the first is reduced to its owner."""
    edit("for run in piece.runs()", "for run in piece.runs()[:1]")


@defect("HOOK-039")
def shards_stay_with_the_expected_buckets() -> None:
    """When buckets turn out otherwise than expected, owners of pieces stay those of the expected buckets."""
    edit(
        "if plan.owners != self._shard.plan.owners:",
        "if plan.owners != self._shard.plan.owners and not self._overlap.info.shard_buckets:",
    )


@defect("HOOK-018")
def parts_step_with_the_settings_of_the_iteration_before() -> None:
    """Settings that the program changes reach the parts of a step an iteration late."""
    edit(
        "    self.shard.take_changes()\n",
        "    now = [dict(group) for group in self.shard.exposed.param_groups]\n"
        "    self.shard.take_changes()\n"
        "    for group, earlier in zip(self.shard.optim.param_groups, getattr(self, '_earlier', now), strict=True):\n"
        "        group.update({**earlier, 'params': group['params']})\n"
        "    self._earlier = now\n",
        within="Overlap.begin",
    )


@defect("HOOK-018")
def moved_storage_is_overlooked_between_iterations() -> None:
    """A parameter that is given other storage is not sent any more: its bucket's flat tensor is."""
    edit("or self._moved.stale", "", within="Layout.stale")


@defect("HOOK-012")
def a_static_graph_never_steps() -> None:
    """With a static graph no bucket is ever stepped, because its first iteration reduces everything at its end."""
    edit("if gradients or", "if gradients and not self._live_ddp().static_graph or", within="OverlapSession._step")


@defect("HOOK-012")
def a_static_graph_waits_for_a_fifth_iteration() -> None:
    """With a static graph updates begin one iteration later than the documents allow."""
    edit(
        "if gradients or",
        "ddp = self._live_ddp()\n    if gradients and (not ddp.static_graph or ddp.reducer.facts.reductions > 3) or",
        within="OverlapSession._step",
    )


@defect("HOOK-008")
def model_is_held_from_its_first_bucket_on() -> None:
    """The hook holds on to the model as soon as it has seen a bucket of it."""
    edit("    ddp, index = self._live_ddp(), bucket.index()\n", "    ddp, index = self._live_ddp(), bucket.index()\n"
         "    self._held = ddp\n")


@defect("HOOK-021")
def calling_step_calls_the_closure() -> None:
    """In overlap mode step() does nothing but call the closure that it is given, for its loss."""
    edit(
        "        return None\n",
        "        if closure is not None:\n            closure()\n        return None\n",
        within="step",
    )


@defect("HOOK-024")
def later_settings_reach_the_first_group_only() -> None:
    """In overlap mode the first group's settings are read in each iteration, those of others when it begins."""
    edit(
        "    self.shard.take_changes()\n",
        "    before = [dict(group) for group in self.shard.optim.param_groups[1:]]\n"
        "    self.shard.take_changes()\n"
        "    for group, settings in zip(self.shard.optim.param_groups[1:], before, strict=True):\n"
        "        group.update(settings)\n",
        within="Overlap.begin",
    )


@defect("HOOK-039")
def pieces_are_filled_from_the_end() -> None:
    """A bucket is cut from its end, so that the first piece is what remains."""
    edit(
        "    return [tuple(piece) for piece in pieces]\n",
        "    return [tuple(piece) for piece in pieces][::-1]\n",
    )


@defect("HOOK-038")
def round_robin_goes_on_from_plan_to_plan() -> None:
    """Owners in turn begin with the rank after the last one of the plan before."""
    edit(
        "place % world for place, bucket in enumerate(buckets)",
        "(place + (buckets[0][0] != len([i for b in buckets for i in b]) - 1)) % world "
        "for place, bucket in enumerate(buckets)",
    )


@defect("HOOK-018")
def kept_gradients_of_unused_parameters_are_ignored() -> None:
    """A gradient that the user gave a parameter which a static graph never uses is not stepped with."""
    edit(
        "kept = {place: bucket.kept_gradient(place) for place in unused}",
        "kept = {place: flight.use and bucket.kept_gradient(place) for place in unused}",
    )


@defect("HOOK-018", "HOOK-047")
def kept_gradients_are_clipped_in_copies_where_ranks_have_run_out() -> None:
    """Where joined ranks are told of kept gradients, a live rank clips what it has told, and not what it holds."""
    edit("not session.shadowing:\n        return kept", "received is sent:\n        return kept", within="share_kept")


@defect("HOOK-018")
def kept_gradients_are_not_clipped() -> None:
    """A gradient that nobody renewed is clipped on no rank."""
    edit("flight.kept = {place: gradient for place, gradient in untouched.items() if gradient is not None}", "pass")


@defect("HOOK-018")
def gradients_of_others_are_clipped() -> None:
    """Clipping scales whole buckets, with the gradients of parameters that the optimizer does not have."""
    edit("if min(members) >= 0:", "if max(members) >= 0:", within="_of_the_optimizer")


@defect("HOOK-018")
def kept_gradients_of_others_are_clipped() -> None:
    """Clipping scales what parameters keep that nobody used and that the optimizer does not have."""
    edit("for place in own if place in flight.kept]", "for place in flight.kept]", within="_of_the_optimizer")


@defect("HOOK-018")
def kept_gradients_beside_others_are_not_clipped() -> None:
    """Where a bucket holds parameters of others, a gradient that nobody renewed is not clipped."""
    edit("for place in own if place in flight.kept]", "for place in ()]", within="_of_the_optimizer")


@defect("HOOK-018", "COMM-021")
def owners_step_with_what_a_wrapper_has_lowered() -> None:
    """A reduction to owners steps with gradients in the dtype of a hook around it, which an optimizer refuses."""
    edit("return self._flat.to(self._dtype)", "return self._flat", within="OwnerReduction.result")


@defect("HOOK-018", "COMM-021")
def complex_gradients_of_owners_stay_local_in_a_wrapper() -> None:
    """What a hook around a reduction to owners gets is what it has shown, which complex gradients are a copy of."""
    edit("self._dtype = part.bucket.spec.dtype", "self._dtype, self._shown = part.bucket.spec.dtype, bucket.buffer()")
    edit("torch.view_as_real(self._flat).flatten() if self._flat.is_complex() else self._flat)", "self._shown)")


@defect("HOOK-018", "HOOK-047")
def parameters_of_another_optimizer_are_watched() -> None:
    """Where an optimizer's parameters lie is asked of all in its buckets, which another one may move."""
    edit("for place in part.of_the_optimizer]", "for place in range(len(part.members))]")


@defect("HOOK-018")
def gradients_set_aside_outlive_their_backward() -> None:
    """What a parameter that nobody used held once is stepped with again where its gradient has been cleared since."""
    edit("    self._set_aside.clear()\n", "", within="Bucket.reset")
