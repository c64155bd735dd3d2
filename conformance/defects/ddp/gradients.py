"""Defects of area ddp: gradient averaging and buckets."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from impl.comm import averaging, flat
from impl.comm.pending import Pending, Watch
from impl.ddp import buckets, kernels, params
from impl.ddp.iteration import Iteration
from impl.ddp.pending_backward import PendingBackward
from impl.ddp.reducer import Reducer
from impl.ddp.usage import Usage

from ..planting import defect, edit, swap


@defect("DDP-049")
def only_the_first_to_be_thawed_are_averaged() -> None:
    """Of layers that are thawed one after the other, all but the first keep local gradients."""
    edit("[item for item in self._frozen if not item.trained]", "[]")


@defect("DDP-049")
def what_has_failed_counts_what_comes_with_others() -> None:
    """Behind a backward that has raised, gradients that come with another model's are counted as its own."""
    edit("if self.raised and self._pending.noticeable:", "if False:", within="Reducer.arrived")
    edit("if self.raised and self._pending.noticeable:", "if False:", within="Reducer.should_be_full")


@defect("DDP-062")
def accumulated_arrivals_are_forgotten_in_the_first_bucket_only() -> None:
    """Arrivals under ``no_sync`` stay noted in all buckets but the first, and stand for gradients that are
    missing."""
    edit("for bucket in self._queue.buckets:", "for bucket in self._queue.buckets[:1]:", within="forget_noted")


@defect("DDP-050")
def averages_are_recorded_where_graphs_are_kept() -> None:
    """Where a backward keeps its graph, what happens in the buckets becomes a part of it."""
    for function in ("_start_full_buckets", "_complete"):
        edit("torch.no_grad() if torch.is_grad_enabled() else _NO_CONTEXT", "_NO_CONTEXT", within=function)


@defect("DDP-053")
def buckets_in_order_of_registration() -> None:
    """The first buckets hold the parameters that were registered first."""
    edit(", reverse=True)", ")")
    edit("range(len(specs) - 1, -1, -1)", "range(len(specs))")


@defect("DDP-066")
def casting_brings_removed_hooks_back() -> None:
    """Casting the model watches its gradients again although the hooks were removed."""
    edit("elif self._arrivals.watching:", "else:", within="watch_anew")
    edit("if self._arrivals.watching:", "if True:", within="begin_noting")


@defect("DDP-062", "DDP-060")
def an_evaluation_complains() -> None:
    """A forward without gradients complains of what the last backward has left out, and ends one that goes on."""
    edit("if recorded:\n        reducer.check_finished()", "if True:\n        reducer.check_finished()")


@defect("DDP-062")
def complains_at_the_end_of_backward() -> None:
    """A backward that leaves gradients out raises at its end, though a further one may complete it."""
    edit(
        "    return bool(self.readiness.missing())",
        "    if self.readiness.missing():\n        self._armed = None\n        self.check_finished()\n"
        "    return bool(self.readiness.missing())",
    )


@defect("DDP-062")
def complains_of_what_came() -> None:
    """The error about missing gradients lists the parameters that did receive one."""
    edit(
        "missing, started, static = self.readiness.missing()",
        "missing, started, static = [i for i, need in enumerate(self.readiness._need) if need <= 0]",
    )


@defect("DDP-062")
def complaints_are_forgotten_where_the_model_changes() -> None:
    """Where parameters are thawed or cast before the next forward, nobody hears of what the last backward left out."""
    edit("if self._left_open:", "if False:", within="start_over")


@defect("DDP-049", "DDP-050")
def divides_by_one_too_many() -> None:
    """The average divides by one rank too many."""
    right = swap(Iteration, "divisor", lambda self: right(self) + 1)
    swap(Iteration, "known_divisor", lambda self: right(self) + 1)


@defect("DDP-051", worlds=(3,))
def divides_by_the_world() -> None:
    """In a subgroup the sum is divided by the size of the world."""
    swap(Iteration, "divisor", lambda self: dist.get_world_size())
    swap(Iteration, "known_divisor", lambda self: dist.get_world_size())


@defect("DDP-052")
def dtypes_share_buckets() -> None:
    """Parameters of different dtypes travel in one bucket, in the dtype of its first."""
    edit("kind = (spec.dtype, spec.device)", "kind = (spec.device, spec.device)")


@defect("DDP-054")
def each_rank_has_its_own_bucket_sizes() -> None:
    """Ranks that were given different bucket sizes each lay out their own buckets."""
    edit("if any(row[:-_NUMBER] != rows[0][:-_NUMBER] for row in rows):", "if False:")


@defect("DDP-054", "DDPJ-031")
def each_rank_rebuilds_its_own_order() -> None:
    """Each rank lays its buckets out in the order in which its own gradients came, instead of the source's."""
    edit("self.rebuild(order)", "self.rebuild(self.proposed_order())", within="replan")


@defect("DDP-057")
def embedding_bags_taken_for_dense() -> None:
    """Sparse gradients are expected of Embedding, not of EmbeddingBag."""
    edit("(nn.Embedding, nn.EmbeddingBag)", "nn.Embedding")


@defect("DDP-054")
def first_iteration_in_small_buckets() -> None:
    """The first iteration already uses buckets of the final size."""
    edit("expected_plan(specs, UNLIMITED)", "expected_plan(specs, caps)")


@defect("DDP-058", "DDP-100", "DDP-105")
def frozen_parameters_get_zeros() -> None:
    """After a backward every parameter without a gradient has one of zeros."""
    def deliver(self: Reducer) -> None:
        for parameter in self.module.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        right(self)

    right = swap(Reducer, "_delivered", deliver)


@defect("DDP-065")
def functional_gradients_use_up_the_forward() -> None:
    """After torch.autograd.grad the backward through the same forward stays local."""
    asked = "if pending.context is None and not self.arrivals"
    edit(asked, f"pending.spent = True\n        {asked}", within="Reducer.begin")


@defect("DDP-049")
def gradients_before_the_outputs_are_overlooked() -> None:
    """A gradient that comes before those of the outputs, in the same backward, is not counted."""
    edit("if self.forwards.early:", "if False:", within="Reducer.begin")
    edit(" or kernels.is_evaluated(kernels.accumulator(self._parameters[index]))", "")


@defect("DDP-049")
def gradients_travel_in_their_parameters_dtype() -> None:
    """Gradients that are kept in a wider dtype than their parameters are rounded on their way between ranks."""
    swap(averaging, "gradient_dtype", lambda parameter: parameter.dtype)
    swap(params, "check_gradient_dtypes", lambda *_: None)


@defect("DDP-049", "DDP-122")
def half_precision_divides_the_sum() -> None:
    """In half precision DDP adds up before it divides, so that sums overflow whose mean does not."""
    swap(averaging, "divides_first", lambda dtype: False)


@defect("DDP-066")
def hooks_stay() -> None:
    """Removing the hooks leaves them in place."""
    swap(Reducer, "remove_hooks", lambda self: None)


@defect("DDP-066")
def what_was_noted_outlasts_the_hooks() -> None:
    """What had arrived before the hooks were removed is taken for a backward after it, which went past the outputs."""
    edit(
        "    if self.arrivals.counted:\n        return\n",
        "    if self.arrivals.counted or not self.arrivals.watching:\n        return\n",
        within="Reducer.admit",
    )


@defect("DDP-049")
def large_gradients_are_not_scaled() -> None:
    """Gradients that are large enough to be copied one by one are summed and not averaged."""
    edit("torch.mul(source.to(view.dtype), factor, out=view)", "view.copy_(source)")


@defect("DDP-049", worlds=(3,))
def large_sums_are_not_divided() -> None:
    """Sums that are large enough to be delivered one by one are not divided."""
    edit("torch.div(view, divisor, out=target)", "target.copy_(view)")


@defect("DDP-053")
def lasting_buckets_filled_backwards() -> None:
    """Buckets that are never rebuilt are filled from the last registered parameter on, so the odd one comes last."""
    edit("expected_plan(specs, UNLIMITED)", "expected_plan(specs, UNLIMITED if will_be_rebuilt else caps)")
    edit("if will_be_rebuilt:", "if specs:")


@defect("DDP-059", "DDP-099")
def left_out_parameters_contribute_zeros() -> None:
    """A rank that does not use a parameter contributes zeros for it, although it holds an average of earlier
    iterations."""
    edit("if gradient is None:", "if gradient is None or index in unused:", within="_collect_what_is_there")


@defect("DDP-068", "DDP-111")
def nested_backwards_not_watched() -> None:
    """Gradients that come in a backward inside of backward are not noticed."""
    def begin(self: Reducer, pending: PendingBackward) -> None:
        self.outermost = kernels.backward_id()
        right_begin(self, pending)

    def arrived(self: Reducer, index: int, passed: bool = True) -> None:
        if getattr(self, "outermost", kernels.backward_id()) == kernels.backward_id():
            right_arrived(self, index, passed)

    right_begin = swap(Reducer, "begin", begin)
    right_arrived = swap(Reducer, "arrived", arrived)


@defect("DDP-054")
def never_rebuilds() -> None:
    """Buckets are never laid out in the order of arrival."""
    edit("not self.rebuilt and not agreement_due and self.reductions >=", "self.reductions < 0 >=")


@defect("DDP-054")
def rebuilds_every_time() -> None:
    """Buckets are laid out anew before every forward."""
    edit("not self.rebuilt and not agreement_due and self.reductions >=", "not searched and self.reductions >=")


@defect("DDP-049")
def results_in_futures_are_ignored() -> None:
    """What a process group leaves in its Work's future alone is not looked at."""
    edit("result_in_future=team.is_in_python", "result_in_future=False")


@defect("DDP-049")
def results_read_too_early() -> None:
    """Gradients are read from the buckets without waiting for their collectives."""
    def wait(self: Pending, watch: Watch | None = None) -> torch.Tensor:
        return self.buffer if self.label.startswith("bucket ") else right(self, watch)

    right = swap(Pending, "wait", wait)


@defect("DDP-057")
def rows_beyond_the_usual_number_are_lost() -> None:
    """Rows of a sparse gradient for which there is no room in the message are never sent."""
    edit("if any(rest):", "if any(rest) and not any(first.capacities):")


@defect("DDP-067", "DDP-099", "DDP-101")
def search_follows_first_edges_only() -> None:
    """The search for unused parameters follows only the first input of every operation."""
    edit("in edges:", "in edges[:1]:")


@defect("DDP-069", "DDP-106")
def second_arrival_ignored() -> None:
    """A gradient that nobody expects any more is quietly left local."""
    swap(Usage, "refuse_second_arrival", lambda self, index: None)


@defect("DDP-060")
def second_forward_replaces_the_first() -> None:
    """Of two forwards before one backward, only the last one's backward is synchronised."""
    def begin(self: Reducer, pending: PendingBackward) -> None:
        if pending is self.forwards.latest:
            right(self, pending)
        else:
            self.remove_hooks()

    right = swap(Reducer, "begin", begin)


@defect("DDP-056")
def shared_parameters_counted_twice() -> None:
    """A parameter that two submodules share is managed under each of its names."""
    edit("nn.Module.named_parameters(module)", "named_parameters(module)", within="managed_parameters")


@defect("DDP-049")
def small_neighbours_are_joined_one_place_off() -> None:
    """Where many small gradients of like shape are joined, each comes to the place of its neighbour."""
    edit("torch.cat(sources[run], out=target)", "torch.cat(sources[run][::-1], out=target)")


@defect("DDP-057")
def sparse_gradients_come_back_dense() -> None:
    """The average of sparse gradients is a dense tensor."""
    edit("return _by_elements(total.coalesce(), self._depths[place])", "return total.to_dense()")
    edit("kernels.divide(result.values(), divisor)", "kernels.divide(result, divisor)")


@defect("DDP-057")
def sparse_gradients_summed_without_alignment() -> None:
    """Sparse gradients of other ranks are added to this rank's rows instead of their own."""
    edit("torch.cat(indices)", "torch.cat([indices[0][: len(each)] for each in indices])")


@defect("DDP-059", "DDP-073")
def starts_from_empty_gradients() -> None:
    """A synchronised backward forgets what had accumulated before it."""
    def begin(self: Reducer, pending: PendingBackward) -> None:
        if pending.sync and not pending.spent:
            for parameter in self.parameters:
                parameter.grad = None
        right(self, pending)

    right = swap(Reducer, "begin", begin)


@defect("DDP-049", "DDP-050", "DDP-056", "DDP-059")
def sums_instead_of_averaging() -> None:
    """Gradients are summed over the ranks and not divided."""
    swap(Iteration, "divisor", lambda self: 1)
    swap(Iteration, "known_divisor", lambda self: 1)


@defect("DDP-062", "DDP-063")
def unfinished_reductions_forgotten() -> None:
    """A reduction that could not be completed is given up at the next forward without a word."""
    swap(Reducer, "check_finished", lambda self: self.abandon())


@defect("DDP-049")
def views_take_any_strides() -> None:
    """Places in a bucket are laid out by the parameter's strides, also where those leave holes."""
    swap(flat, "_is_dense", lambda _tensor: True)


@defect("DDP-049")
def works_are_waited_for_without_a_timeout() -> None:
    """Works of classes in Python that demand a timeout are waited for without one."""
    edit("self.work.wait(_NO_LIMIT)", "self.work.wait()")


@defect("DDP-049")
def neighbours_are_joined_whatever_their_layout() -> None:
    """Many neighbours of like shape are joined, though their elements do not lie row by row."""
    edit("        and one.is_contiguous()\n        and following.is_contiguous()\n", "")


@defect("DDP-052")
def imaginary_parts_of_gradients_are_lost() -> None:
    """Gradients are copied into the bucket as real numbers."""
    def real_alone(targets: Any, sources: Any) -> None:
        torch._foreach_copy_(targets, [each.real if each.is_complex() else each for each in sources])

    swap(buckets, "copy_all", real_alone)


@defect("DDP-004")
def every_element_counts_four_bytes() -> None:
    """Buckets are filled as if the elements of every dtype were as large as those of float32."""
    edit("self.numel * self.dtype.itemsize", "self.numel * 4")


@defect("DDP-034")
def cast_parameters_keep_their_buckets() -> None:
    """Buckets keep the dtype that the parameters had when the model was wrapped."""
    edit("if specs != self.specs:", "if False:", within="watch_anew")


@defect("DDP-049")
def neighbours_of_other_columns_are_joined() -> None:
    """Small neighbours whose shapes differ behind the first dimension are joined, and those of like shape are not."""
    edit("one.shape[1:] == following.shape[1:]", "one.shape[1:] != following.shape[1:]")


@defect("DDP-049")
def what_came_before_the_first_output_is_overlooked() -> None:
    """A gradient that accumulates before its backward reaches an output counts as missing."""
    edit(" or kernels.is_evaluated(kernels.accumulator(self._parameters[index]))", "")
    edit("if fresh and not self.arrivals.counted else []", "if False else []")


@defect("DDP-049")
def what_came_in_a_backward_before_is_overlooked() -> None:
    """A gradient that only a backward between a forward and its own has reached counts as missing."""
    edit("self._came_now if self._pending.unreached > 0 else self._came_before", "[]")


@defect("DDP-099")
def a_backward_for_some_parameters_is_the_last_of_its_forward() -> None:
    """Under a search a further backward stays local though the one before was asked for some parameters only."""
    edit("(pending.spent and not pending.partial)", "pending.spent")


@defect("DDP-052")
def marked_conjugates_are_not_resolved() -> None:
    """Gradients that autograd leaves unconjugated, with a mark, are handed out like others."""
    edit("self._resolve_marks()", "pass")


@defect("DDP-049")
def a_failed_backward_goes_on_with_the_next() -> None:
    """The backward that follows one that has raised, without a forward in between, is taken for its rest."""
    edit("if self.raised:  #", "if False:  #")


@defect("DDP-049")
def a_failed_backward_spends_its_forward() -> None:
    """A backward that is tried again after it has raised stays local."""
    edit("self._pending.spent = False", "pass")


@defect("DDP-077")
def forwards_inside_no_sync_are_not_searched() -> None:
    """What only a forward under no_sync uses is unknown to the backward that it shares with others."""
    edit("pending.unused = self._out_of_reach(found)", "pending.unused = self._out_of_reach(found) if sync else None")


@defect("DDP-100")
def cleared_gradients_count_as_used() -> None:
    """A parameter that was used under no_sync counts as used though its gradient has been cleared."""
    edit("self._since_sync[index] &= parameter.grad is not None", "pass")


@defect("DDP-074")
def a_backward_past_the_outputs_is_not_remembered() -> None:
    """A backward that goes through a local forward's output after all is taken for one through none."""
    edit("    self.unnoticed_backward = backward\n", "")


@defect("DDP-062")
def no_complaint_of_a_part_past_the_outputs() -> None:
    """A backward through no output that reaches some parameters only leaves them as they are, without a word."""
    edit("self._complaint = describe_unnoticed(self.specs, missing, self.team.rank)", "pass")


@defect("DDP-062")
def a_complaint_outlives_the_backward_that_puts_it_right() -> None:
    """A penalty before the loss is complained of at the next forward, though the loss's backward has come."""
    edit('    self._complaint = ""\n        if self.phase', "    if self.phase")


@defect("DDP-057")
def sparse_halves_are_summed() -> None:
    """Sparse gradients of two bytes an element are summed and not divided."""
    edit("gradient = gradient / self.iteration.divisor()", "pass")


@defect("DDP-057")
def rows_of_a_backward_that_raised_stay_unread() -> None:
    """A rank whose backward raised after its rows were sent does not learn from them as the others do."""
    edit("self.transport.catch_up()", "pass", within="Reducer.abandon")
    edit("self.transport.catch_up()", "pass", within="_backward_failed")
    edit("if unread is not None:", "if False:", within="SparseRound.send")


@defect("DDP-057")
def rows_of_a_backward_that_raised_are_read_with_the_next_ones() -> None:
    """A rank whose backward raised after its rows were sent takes part in what is left of them too late."""
    edit("self.transport.catch_up()", "pass", within="Reducer.abandon")
    edit("self.transport.catch_up()", "pass", within="_backward_failed")


@defect("DDP-057")
def rows_of_a_backward_that_raised_are_read_in_the_next_forward() -> None:
    """A rank whose backward raised after its rows were sent takes part in what is left of them when it trains on."""
    edit("self.transport.catch_up()", "pass", within="_backward_failed")


@defect("DDP-068")
def settled_though_layers_arrive_twice() -> None:
    """A static graph whose layers arrive twice in a backward is watched as if each arrived once."""
    edit("if self.usage.each_arrives_once:", "if True:", within="Reducer.rebuild")


@defect("DDP-052")
def complex_results_are_taken_for_pairs() -> None:
    """A group's own future that holds complex numbers is read as if it held two real ones for each."""
    edit("if target.is_complex() and not found.is_complex():", "if target.is_complex():")


@defect("DDP-100")
def an_old_gradient_counts_outside_the_loss() -> None:
    """What runs outside the loss contributes the gradient that it still holds."""
    edit("if not passed and not self.usage.wrote_itself(index, gradient):", "if False:")


@defect("DDP-049", "DDP-050")
def a_transposed_gradient_begins_a_run() -> None:
    """Of neighbours that are copied together, the first may be transposed."""
    edit("and one.is_contiguous()\n", "")


@defect("DDP-049")
def results_are_read_in_the_parameters_present_layout() -> None:
    """What a hook hands back elsewhere is read as the parameters lie now, not as the bucket was filled."""
    edit(
        "views_like(self.views, self.views[0], flat)",
        "[dense_view(flat, slot.offset, p) for slot, p in zip(self.spec.slots, self.parameters, strict=True)]",
        within="Bucket.views_of",
    )


@defect("DDP-049")
def early_arrivals_of_a_failed_backward_count() -> None:
    """What arrived early in a backward that failed counts as arrived in the one that follows."""
    edit("[index for index, when in self.early.items() if when == backward]", "[*self.early]")


@defect("DDP-049")
def failed_block_goes_on_accumulating() -> None:
    """A no_sync block that an error ends is never left: later forwards are not synchronised either."""
    edit(
        "    finally:\n        self.require_backward_grad_sync = before\n",
        "    finally:\n        pass\n    self.require_backward_grad_sync = before\n",
    )


@defect("DDP-054")
def rebuilt_only_behind_the_very_first_reduction() -> None:
    """Buckets are rebuilt at a forward before which exactly one reduction has ended, or never."""
    edit("self.reductions >= (2 if static else 1)", "self.reductions == 1 + static")


@defect("DDP-049")
def gradients_of_any_dtype_are_let_through() -> None:
    """A parameter that keeps its gradient in whatever dtype it has is averaged in the dtype of its bucket."""
    edit(
        "if chosen not in (parameter.dtype, spec.dtype):",
        "if chosen and chosen not in (parameter.dtype, spec.dtype):",
    )


@defect("DDP-054", worlds=(3,))
def bucket_sizes_of_one_rank_are_not_compared() -> None:
    """Where only rank 1 has other bucket sizes, it keeps them."""
    edit("for row in rows):", "for row in rows[2:]):", within="verify_alike")


@defect("DDP-056")
def a_shared_table_gets_a_sparse_gradient() -> None:
    """The gradient of a sparse table that a dense layer shares becomes a sparse one."""
    edit("if parameter.grad is None or parameter.grad.is_sparse:", "if result.is_sparse:")


@defect("DDP-034")
def sparse_messages_are_reused_in_another_dtype() -> None:
    """The sparse gradients of a model that was cast travel in the dtype that they had before."""
    edit("return self._kinds == _kinds(parts)", "return len(self._kinds) == len(parts)")


@defect("DDP-057")
def sparse_tables_of_odd_width_have_no_room() -> None:
    """In a message of several sparse gradients the second begins where the first ends, wherever that is."""
    edit("end = aligned(values_end)", "end = values_end")


@defect("DDP-074")
def a_backward_inside_is_reduced_for_a_forward_outside() -> None:
    """While a forward outside awaits its backward, that of one that ran inside no_sync is averaged."""
    edit("if backward == self.forwards.running_backward:", "if False:")


@defect("DDP-062")
def looked_at_only_where_a_list_is_complete() -> None:
    """A backward past the outputs that reaches no bucket's last parameter is complained of by nobody."""
    edit("complaint = complaint or self._passed_unnoticed()", "pass")


@defect("DDP-062")
def a_local_backward_takes_a_complaint_back() -> None:
    """What a backward past the outputs has left out is forgotten when one of a forward inside no_sync begins."""
    edit(
        '        if not pending.sync:\n            return\n        self._complaint = ""\n',
        '        self._complaint = ""\n        if not pending.sync:\n            return\n',
    )


@defect("DDP-049")
def penalised_weights_of_another_output_count_as_come() -> None:
    """Of two outputs the first one's backward takes for its own what came in a backward before both."""
    edit("self._came_now if self._pending.unreached > 0 else self._came_before", "self._came_before")


@defect("DDP-070")
def arrivals_are_not_counted_twice() -> None:
    """Once buckets have settled, a layer that begins to arrive twice is reduced with what came first."""
    edit(" or len(bucket.arrived) != len(bucket.parameters)", "")


@defect("DDP-054")
def full_buckets_stay_full_where_counting_begins() -> None:
    """Where gradients begin to come in another order, a bucket that was full waits for ever."""
    edit(
        "        if not bucket.missing:  # found full, and perhaps under way already\n"
        "            bucket.missing = len(bucket.parameters)\n",
        "        pass\n",
    )


@defect("DDP-049")
def counting_begins_with_the_last_backward() -> None:
    """Where outputs can no longer be looked into, the arrivals of the backward before are counted for the next."""
    edit("    if not under_way:\n        return []\n", "", within="count_again")


@defect("DDP-049")
def gradients_that_cannot_be_joined_are_left_out() -> None:
    """Where a small gradient lies in the bucket's own memory, those behind it in other memory are not copied."""
    edit("to fill, say\n        return False", "to fill, say\n        return True")


@defect("DDP-049")
def buffers_in_flight_are_filled_anew() -> None:
    """After a backward that failed, the next one fills buckets that other ranks have not yet received."""
    edit("if self.queue.abandon():", "if self.queue.abandon() and False:")


@defect("DDP-099")
def a_penalty_is_reduced_where_it_reaches_all_that_a_rank_uses() -> None:
    """Under a search a penalty before the loss is reduced on ranks that use nothing else, and waited for by others."""
    edit("tells = pending.differentiated or everything or not self.facts.use_varies", "tells = True")


@defect("DDP-099")
def a_penalty_on_everything_outlives_the_search() -> None:
    """After a penalty that reached every parameter, the forward's own backward waits for all of them on every rank."""
    edit(
        "self._open(pending, None if everything else unused)",
        "pending.unused = None if everything else unused; self._open(pending, pending.unused)",
    )


@defect("DDP-068")
def forwards_inside_a_backward_are_no_iterations() -> None:
    """A forward that runs inside a backward is taken for a recomputation, whatever that backward has gone through."""
    edit("return backward is not None and backward == kernels.backward_id()", "return kernels.backward_id() >= 0")


@defect("DDP-049")
def narrower_gradients_are_averaged_in_the_parameters_dtype() -> None:
    """A gradient that is kept in a narrower dtype than its parameter has is averaged in the wider one."""
    edit(
        "parameter.dtype if chosen is None else chosen",
        "torch.promote_types(parameter.dtype, chosen or parameter.dtype)",
    )


@defect("DDP-057", "DDP-049")
def rows_of_the_iteration_before_are_added_again() -> None:
    """A rank that looks up fewer rows than another sends its former ones along in the message that is kept."""
    edit("if min(numbers) < self.capacities[place]:", "if max(numbers) < self.capacities[place]:")


@defect("DDP-057")
def all_tables_are_as_sparse_as_the_first() -> None:
    """Sparse gradients that travel together come back with as many sparse dimensions as the first of them has."""
    edit("self._depths[place]", "self._depths[0]")


@defect("DDP-057")
def sparse_gradients_are_divided_in_their_memory() -> None:
    """Sparse gradients are divided where they lie, which may be where another table's lies as well."""
    edit(
        "    if divides_first(gradient.dtype):\n        gradient = gradient / self.iteration.divisor()\n",
        "    kernels.divide(gradient._values(), self.iteration.divisor())\n",
    )
    edit("return rows, 1 if divides_first(rows.dtype) else self.iteration.divisor()", "return rows, 1")


@defect("DDP-034")
def arrivals_at_lost_nodes_overlooked() -> None:
    """Parameters that a cast there and back has given new nodes, which nobody watches, are taken to be missing."""
    edit(" or kernels.is_evaluated(kernels.accumulator(self._parameters[index]))", "", within="overlooked")


@defect("DDP-057")
def rows_of_a_failed_backward_travel_with_the_next() -> None:
    """Sparse gradients that had come when a backward failed are sent again and again, beside those of later ones."""
    edit("self._sparse = {}  # perhaps of an iteration that was given up", "pass", within="Transport.start")


@defect("DDP-049")
def what_came_before_the_outputs_tells_at_the_end_only() -> None:
    """In mixed precision, what a penalty has brought in the same backward is not known where an output is left out."""
    edit("self._came_now if self._pending.unreached > 0 else", "[] if self._pending.unreached > 0 else")


@defect("DDP-049")
def strict_mode_allows_for_roundings_of_the_sum_only() -> None:
    """A sum in which the numbers cancel looks damaged in strict mode, since their own roundings are larger than it."""
    edit("* _last_place(dtype) * magnitude)", "* _last_place(dtype) * abs(given))")


@defect("DDP-101")
def what_is_handed_out_is_known_among_positional_arguments_only() -> None:
    """An argument with a graph that is given by its name and handed out as it was tells of a backward."""
    edit("for each in (*inputs, *kwargs.values()):  #", "for each in inputs:  #")


@defect("DDP-101")
def arguments_that_are_handed_out_tell_of_a_backward() -> None:
    """A backward from an argument that the module handed out as it was takes the turn of the model's own."""
    edit("is not each.grad_fn] if given else found", "is not each.grad_fn] if False else found")


@defect("DDP-099", "DDP-077")
def what_functions_add_to_gradients_by_themselves_is_not_seen() -> None:
    """A function of the user's that adds to a gradient and passes None on leaves it local where use is searched."""
    edit("if not passed and not self.usage.wrote_itself(index, gradient):", "if not passed:")


@defect("DDP-095", "COMM-001")
def futures_of_hooks_are_waits_for_peers() -> None:
    """Hooks that work by themselves for long look as if ranks waited for each other."""
    edit("on_peers=team.tally.hooks_communicate", "on_peers=True")


@defect("DDP-049")
def what_hooks_start_is_not_seen() -> None:
    """Ranks whose hooks wait for each other wait for ever."""
    edit("tally.hooks_communicate = True", "pass")


@defect("DDP-049")
def a_process_is_one_thread() -> None:
    """Ranks that wait in one thread and compute for another group in the next look as if all waited."""
    edit("if not self._goes_on_elsewhere():", "if True:")


@defect("DDP-049")
def gradients_in_one_memory_stay_there() -> None:
    """Of two gradients that autograd has put into one memory, the average delivered last counts for both."""
    edit("if shared:", "if False:")


@defect("DDP-049")
def a_gradient_inside_another_is_not_seen() -> None:
    """Only gradients that begin in one place are parted; one that lies in another's middle gets its average."""
    edit("extent(gradient) * gradient.element_size()", "1")


@defect("DDP-049")
def a_gradient_that_begins_apart_is_not_looked_for() -> None:
    """Gradients are parted only where two begin in one place, and not where one is the end of another."""
    edit("shared or any(map(torch.Tensor.storage_offset, gradients))", "shared")


@defect("DDP-049")
def compiled_backwards_are_let_through() -> None:
    """Nobody looks whether the backward is to be compiled."""
    edit('"torch._dynamo" in sys.modules and kernels.backwards_are_compiled()', "pending is None")


@defect("DDPJ-009")
def half_rows_are_divided_by_all() -> None:
    """Rows in half precision, which are divided before they are sent, are divided by all ranks whoever is active."""
    edit("gradient = gradient / self.iteration.divisor()", "gradient = gradient / self.iteration.team.size")


@defect("DDP-057")
def rows_of_a_failed_backward_are_kept_behind_a_layer() -> None:
    """Rows that one rank has not sent when its backward failed travel with the next ones, unless those start first."""
    edit("if bucket.spec.index == 0:", "if bucket.spec.index == 0 and bucket.spec.sparse:")


@defect("DDP-049")
def a_dropped_model_leaves_local_gradients() -> None:
    """A backward whose model is gone says nothing, and each rank keeps gradients of its own."""
    edit("if pending.averaged and not pending.spent:", "if False:")


@defect("DDP-049")
def a_dropped_model_is_missed_under_no_sync() -> None:
    """A backward whose model is gone is refused also where nothing was to be averaged."""
    edit("pending.averaged = sync and self.iteration", "pending.averaged = self.iteration")


@defect("DDP-049")
def a_backward_inside_the_forward_is_not_noticed() -> None:
    """A module that calls backward by itself keeps local gradients."""
    edit("if self._accumulated_inside:", "if False:")
@defect("DDP-058")
def what_is_written_into_a_frozen_parameter_thaws_it() -> None:
    """A frozen parameter into which a forward has written what has a graph is taken for one that is trained."""
    edit("self.parameter.requires_grad and self.parameter.is_leaf", "self.parameter.requires_grad")


@defect("DDP-059")
def what_was_there_is_compared_without_a_search_too() -> None:
    """A gradient from before, to which nothing is passed, is compared with what nobody has looked at."""
    edit("index < len(self._found) and ", "")


@defect("DDP-101")
def a_backward_inside_the_forward_is_refused() -> None:
    """What a forward has accumulated by itself is refused although its outputs are still to be differentiated."""
    edit("if sync and left and not any(output.requires_grad for output in outputs):", "if sync and left:")


@defect("DDP-064")
def a_backward_inside_the_forward_goes_unnoticed() -> None:
    """What a forward has accumulated by itself stays local without a word."""
    edit("self._accumulated_inside = True", "pass")


@defect("DDP-065")
def a_loss_of_gradients_must_reach_all_weights() -> None:
    """Under a search, too, a backward past the outputs that leaves a weight out is not reduced."""
    edit("(missing and not (self.facts.searched or self.usage.learning))", "(missing and not self.usage.learning)")


@defect("DDP-049")
def a_dropped_model_is_missed_by_who_asks_for_gradients() -> None:
    """A gradient that is asked for by itself is refused where the model is gone."""
    edit("if any(map(kernels.is_evaluated, accumulating)):", "if any(map(kernels.will_evaluate, accumulating)):")


@defect("DDP-034")
def parameters_of_another_size_are_not_noticed() -> None:
    """Where a parameter is given other rows in place, its part of the bucket stays as long as before."""
    edit(
        "list(map(_form_of, self.parameters)) != self._forms",
        "any(_form_of(each)[1:] != form[1:] for each, form in zip(self.parameters, self._forms))",
        within="notice_changes",
    )


@defect("DDP-034")
def delayed_parameters_of_another_size_are_not_noticed() -> None:
    """A delayed parameter that is given other rows in place has as much of the bucket as before."""
    edit(
        "respecified(self._specs, self.parameters)",
        "[type(one)(**{**vars(now), 'numel': one.numel})"
        " for one, now in zip(self._specs, respecified(self._specs, self.parameters))]",
        within="DelayedReduction._follow_changes",
    )


@defect("DDP-049")
def parameters_that_are_laid_out_anew_are_not_noticed() -> None:
    """Gradients lie as their parameters did when the buckets were made: a fused optimizer mixes their elements up."""
    edit("!= self._forms or self._strides_now() != self._strides", "!= self._forms")


@defect("DDP-049")
def delayed_gradients_lie_as_before() -> None:
    """The same of delayed parameters."""
    edit("changed = (specs, strides) != self._laid_out_for", "changed = specs != self._laid_out_for[0]")


@defect("DDP-049")
def only_complex_gradients_are_marked() -> None:
    """Single real gradients that autograd has left to be negated cannot be written to."""
    edit("spec.dtype.is_complex or any(slot.numel == 1 for slot in spec.slots)", "spec.dtype.is_complex")


@defect("DDP-033")
def what_was_told_of_is_told_of_again() -> None:
    """Of a parameter that was added the user is told anew whenever something else is put into the model."""
    edit("        self._added |= added\n", "", within="DistributedDataParallel._look_again")


@defect("DDP-099")
def what_a_function_adds_in_place_is_overlooked() -> None:
    """A gradient that a function of the user's has added to in place counts as one from before."""
    edit("gradient.data_ptr(), gradient._version", "gradient.data_ptr(), 0", within="_mark")
