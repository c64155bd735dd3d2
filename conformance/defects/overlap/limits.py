"""Defects of area overlap: known weaknesses of the overlap."""

from __future__ import annotations

from ..planting import defect, edit


@defect("HOOK-046", "DDPJ-028")
def accumulation_is_reduced() -> None:
    """Backwards under no_sync are reduced like all others, and stepped in the middle of an accumulation."""
    edit("self.require_backward_grad_sync = False", "self.require_backward_grad_sync = before")


@defect("HOOK-045")
def a_moved_pair_is_of_two_groups_until_it_steps() -> None:
    """An overlapping optimizer whose model has been given another group tells a context of the former one."""
    edit("overlap.follow(ddp)", "pass")


@defect("HOOK-045", worlds=(3,))
def a_move_before_the_first_step_is_not_followed() -> None:
    """An overlapping optimizer whose model is given another group before anything was stepped stays on the first."""
    edit("self._follows_ddp and self._team", "self._follows_ddp and self._plan_seen is not None and self._team")


@defect("HOOK-042")
def joined_rank_steps_with_zeros_for_what_is_kept() -> None:
    """A joined owner of a parameter that nobody uses, of which live ranks keep a gradient, steps it with zeros."""
    edit("None if held is None else held.to(device)", "None if held is None else torch.zeros_like(held)")


@defect("HOOK-042")
def joined_rank_steps_with_a_gradient_it_kept() -> None:
    """A parameter that nobody uses is stepped with the joined owner's last gradient, whatever live ranks keep."""
    edit("    if not session.shadowing:\n        return kept", "    return kept", within="share_kept")


@defect("HOOK-043")
def new_tensor_of_the_hook_is_ignored() -> None:
    """Steps read the bucket instead of what the wrapped hook's future holds."""
    edit("if flat is self.bucket.flat else", "if self.bucket.flat is not None else", within="views_of")


@defect("HOOK-042")
def unused_parameters_are_stepped_with_zeros() -> None:
    """A parameter that no rank used is stepped with zeros instead of being left alone."""
    edit("untouched[place] if place in untouched else views[place]", "views[place]")


@defect("HOOK-043")
def result_is_read_without_its_stride() -> None:
    """What the wrapped hook's future holds is stepped as if its elements were neighbours."""
    edit("bucket.views_of(flat.contiguous().view(-1))", "bucket.views_of(flat.as_strided((flat.numel(),), (1,)))")


@defect("HOOK-043")
def result_is_ignored_where_gradients_are_views() -> None:
    """Where gradients lie in their bucket, steps read the bucket and not what the wrapped hook's future holds."""
    edit("flat is self.bucket.flat else", "flat is self.bucket.flat or self.bucket.as_view else", within="views_of")


@defect("DDPJ-030")
def a_joined_rank_is_refused_what_it_cannot_clear() -> None:
    """A joined rank, too, is refused a gradient of what has been left out of the reductions since."""
    edit("if self._left_out and not (session is not None and session.shadowing):", "if self._left_out:")


@defect("JOIN-015")
def an_optimizer_on_another_group_names_its_models() -> None:
    """An overlapping optimizer whose model is on another group of the same ranks names the model's as its own."""
    edit("if ddp.process_group is overlap.shard.team.group:", "if True:")


@defect("HOOK-018")
def a_layout_that_was_refused_counts_as_made() -> None:
    """Where the first layout was refused, the next backward fails for want of one."""
    layout = "        self._lay_out(ddp)\n        self._plan_seen = reducer.plan\n"
    edit(layout, "        self._plan_seen = reducer.plan\n        self._lay_out(ddp)\n")


@defect("HOOK-042")
def zeros_of_what_is_left_out_are_forgotten() -> None:
    """What is left out of the reductions and has gradients of zeros is neither stepped nor refused."""
    edit("if self._left_out and not (session is not None and session.shadowing):", "if False:")


@defect("HOOK-018")
def strangers_to_the_model_are_never_stepped() -> None:
    """A parameter of the optimizer that the model does not reduce is accepted, and no bucket brings its gradient."""
    edit("    if missing:\n", "    if len(missing) > 6:\n", within="_check")


@defect("HOOK-045")
def a_checkpoint_between_two_groups_is_a_mixture() -> None:
    """What is consolidated between a move of the model and the next backward is gathered where no one has it."""
    edit("session is not None and session.team.group is not self.process_group", "False")


@defect("DDPJ-014")
def torchs_hooks_divide_by_their_group_in_a_warm_up() -> None:
    """In a warm-up a hook of torch's divides by the size of its group, whatever the context was asked for."""
    edit("return call_hook(hook, state, bucket)", "return hook(state, bucket)")


@defect("HOOK-018")
def what_is_tied_later_is_overlapped() -> None:
    """Where parameters share memory is asked at the construction only."""
    edit("check_own_memory(self._shard.parameters())", "pass", within="_lay_out")


@defect("HOOK-018")
def what_travels_alone_may_be_tied() -> None:
    """Only parameters that lie in flat tensors are looked after."""
    edit("self._moved.note([each for", "list([each for", within="__init__")


@defect("COMM-014")
def answers_may_be_longer_in_an_overlapped_step() -> None:
    """A hook's result that is longer than the bucket is taken, and its end dropped."""
    edit("result.numel() != numel", "result.numel() < numel")


@defect("COMM-014")
def answers_that_are_no_futures_fail_by_themselves() -> None:
    """In an overlapped step what a hook returns is taken for a future, whatever it is."""
    edit('for name in ("wait", "then", "done", "value")', "for name in ()", within="WrappedReduction.__init__")


@defect("HOOK-018")
def a_norm_of_order_nought_is_taken() -> None:
    """Gradients may be clipped by a norm of the order 0, which counts them."""
    edit("if not self.norm_type > 0:", "if self.norm_type < 0:", within="__post_init__")


@defect("HOOK-018")
def a_warm_up_may_do_without_a_hook() -> None:
    """Who gives no hook to wrap may ask for a warm-up, in which nothing could be reduced."""
    edit("if warm_up_iterations and hook is None:", "if False:")


@defect("HOOK-018")
def other_hooks_are_replaced() -> None:
    """With reduce-scatter a hook that compresses is taken, and never called."""
    edit('if hook is not None and getattr(hook, "__name__", "") != "allreduce_hook":', "if False:")


@defect("HOOK-018")
def flags_are_what_python_makes_of_them() -> None:
    """The text "no" turns reduce-scatter on."""
    edit(
        'flag("shard_buckets", shard_buckets), flag("reduce_scatter", reduce_scatter)',
        "bool(shard_buckets), bool(reduce_scatter)",
    )
