"""Defects of area ddp_join: gradient values."""

from __future__ import annotations

from ..planting import defect, edit


@defect("DDPJ-007", "DDPJ-011", "DDPJ-012")
def always_divides_by_the_active_ranks() -> None:
    """Gradients are divided by the number of active ranks, whatever is asked for."""
    edit("_world_size = divide_by_initial_world_size", "_world_size = False")


@defect("DDPJ-008", "DDPJ-011", "DDPJ-012")
def always_divides_by_the_initial_size() -> None:
    """Gradients are divided by the initial world size, whatever is asked for."""
    edit("_world_size = divide_by_initial_world_size", "_world_size = True")


@defect("DDPJ-012", "DDPJ-034")
def divide_setting_of_the_first_context_stays() -> None:
    """Once a context has asked to divide by the active ranks, all later contexts do."""
    edit("_world_size = divide_by_initial_world_size", "_world_size &= divide_by_initial_world_size")


@defect("DDPJ-012")
def divide_setting_is_that_of_the_context_that_was_built_last() -> None:
    """Of contexts that are built before the first is entered, all divide as the last one."""
    edit(
        'bool(getattr(session.hook_of(self.model()), "divides_by_initial_world_size", True))',
        "self.divides_by_initial_world_size", within="_keeps_initial_world_size",
    )  # fmt: skip


@defect("DDPJ-007", "DDPJ-008")
def divide_settings_mixed_up() -> None:
    """The divide setting is taken the wrong way round."""
    edit("_world_size = divide_by_initial_world_size", "_world_size = not divide_by_initial_world_size")


@defect("DDPJ-008", worlds=(3,))
def divisor_counts_ranks_that_joined() -> None:
    """The divisor counts the ranks that have joined instead of those that are active."""
    edit(
        "return self.session.active",
        "return self.team.size - self.session.active or self.team.size",
    )


@defect("DDPJ-008")
def divisor_is_that_of_the_first_pass_that_accumulated() -> None:
    """What accumulated under no_sync is divided by the ranks that were active when that began."""
    begin, session = "self.require_backward_grad_sync = False", "self._iteration.session"
    counted = f'vars(self._iteration).setdefault("counted", {session} and {session}.active)'
    edit(begin, f"{begin}\n    {counted}", within="DistributedDataParallel.no_sync")
    edit(
        "return self.session.active",
        'return vars(self).get("counted") or self.session.active',
        within="Iteration.divisor",
    )
    end = "for optimizer in self.optimizers:"
    edit(end, f'vars(self.iteration).pop("counted", None)\n    {end}', within="Reducer._delivered")


@defect("DDPJ-013", "JOIN-041")
def exhausted_rank_of_a_model_shadows() -> None:
    """In throwing mode a rank of a model that has run out shadows the others once and then leaves without an
    error."""
    edit(
        "        if self.throw:\n            self._failures.raise_exhausted_here()\n",
        "        if self.throw:\n            break\n",
    )


@defect("DDPJ-014")
def hooks_know_no_divisor() -> None:
    """A registered communication hook is told the group's size as the divisor, even where the active ranks count."""
    edit("= self.iteration.divisor(), ", "= self.iteration.team.size, ", within="_start_hook")


@defect("DDPJ-014")
def hooks_of_torchs_library_always_divided_by_all() -> None:
    """In the overlapped step a hook of torch's library divides by all ranks where the active ones were asked for."""
    edit("self.future = call_hook(hook, state, bucket)", "self.future = hook(state, bucket)")


@defect("DDPJ-007", "DDPJ-009", "DDPJ-033")
def joined_rank_adds_its_old_gradients() -> None:
    """A joined rank contributes the gradients of its last iteration."""
    edit("bucket.zeros()", "bucket.collect(()).clone() if bucket.flat is not None else bucket.zeros()")


@defect("DDPJ-009")
def joined_rank_adds_its_sparse_gradient() -> None:
    """A joined rank contributes its last sparse gradient; only the dense ones are zeroed."""
    edit("self._no_rows()", "self._sparse_gradient()", within="zeros")


@defect("DDPJ-009", "DDPJ-033")
def joined_rank_adds_what_the_buffer_holds() -> None:
    """A joined rank sends its bucket as the last reduction has left it, without zeroing it."""
    edit("torch.zeros_like(self.flat)", "self.flat.clone()")


@defect("DDPJ-010", worlds=(3,))
def joined_rank_keeps_the_reduced_gradients() -> None:
    """A joined rank takes the reduced gradients into its own .grad."""
    edit(
        "self._transport.result(bucket, flight, watch)",
        "bucket.deliver(*(self._transport.result(bucket, flight, watch)[:1]), ())",
        within="shadow_results",
    )


@defect("DDPJ-010", worlds=(3,))
def joined_rank_zeroes_its_own_buffer() -> None:
    """A joined rank zeroes its own bucket instead of a temporary one, and with it gradients that are views."""
    edit("torch.zeros_like(self.flat)", "self.flat.zero_()")


@defect("DDPJ-009", "DDPJ-033")
def only_the_first_bucket_is_zeroed() -> None:
    """A joined rank sends zeros for its first bucket only, and then what its buffers hold."""
    edit(
        "bucket.zeros()",
        "bucket.zeros() if bucket.flat is None or not self._shadow_flights else bucket.flat.clone()",
    )


@defect("DDPJ-015")
def second_model_divides_by_the_initial_size() -> None:
    """Only the first model of a context divides by the active ranks."""
    edit(
        "if self.session is None or",
        "if self.session is None or not self.model()._join_config.is_first_joinable or",
        within="Iteration.divisor",
    )


@defect("DDPJ-009")
def what_does_not_fit_into_one_element_is_lost() -> None:
    """Of a message that takes several elements only the first one is read."""
    edit("(packed[element] >> shift)", "(packed[0] >> shift)")


@defect("DDPJ-009")
def sparse_sums_are_divided_by_the_size() -> None:
    """Sparse gradients are divided by the size of the group, also where the active ranks count."""
    edit(
        "return rows, 1 if divides_first(rows.dtype) else self.iteration.divisor()",
        "return rows, 1 if divides_first(rows.dtype) else self.iteration.team.size",
    )
