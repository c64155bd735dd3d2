"""Defects of area comm: gradient values."""

from __future__ import annotations

from ..planting import defect, edit


@defect("DDPJ-014")
def eight_bits_always_divided_by_all() -> None:
    """Hooks of eight bits divide by the number of all ranks where the active ones were asked for."""
    edit("divisor_of(team, bucket)", "team.size", within="_gather_and_average")


@defect("DDPJ-014")
def groups_of_a_hooks_own_are_always_whole() -> None:
    """A hook that averages over another group than the model's divides by its size, whoever is active."""
    edit("else bucket.divisor_over(team.global_ranks()))", "else team.size)")


@defect("DDPJ-014")
def hooks_on_all_ranks_in_another_group_count_their_own_by_group_rank() -> None:
    """Who is not counted is told by ranks of the model's group, where global ones are asked for."""
    edit("max(sum(rank not in self._uncounted for rank in ranks), 1)", "max(len(ranks) - len(self._uncounted), 1)")


@defect("DDPJ-014")
def torchs_post_local_hook_never_averages_after_its_start() -> None:
    """torch's own post-local hook is taken for one that averages nothing once it works in its subgroup."""
    edit("return state.subgroup if state.post_local_gradient_allreduce else None", "return None")


@defect("DDPJ-014")
def power_sgd_always_divides_by_all() -> None:
    """PowerSGD divides by the number of all ranks where the active ones were asked for."""
    edit("divisor_of(self.team, bucket)", "self.team.size")


@defect("DDPJ-014")
def sparse_gradients_of_hooks_always_divided_by_all() -> None:
    """Hooks divide sparse gradients by the number of all ranks where the active ones were asked for."""
    edit("completed(total if first else total / divisor)", "completed(total if first else total / team.size)")


@defect("COMM-016")
def a_bucket_gives_its_own_list_of_parameters() -> None:
    """A hook that changes the list of parameters that it was given changes the bucket."""
    edit("return list(self._parameters)", "return self._parameters")


@defect("COMM-016")
def a_bucket_gives_its_own_list_of_gradients() -> None:
    """A hook that changes the list of gradients that it was given changes the bucket."""
    edit("return list(self._views)", "return self._views")


@defect("COMM-016")
def parts_of_complex_buckets_are_measured_in_complex_numbers() -> None:
    """Where a hook is shown two real numbers for each complex one, the views of its buffer count complex ones."""
    edit("list(map(torch.view_as_real, views))", "views")


@defect("COMM-016")
def what_replaces_a_buffer_must_be_as_long() -> None:
    """Views of the gradients are looked for in what a hook puts into a bucket, however short that is."""
    edit("elif buffer.numel() == flat.numel():", "else:")


@defect("COMM-016")
def what_replaces_a_buffer_is_measured_by_what_it_replaces() -> None:
    """Where a hook puts fewer elements into a bucket, and then all of them, its gradients are not found in those."""
    edit("elif buffer.numel() == flat.numel():", "elif buffer.numel() == self._flat.numel():")
