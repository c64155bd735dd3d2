"""Defects of area comm: registration and validation."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

from impl.ddp import DistributedDataParallel, kernels
from impl.ddp.buckets import GradBucket
from impl.ddp.hooks import validation
from impl.ddp.reduction import Transport

from ..planting import defect, edit, swap


@defect("COMM-005")
def any_future_accepted() -> None:
    """A future of anything is accepted as the return annotation."""
    edit(" and get_args(annotation) == (torch.Tensor,)", "")


@defect("COMM-003")
def any_hook_accepted() -> None:
    """A hook that cannot be called is found out in the first backward."""
    edit("    if not callable(hook):", "    if not callable(hook):\n        return\n    if hook is None:")


@defect("COMM-006")
def bfloat16_always_accepted() -> None:
    """bfloat16 hooks are accepted on any machine."""
    swap(validation, "bfloat16_can_be_reduced", lambda: True)


@defect("COMM-006")
def bfloat16_wrapper_not_recognised() -> None:
    """Of the two bfloat16 hooks only the plain one is refused without support."""
    swap(validation, "_BFLOAT16_HOOKS", ("bf16_compress_hook",))


@defect("COMM-004")
def bucket_annotation_unread() -> None:
    """Any annotation of the bucket is accepted."""
    swap(validation, "_is_bucket", lambda annotation: True)


@defect("COMM-016")
def buckets_counted_from_one() -> None:
    """The first bucket has index 1."""
    swap(GradBucket, "index", lambda self: self._index + 1)


@defect("COMM-016", "COMM-021")
def buffer_cannot_be_replaced() -> None:
    """Replacing a bucket's buffer has no effect."""
    swap(GradBucket, "set_buffer", lambda self, buffer: None)


@defect("COMM-016")
def sparse_gradients_do_not_follow_the_buffer() -> None:
    """A sparse buffer is replaced, and the bucket goes on showing the gradient of before."""
    edit("self._views = [buffer]\n", "pass\n")


@defect("COMM-006")
def bfloat16_refusal_says_nothing() -> None:
    """Where bfloat16 cannot be reduced the error has the right class and the text of another mistake."""
    edit('f"Communication hook {hook_name(hook)}: bfloat16 needs', '"Communication hook: something needs')


@defect("COMM-007")
def built_in_hook_leaves_the_slot_free() -> None:
    """A built-in hook does not count as a registration."""
    def register(self: DistributedDataParallel, kind: Any) -> None:
        self.reducer.transport.hook = None
        right(self, kind)

    right = swap(DistributedDataParallel, "_register_builtin_comm_hook", register)


@defect("COMM-011")
def built_in_hook_logged_as_a_function() -> None:
    """A built-in hook is logged by its function's name."""
    edit("str(kind)", "hook.__qualname__")


@defect("COMM-012")
def each_bucket_gets_its_own_state() -> None:
    """Every call of the hook is given a copy of the state."""
    def start(self: Transport, hook: tuple[Any, Any], *rest: Any, **more: Any) -> Any:
        state, function = hook
        with contextlib.suppress(TypeError):  # a process group, say, cannot be copied
            state = copy.copy(state)
        return right(self, (state, function), *rest, **more)

    right = swap(Transport, "_start_hook", start)


@defect("COMM-016", "COMM-026", "COMM-028")
def first_bucket_called_last() -> None:
    """The first bucket says that it is the last one."""
    edit("bucket is self.buckets[-1]", "bucket is self.buckets[0]", within="start_next")
    edit("last=last, alone=False", "last=bucket is self.buckets[0], alone=False")


@defect("COMM-016")
def gradients_are_copies() -> None:
    """A bucket's gradients are copies of its buffer's parts."""
    swap(GradBucket, "gradients", lambda self: [view.clone() for view in self._views])


@defect("COMM-016")
def gradients_stay_in_the_old_buffer() -> None:
    """After a bucket's buffer was replaced its gradients still show the old one."""
    edit("self._views = views_like(views, flat, buffer.reshape(-1))", "self._views = list(views)")


@defect("COMM-015")
def hook_errors_become_runtime_errors() -> None:
    """An error in the hook comes out of backward as a RuntimeError."""
    edit(
        "        future = call_hook(function, state, shown)",
        "        try:\n            future = call_hook(function, state, shown)\n"
        "        except Exception as error:\n            raise RuntimeError(f'the hook failed: {error}') from error",
    )


@defect("COMM-015")
def hook_errors_keep_the_gradients_local() -> None:
    """An error in the hook is swallowed, and the gradients stay local."""
    edit(
        "        future = call_hook(function, state, shown)",
        "        try:\n            future = call_hook(function, state, shown)\n"
        "        except Exception:\n            future = torch.futures.Future()\n            future.set_result(flat)",
    )


@defect("COMM-001", "COMM-012")
def hook_for_the_first_bucket_only() -> None:
    """The hook reduces the first bucket; the others take the ordinary way."""
    edit("if self.hook is not None:", "if self.hook is not None and not bucket.spec.index:", within="Transport.start")


@defect("COMM-002", "COMM-001")
def hook_gets_divided_gradients() -> None:
    """The bucket is divided before the hook sees it."""
    def start(self: Transport, hook: Any, bucket: Any, flat: Any, last: bool) -> Any:
        kernels.divide(flat, self.iteration.team.size)
        return right(self, hook, bucket, flat, last)

    right = swap(Transport, "_start_hook", start)


@defect("COMM-011")
def hook_logged_by_its_short_name() -> None:
    """The log has the hook's bare name instead of the qualified one."""
    edit('getattr(hook, "__qualname__", type(hook).__qualname__)', 'getattr(hook, "__name__", type(hook).__name__)')


@defect("COMM-003")
def hook_not_callable_is_a_value_error() -> None:
    """A hook that cannot be called is refused with a ValueError."""
    edit('refuse(TypeError, f"Communication hook must', 'refuse(ValueError, f"Communication hook must')


@defect("COMM-016")
def parameters_in_order_of_registration() -> None:
    """A bucket's parameters come in another order than its gradients."""
    swap(GradBucket, "parameters", lambda self: list(self._parameters)[::-1])


@defect("COMM-003")
def refusals_of_hooks_not_logged() -> None:
    """What is wrong with a hook is raised, but not logged."""
    edit("hooks.check_comm_hook(hook, self._log_and_throw)", "hooks.check_comm_hook(hook)")


@defect("COMM-001", "COMM-013", "COMM-017", "COMM-019")
def result_of_the_hook_divided() -> None:
    """The hook's result is divided once more."""
    answered = 'bucket.answered(result, "communication hook")'
    edit(answered, f"{answered} / self.iteration.team.size")


@defect("COMM-001")
def result_of_the_hook_ignored() -> None:
    """What the bucket holds becomes the gradients, not what the hook's future holds."""
    answered = 'bucket.answered(result, "communication hook")'
    edit(answered, f"{answered} if bucket.flat is None else bucket.flat")


@defect("COMM-005")
def return_annotation_unread() -> None:
    """Any return annotation is accepted."""
    swap(validation, "_is_future_of_tensor", lambda annotation: True)


@defect("COMM-007")
def second_hook_is_a_value_error() -> None:
    """A second registration is refused with a ValueError."""
    edit("            RuntimeError,", "            ValueError,", within="_occupy_hook_slot")


@defect("COMM-007")
def second_hook_replaces_the_first() -> None:
    """A second registration silently replaces the hook."""
    edit("if self.reducer.transport.hook is not None:", "if self._comm_hooks is None:")


@defect("COMM-010", "COMM-006")
def partials_go_by_no_name() -> None:
    """A partial is not recognised as the hook that it calls."""
    edit("if hook_name(hook).rpartition(", 'if str(getattr(hook, "__qualname__", "")).rpartition(')


@defect("COMM-016")
def gradients_of_a_bucket_lie_row_by_row() -> None:
    """Views of a bucket show the elements of every parameter row by row."""
    edit(
        "dense_view(self.flat, slot.offset, parameter)",
        "self.flat[slot.offset : slot.offset + parameter.numel()].view(parameter.size())",
    )


@defect("COMM-016")
def gradients_of_a_replaced_buffer_lie_side_by_side() -> None:
    """The gradients of a buffer that is every second element of something larger are read as if it were all of it."""
    edit("nth = 1 if target.is_contiguous() else target.stride(0)", "nth = 1")


@defect("COMM-001")
def complex_answers_begin_at_even_places() -> None:
    """A hook's answer for complex gradients that begins at an odd place of its storage is not taken."""
    edit("shown.clone() if shown.storage_offset() % 2 else shown", "shown", within="complex_again")


@defect("COMM-001")
def complex_answers_are_contiguous() -> None:
    """A hook's answer for complex gradients in other strides is not taken."""
    edit("        shown = shown.contiguous()\n", "")


@defect("COMM-016")
def gradients_of_a_replaced_buffer_lie_row_by_row() -> None:
    """Once a hook has replaced the buffer, its views show the elements of every parameter row by row."""
    edit(
        "self._views = views_like(views, flat, buffer.reshape(-1))",
        "shift = buffer.storage_offset() - flat.storage_offset()\n"
        "        self._views = [\n"
        "            buffer.as_strided((view.numel(),), (1,), view.storage_offset() + shift).view(view.size())\n"
        "            for view in views\n"
        "        ]",
    )


@defect("DDPJ-014")
def torchs_own_hooks_not_known_in_a_partial() -> None:
    """Inside a partial, a hook of torch's own is not known as one that divides by the number of all ranks."""
    edit("hook = function_of(hook)", "pass", within="averaged_over")


@defect("COMM-022", "COMM-028")
def torchs_own_hooks_are_all_taken_for_averages() -> None:
    """Also those hooks of torch's that average nothing are taken for one that divides by the number of all ranks."""
    edit("if name in _DIVIDE_BY_SIZE:", "if True:")
    edit("return state.subgroup if state.post_local_gradient_allreduce else None", "return dist.group.WORLD")


@defect("DDPJ-014")
def torchs_own_wrappers_are_taken_for_averages() -> None:
    """A wrapper of torch's is taken for one that divides by the number of all ranks, whatever its hook does."""
    edit('averaged_over(inspect.getclosurevars(hook).nonlocals["hook"], state)', "dist.group.WORLD")


@defect("DDPJ-014")
def torchs_own_hooks_not_known_in_a_wrapper() -> None:
    """Inside a wrapper of the library, a hook of torch's own divides by the number of all ranks."""
    edit("call_hook(hook, hook_state, bucket).then(lambda", "hook(hook_state, bucket).then(lambda")


@defect("COMM-001")
def hooks_get_sparse_gradients_as_dense_ones() -> None:
    """A hook is given a sparse gradient with all the rows that have none."""
    edit("contribution.clone() if contribution.is_coalesced() else contribution.coalesce()", "contribution.to_dense()")


@defect("COMM-007")
def second_hook_is_refused_and_used() -> None:
    """The second of two hooks is refused, but takes the place of the first all the same."""
    edit(
        "    if self.reducer.transport.hook is not None:\n",
        "    before, self.reducer.transport.hook = self.reducer.transport.hook, (state, hook)\n"
        "    if before is not None:\n",
    )


@defect("DDPJ-014")
def torchs_own_low_rank_is_no_average() -> None:
    """torch's own PowerSGD is not known as a hook that divides by the number of all ranks."""
    edit("if name in _DIVIDE_BY_SIZE:", 'if name in _DIVIDE_BY_SIZE and "powerSGD" not in name:')


@defect("DDPJ-014", worlds=(4,))
def a_part_of_the_group_divides_as_the_whole() -> None:
    """What one of torch's hooks has averaged over a part of the ranks is taken for an average over all of them."""
    edit("group.size() / divisor_of(Team.of(group), bucket)", "group.size() / bucket.divisor()")


@defect("DDPJ-014")
def torchs_own_post_local_is_no_average() -> None:
    """torch's own post-local SGD is taken for local before it is."""
    edit("if name in _DIVIDE_BY_SIZE:", 'if name in _DIVIDE_BY_SIZE and name != "post_localSGD_hook":')


@defect("DDP-057")
def hooks_work_in_the_memory_of_sparse_gradients() -> None:
    """A hook is shown a sparse gradient where it lies, which may be where another one's values lie as well."""
    edit("contribution.clone() if contribution.is_coalesced() else contribution.coalesce()", "contribution.coalesce()")


@defect("COMM-009")
def second_parameter_has_to_be_there_by_itself() -> None:
    """A hook that takes any number of arguments is refused, for it has no second parameter to look at."""
    edit("positional[1] if len(positional) > 1 else None", "positional[1]")


@defect("COMM-016")
def dense_tensors_in_a_sparse_bucket_are_not_shown() -> None:
    """Where a hook replaces a sparse buffer by a dense one, ``gradients`` goes on showing the sparse one."""
    edit("if buffer.is_sparse or flat.is_sparse:", "if buffer.is_sparse:")


@defect("COMM-001")
def dense_answers_for_a_dense_gradient_are_dropped() -> None:
    """A table whose gradient is dense takes a hook's answer only where that is sparse."""
    edit("result.is_sparse else result", "result.is_sparse else parameter.grad")
@defect("DDPJ-014", worlds=(3,))
def ranks_that_ran_out_are_named_by_their_place_in_the_group() -> None:
    """A hook with a group of its own takes the ranks that ran out by their places in the group of the model."""
    edit("self.team.global_rank(GroupRank(rank)) for rank in self", "rank for rank in self", within="uncounted_ranks")
@defect("COMM-015")
def failed_futures_of_hooks_have_no_value() -> None:
    """What a hook's future has failed with is dropped."""
    edit(
        "        if not of_a_collective(error):  # of the user's own hook\n            raise",
        "        if not of_a_collective(error):\n            return None",
    )


@defect("COMM-004")
def postponed_annotations_are_not_evaluated() -> None:
    """A hook whose module postpones the evaluation of annotations is refused, as they are texts."""
    edit("inspect.signature(hook, eval_str=True)", "inspect.signature(hook)")
