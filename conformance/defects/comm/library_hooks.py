"""Defects of area comm: built-in and library hooks."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from impl.ddp import hooks
from impl.ddp.hooks import builtin, debugging_hooks, default_hooks, powerSGD_hook, reduction

from ..planting import defect, edit, swap


@defect("COMM-030")
def any_optimizer_in_the_hook() -> None:
    """An optimizer that cannot step a single parameter is accepted."""
    edit("if not callable(getattr(functional_optim, _STEP_METHOD, None)):", "if functional_optim is None:")


@defect("COMM-017", "COMM-018")
def built_in_hooks_mixed_up() -> None:
    """The two built-in hooks stand for each other."""
    kinds, hooks = list(builtin._HOOKS), list(builtin._HOOKS.values())
    swap(builtin, "_HOOKS", dict(zip(kinds, hooks[::-1], strict=True)))


@defect("COMM-026")
def a_number_is_made_a_matrix_too() -> None:
    """PowerSGD asks a gradient of no dimension for its first one."""
    edit("(shape[0], math.prod(shape[1:])) if shape else (1, 1)", "(shape[0], math.prod(shape[1:]))")


@defect("COMM-026")
def compressed_at_the_least_rate() -> None:
    """PowerSGD also compresses a matrix that shrinks by the least rate and no more."""
    edit("* min_rate < rows * columns", "* min_rate <= rows * columns")


@defect("COMM-028", worlds=(3,))
def machine_groups_are_made_anew_in_each_move() -> None:
    """Ranks that come back to a group make another subgroup of their machine, in which those that stayed are not."""
    edit("not in state._made:", "not in state._made or state.subgroup is not state._made[team.group]:")


@defect("COMM-028")
def machine_groups_of_the_same_ranks_share_a_name() -> None:
    """A second group of a machine's ranks is named like the first."""
    edit("        made[members] += 1\n", "")


@defect("COMM-020")
def compressed_result_in_another_tensor() -> None:
    """The compression hooks do not write their result back into the bucket."""
    swap(default_hooks, "_restore", lambda buffer, done: done.value().to(buffer.dtype))


@defect("COMM-020")
def compression_divides_last() -> None:
    """In half precision the hooks of the library make the sum before the division, and it overflows."""
    edit("if divides_first(tensor.dtype):", "if False:", within="start_mean")
    edit("if not divides_first(tensor.dtype):", "if True:")


@defect("COMM-018", "COMM-020")
def compression_forgets_to_cast() -> None:
    """The compression hooks send the bucket in full precision."""
    edit("buffer.to(dtype)", "buffer.clone()", within="_compressed_mean")


@defect("COMM-028")
def each_rank_is_a_machine() -> None:
    """Without a subgroup, post-local SGD takes each rank for a machine of its own."""
    edit("if hosts[rank] == hosts[team.rank]", "if rank == team.rank")


@defect("COMM-023")
def enumeration_hands_power_sgd_the_group() -> None:
    """Registration by enumeration gives PowerSGD the bare group as its state."""
    def register(comm_hook_type: Any, model: Any, state: Any = None) -> None:
        value: partial[None] = comm_hook_type.value
        model.register_comm_hook(state, value.keywords["comm_hook"])

    swap(hooks, "register_ddp_comm_hook", register)


@defect("COMM-023")
def enumeration_keeps_the_state() -> None:
    """Registration by enumeration does not hand the state on."""
    edit("state=state", "state=None")


@defect("COMM-026")
def epsilon_replaces_the_norm() -> None:
    """With an epsilon, columns are divided by it and not by their norm."""
    edit("rest / (norm + epsilon)", "rest / (epsilon or norm)")


@defect("COMM-017")
def torchs_own_names_of_built_in_hooks_are_refused() -> None:
    """A member of torch's enumeration is not taken for the one of the same name here."""
    edit("found = member(BuiltinCommHookType, kind)", "found = kind if isinstance(kind, BuiltinCommHookType) else None")


@defect("COMM-017")
def hooks_ignore_results_in_futures() -> None:
    """Hooks of the library take the tensor that they sent for the result, wherever the process group has left it."""
    edit("pending.take(done.value())", "done.value()")


@defect("COMM-019", "COMM-017", "COMM-020")
def library_hooks_sum() -> None:
    """The library's hooks sum and do not divide."""
    swap(reduction, "divisor_of", lambda team, bucket: 1)


@defect("COMM-028", worlds=(4,))
def machines_groups_are_counted_whoever_is_in_them() -> None:
    """A machine's group is named by how many this rank has made, which its other members need not have made."""
    edit('name = f"joinery {made[members]} of {members}"', 'name = f"joinery {sum(made.values())} of {members}"')


@defect("COMM-028", worlds=(4,))
def local_sgd_always_averages() -> None:
    """Local averaging cannot be switched off."""
    edit("if not state.post_local_gradient_allreduce:", "if state.post_local_gradient_allreduce is None:")


@defect("COMM-028", worlds=(4,))
def local_sgd_starts_one_iteration_late() -> None:
    """Local averaging starts one iteration after it was asked to."""
    edit("local = state.iter >= state", "local = state.iter > state")


@defect("COMM-028", worlds=(4,))
def local_sgd_stays_global() -> None:
    """After the start gradients are still averaged over the whole group."""
    edit("allreduce_hook(state.subgroup, bucket)", "allreduce_hook(state.process_group, bucket)")


@defect("COMM-022")
def no_op_hook_communicates() -> None:
    """The no-op hook averages all the same."""
    swap(debugging_hooks, "noop_hook", default_hooks.allreduce_hook)


@defect("COMM-022")
def no_op_hook_empties_the_bucket() -> None:
    """The no-op hook returns zeros."""
    edit("completed(bucket.buffer())", "completed(bucket.buffer() * 0)", within="noop_hook")


@defect("COMM-030")
def optimizer_in_the_hook_is_a_type_error() -> None:
    """An optimizer that cannot step a single parameter is refused with a TypeError."""
    edit("raise ValueError(", "raise TypeError(", within="_OptimizerHookState.__init__")


@defect("COMM-030")
def optimizer_in_the_hook_steps_everything() -> None:
    """An optimizer in the hook steps all parameters, not only those that it was given."""
    edit("return self.params_to_optimize is None or parameter in self.params_to_optimize", "return True")


@defect("COMM-026")
def power_sgd_always_starts_warm() -> None:
    """The factors of the last iteration are taken up again although the user turned that off."""
    edit(" if self.state.warm_start else None", "")
    edit("if self.state.warm_start:", "if True:")


@defect("COMM-027")
def power_sgd_comes_back_without_a_group() -> None:
    """A loaded state has no process group."""
    edit("self.process_group = dist.group.WORLD", "self.process_group = None")


@defect("COMM-026")
def power_sgd_keeps_local_factors() -> None:
    """The second factor stays each rank's own."""
    def send(self: Any) -> Any:
        own = [q.clone() for q in self.qs]
        pending = right(self)
        self.own = own
        return pending

    def decompress(self: Any) -> torch.Tensor:
        done = finish(self)
        for group, p, q in zip(self.plan.groups, self.ps, self.own, strict=True):
            powerSGD_hook._write(group, self.gradients, torch.bmm(p, q.transpose(1, 2)))
        return done

    right = swap(powerSGD_hook._Exchange, "send_q_and_rest", send)
    finish = swap(powerSGD_hook._Exchange, "decompress", decompress)


@defect("COMM-027")
def power_sgd_loses_its_group_silently() -> None:
    """Saving a state without its group is not mentioned."""
    edit('logger.warning("PowerSGDState', 'logger.debug("PowerSGDState')


@defect("COMM-025")
def power_sgd_memory_and_start() -> None:
    """An early start is refused only if error feedback and warm start are both on."""
    edit("(use_error_feedback or warm_start)", "(use_error_feedback and warm_start)")


@defect("COMM-025")
def power_sgd_never_starts_early() -> None:
    """An early start is refused even where nothing is remembered."""
    edit("(use_error_feedback or warm_start) and start", "start")


@defect("COMM-026")
def power_sgd_never_starts_warm() -> None:
    """The factors of the last iteration are not taken up again."""
    edit("self.state.factors_of(self.bucket, self.plan) if self.state.warm_start else ", "")


@defect("COMM-026")
def power_sgd_rest_stays_local() -> None:
    """What is not compressed, biases for instance, is not averaged."""
    edit("self.gradients[position].copy_(slot)", "slot.copy_(self.gradients[position])")


@defect("COMM-026", "COMM-027")
def power_sgd_errors_go_by_their_place() -> None:
    """What was lost belongs to the place of a parameter in its bucket, whoever is there now."""
    edit('if hasattr(bucket, "names"):', "if False:")


@defect("COMM-026", "COMM-027")
def power_sgd_errors_are_lost_with_their_bucket() -> None:
    """What was lost is forgotten where the buckets are laid out anew."""
    edit("apart |= {", "_ = {")


@defect("COMM-026")
def power_sgd_remembers_damage() -> None:
    """An overflow stays in what PowerSGD remembers, and with it in all later iterations."""
    edit("memory.nan_to_num_(0, 0, 0)", "pass")


@defect("COMM-027")
def power_sgd_saves_its_group() -> None:
    """The state keeps its process group when it is saved."""
    edit(' if slot != "process_group"', "")


@defect("COMM-025")
def power_sgd_starts_at_one() -> None:
    """Compression with memory may start at iteration 1."""
    edit("start_powerSGD_iter <= 1", "start_powerSGD_iter < 1")


@defect("COMM-026")
def power_sgd_starts_one_iteration_early() -> None:
    """Compression starts one iteration before it was asked to."""
    edit(
        "state.iter < state.start_powerSGD_iter",
        "state.iter + 1 < state.start_powerSGD_iter",
        within="powerSGD_hook",
    )


@defect("COMM-029")
def quantised_gradients_summed() -> None:
    """Quantised gradients are summed and not divided."""
    edit(".div_(divisor)", "", within="_gather_and_average")


@defect("COMM-029")
def quantised_with_one_scale_for_all_ranks() -> None:
    """Every rank's bytes are read with the first rank's scale."""
    edit(
        "    for row in rows[1:]:",
        "    for row in rows[1:]:\n"
        "            row = torch.cat([rows[0][: layout.scale_bytes], row[layout.scale_bytes :]])",
    )


@defect("COMM-029")
def quantised_without_zero_point() -> None:
    """Quantised values are read as if the smallest were zero."""
    edit("levels.sub_(zero_point.unsqueeze(1)).mul_", "levels.mul_")


@defect("COMM-029")
def range_of_8_bits_leaves_zero_out() -> None:
    """The range of a channel begins at its least value although all of them are positive."""
    edit("values.amin(dim=1).clamp_(max=0)", "values.amin(dim=1)")


@defect("COMM-021")
def wrapped_hook_sees_full_precision() -> None:
    """A compression wrapper runs the hook on the bucket as it is."""
    edit("bucket.set_buffer(buffer.to(dtype))", "bucket.set_buffer(buffer.clone())")


@defect("COMM-024", worlds=(4,))
def low_rank_over_the_whole_world() -> None:
    """PowerSGD without a group reduces over the whole world, whatever the group of the model."""
    edit(
        "self.team = team_of(state.process_group, bucket)",
        "self.team = team_of(state.process_group or torch.distributed.group.WORLD, bucket)",
    )


@defect("COMM-026")
def factors_of_all_buckets_in_one_place() -> None:
    """PowerSGD remembers the factors of one bucket for all."""
    edit("q_memory_dict[self.bucket.index()]", "q_memory_dict[0]")


@defect("COMM-029")
def eight_bits_for_sparse_buckets() -> None:
    """Hooks of eight bits quantise sparse gradients, which have no place for that."""
    edit("if buffer.is_sparse or not buffer.numel():", "if not buffer.numel():")


@defect("COMM-026")
def the_unit_of_a_dependent_column_is_two() -> None:
    """PowerSGD replaces a factor's column that depends on the others by one of length two."""
    edit("other / _norm(other)", "2 * other / _norm(other)")


@defect("COMM-001")
def only_flat_results_reach_the_views() -> None:
    """A hook's result of another shape than the bucket's does not reach gradients that are views of it."""
    edit("if result is not self.flat:", "if result is not self.flat and result.dim() == 1:", within="_deliver_views")


@defect("COMM-016")
def views_ignore_where_a_part_begins() -> None:
    """A bucket whose buffer was replaced by a part of a larger tensor shows gradients from that tensor's beginning."""
    edit("views_like(views, flat, buffer.reshape(-1))", "views_like(views, buffer, buffer)")


@defect("COMM-029")
def eight_bits_of_empty_buckets() -> None:
    """Hooks of eight bits look for the extremes of a bucket without elements."""
    edit("if buffer.is_sparse or not buffer.numel():", "if buffer.is_sparse:")


@defect("COMM-025")
def iteration_that_ends_with_a_table_is_not_counted() -> None:
    """PowerSGD counts no iteration whose last bucket is a sparse gradient."""
    edit(
        "    state.maybe_increase_iter(bucket)\n    return allreduce_hook",
        "    if not bucket.buffer().is_sparse:\n        state.maybe_increase_iter(bucket)\n    return allreduce_hook",
    )


@defect("COMM-028", worlds=(3,))
def machines_are_groups_of_the_whole_world() -> None:
    """Without a subgroup, post-local SGD makes the machine's group as all ranks of the world would have to."""
    edit(
        "new_local_group(here)",
        "dist.new_group(here, use_local_synchronization=len(here) == dist.get_world_size())",
    )


@defect("COMM-028", worlds=(3,))
def machines_are_places_in_the_group() -> None:
    """Without a subgroup, post-local SGD takes the places of a machine's ranks in their group for global ranks."""
    edit("[team.global_rank(GroupRank(rank)) for rank", "[rank for rank", within="_machine_group")


@defect("COMM-026")
def errors_come_after_the_matrices() -> None:
    """PowerSGD stacks the gradients before it adds what was lost, so that this is lost again where they are copies."""
    edit("    self.matrices = [_matrices(group, self.gradients) for group in self.plan.groups]\n", "")
    edit(
        "    self.error: torch.Tensor | None = None",
        "    self.matrices = [_matrices(group, gradients) for group in plan.groups]\n"
        "    self.error: torch.Tensor | None = None",
    )


@defect("COMM-030")
def optimizer_in_the_hook_records_a_graph() -> None:
    """An optimizer in the hook steps as the thread does on which the future ends, which may record a graph."""
    edit("@torch.no_grad()", "", within="_hook_then_optimizer")


@defect("COMM-001")
def optimizer_in_the_hook_reads_the_bucket() -> None:
    """An optimizer in the hook steps with what the bucket holds, whatever the hook's future does."""
    edit("if averaged is not buffer and not buffer.is_sparse:", "if False:")


@defect("DDP-034")
def factors_outlive_a_cast() -> None:
    """PowerSGD goes on with what it remembers in the precision that the model had before a cast."""
    edit("tensor.dtype == like.dtype", "tensor.dtype.is_complex == like.dtype.is_complex")


@defect("COMM-026")
def errors_stay_with_their_bucket() -> None:
    """What PowerSGD has lost is added to whatever the bucket of the same number holds now."""
    edit(" and known.get(index, parts) == parts:", ":")


@defect("COMM-020")
def hooks_are_shown_complex_numbers() -> None:
    """A hook is shown complex buckets as they are, and a cast to a narrower dtype drops what is imaginary."""
    edit("* (2 if self.spec.dtype.is_complex else 1)", "")
    edit("if not contribution.is_complex():", "if contribution.layout is torch.strided:")
    edit("if not self.spec.dtype.is_complex:", "if shown.layout is torch.strided:")


@defect("COMM-026", worlds=(1,))
def power_sgd_follows_autocast() -> None:
    """PowerSGD computes in the low dtype of the autocast in which the program runs backward."""
    edit("return torch.autocast(buffer.device.type, enabled=False)", "return torch.no_grad()")


@defect("COMM-028", worlds=(3,))
def groups_of_some_ranks_are_named_by_how_many_each_rank_is_in() -> None:
    """Ranks that are in unequal numbers of groups look for each other under different names."""
    edit("cls.torchs(*args, **kwargs) if name is None else name", "cls.torchs(*args, **kwargs)")


@defect("COMM-029")
def channels_have_one_scale() -> None:
    """The hook that quantises by channel takes the whole bucket for one."""
    edit("(process_group, bucket, bucket_size)", "(process_group, bucket, max(bucket_size, bucket.buffer().numel()))")


@defect("COMM-028", "DDP-162", worlds=(3,))
def the_machines_group_is_found_once() -> None:
    """Without a subgroup, post-local SGD goes on with that of the model's former group."""
    edit("in state._made.values()", "in ()")


@defect("COMM-020")
def bfloat16_is_compressed_to_float16() -> None:
    """The hook that compresses to bfloat16 compresses to float16, whose range is small."""
    edit("_compressed_mean(torch.bfloat16,", "_compressed_mean(torch.float16,")


@defect("COMM-021")
def bfloat16_is_wrapped_in_float16() -> None:
    """The wrapper that compresses to bfloat16 compresses to float16."""
    edit("_call_compressed(torch.bfloat16,", "_call_compressed(torch.float16,")


@defect("COMM-026")
def rounding_is_taken_for_a_direction() -> None:
    """PowerSGD divides what rounding has left of a column that depends on the others by its own length."""
    edit("is_dependent = norm <= rounding * _norm(column)", "is_dependent = norm == 0")


@defect("COMM-026")
def dependent_columns_become_any_axis() -> None:
    """PowerSGD replaces a column that depends on the others by an axis, which need not be upright on them."""
    edit("other = _orthogonal_part(axis, done)", "other = axis")


@defect("DDPJ-014")
def a_group_as_the_state_of_torchs_hook_is_another_group() -> None:
    """Where the state of torch's own hook is a group itself, the hook is taken to work in the whole world."""
    edit('getattr(state, "process_group", state)', 'getattr(state, "process_group", None)')


@defect("DDPJ-014")
def how_a_hook_divides_is_asked_after_it_has_counted() -> None:
    """In its last iteration before the start, torch's post-local hook is taken for one that does not average."""
    edit(
        "group = averaged_over(hook, state)  # asked before the hook counts the iteration\n"
        "    future = hook(state, bucket)\n",
        "future = hook(state, bucket)\n    group = averaged_over(hook, state)\n",
    )


@defect("COMM-001")
def optimizer_in_the_hook_asks_for_gradients_at_the_end() -> None:
    """An optimizer in the hook steps with the views that the bucket has when the hook has ended."""
    edit("[averaged] if buffer.is_sparse else gradients", "[averaged] if buffer.is_sparse else bucket.gradients()")


@defect("COMM-029")
def eight_bits_hide_an_overflow() -> None:
    """A channel that holds an infinite number or none is sent with a scale of one, and the damage does not show."""
    edit(" - low) / _LEVELS", " - low) / _LEVELS\n    scale = scale.nan_to_num(1, 1)")


@defect("COMM-029")
def eight_bits_take_doubles_for_floats() -> None:
    """Hooks of eight bits compute their scales in single precision, where small doubles are zero."""
    edit("torch.float64 if buffer.dtype == torch.float64 else torch.float32", "torch.float32")


@defect("COMM-016")
def optimizer_in_the_hook_is_shown_pairs() -> None:
    """An optimizer in the hook is given two real numbers for each complex one."""
    edit("complex_again(gradient) if shown_real else gradient", "gradient")


@defect("COMM-016")
def optimizer_in_the_hook_steps_tables_with_local_rows() -> None:
    """An optimizer in the hook steps a sparse table with this rank's own gradient."""
    edit("[averaged] if buffer.is_sparse else gradients", "gradients")


@defect("COMM-020")
def complex_rows_take_one_sparse_dimension_for_granted() -> None:
    """A hook is shown a complex gradient that is sparse in several dimensions in a shape for one."""
    edit("(*rows.shape[: rows.sparse_dim()], *values.shape[1:])", "(rows.shape[0], *values.shape[1:])")


@defect("COMM-028", worlds=(4,))
def machine_groups_of_equal_size_share_a_name() -> None:
    """The groups of two machines are named alike where they have equally many ranks, and meet each other."""
    edit('name = f"joinery {made[members]} of {members}"', 'name = f"joinery {made[members]} of {len(members)}"')


@defect("COMM-030")
def an_empty_list_of_parameters_means_all() -> None:
    """An optimizer in the hook that was given no parameters to step steps all."""
    edit("None if params is None else set(params)", "set(params) if params else None")


@defect("COMM-026")
def errors_of_what_is_compressed_no_more_stay() -> None:
    """What PowerSGD has lost of a gradient arrives again and again once the gradient is not compressed any more."""
    edit("    self.error.zero_()\n", "")


@defect("COMM-026")
def factors_of_whatever_was_in_the_bucket_are_taken() -> None:
    """A warm start goes on with the factors that the bucket of this number had, of whichever parameters they are."""
    edit("self._factors.remembered(", "type(self._factors)().remembered(")


@defect("COMM-026", "COMM-027")
def factors_stay_behind_with_their_bucket() -> None:
    """Where the buckets are laid out anew, as after a restart, the warm start begins with random factors again."""
    edit("if index in known:", "if index in known and numel == like.numel():", within="_ByParameter.remembered")


@defect("COMM-026")
def factors_of_another_rank_of_approximation_are_taken() -> None:
    """The warm start takes the last factors although their number has changed."""
    edit("if kept.shape == parts[name][0]]", "if kept.shape[0] == parts[name][0][0]]")


@defect("COMM-026")
def a_bucket_has_more_columns_than_rows() -> None:
    """The batched PowerSGD makes of a tiny bucket as many columns as it is told, more than its matrix has rows."""
    edit("MatrixGroup((0,), side, side, min(rank, side))", "MatrixGroup((0,), side, side, rank)")


@defect("COMM-027")
def one_bucket_keeps_its_errors() -> None:
    """Where parameters go to other buckets, those of all but the last lose what has not been sent of them."""
    edit("apart |= {name", "apart = {name")


@defect("COMM-016")
def foreign_buckets_are_asked_for_names() -> None:
    """PowerSGD asks every bucket for its parameters' names, of which no document speaks."""
    edit('if hasattr(bucket, "names"):', "if bucket is not None:")


@defect("COMM-016")
def foreign_buckets_are_divided_by_one() -> None:
    """A hook of the library takes a bucket that knows no divisor for one that is to be summed."""
    edit("return team.size\n    is_own", "return 1\n    is_own")


@defect("COMM-026")
def sparse_buckets_are_compressed() -> None:
    """Once compression has begun, PowerSGD takes sparse gradients for matrices, too."""
    then = ":\n        return _plain(state, bucket)\n    gradients = "
    edit(f" or bucket.buffer().is_sparse{then}", then)


@defect("COMM-026")
def empty_bucket_is_a_square() -> None:
    """The square of a bucket without elements has sides of one element, and there is nothing to fill it with."""
    edit("if numel == 0:", "if numel < 0:")


@defect("COMM-026", worlds=(2,))
def third_column_is_orthogonal_to_the_second_only() -> None:
    """With a number against division by zero a column is made orthogonal to the one before it, not to all."""
    edit("done, column = matrices[:, :, :index],", "done, column = matrices[:, :, max(index - 1, 0) : index],")


@defect("COMM-019", worlds=(3,))
def optimizers_in_the_hook_are_given_the_parameters_dtype() -> None:
    """An optimizer in the hook is given gradients in the dtype of the parameters, which may be coarser than theirs."""
    edit("given = given.to(gradient_dtype(parameter))", "given = given.to(parameter.dtype)")


@defect("COMM-020")
def sparse_halves_are_divided_last() -> None:
    """Sparse gradients that a hook has made narrower are added up before they are divided."""
    edit("first = divides_first(tensor.dtype)", "first = False", within="reduction.mean")


@defect("COMM-026")
def any_whole_number_is_a_seed() -> None:
    """A seed of PowerSGD that is no 32-bit word is taken."""
    edit("not _is_whole(seed) or not 0 <= seed < 2**32", "not _is_whole(seed) and not 0 <= seed < 2**32")


@defect("COMM-028")
def torchs_local_hook_is_taken_for_an_average() -> None:
    """What torch's post-local hook leaves local is scaled by the ranks that have joined, as averages are."""
    edit("return state.subgroup if state.post_local_gradient_allreduce else None", "return state.subgroup")


@defect("COMM-029")
def channels_are_a_little_shorter_than_asked_for() -> None:
    """Eight-bit channels have another length by default than the documented one."""
    edit("bucket_size: int = 512", "bucket_size: int = 511")


@defect("JOIN-039")
def hooks_on_other_groups_wait_without_looking_out() -> None:
    """PowerSGD on a group of its own does not learn that a peer has left the context by an error."""
    edit("pending.wait(watch_of(self.bucket))", "pending.wait()")


@defect("COMM-026")
def a_seed_draws_other_factors_than_in_torch() -> None:
    """The generator of PowerSGD's seeds is started by another recurrence: the same on every rank, and not torch's."""
    edit("(1812433253 * (words[-1]", "(1812433257 * (words[-1]")


@defect("COMM-026")
def factors_begin_as_long_as_they_were() -> None:
    """PowerSGD starts from the last factors as they are, so that products grow with the square of the gradients."""
    edit("orthogonalize(q, self.state.orthogonalization_epsilon)", "pass")
