"""Defects of area ddp_join: final model synchronisation."""

from __future__ import annotations

from impl.ddp.join_hook import _DDPJoinHook

from ..planting import defect, edit, swap


@defect("DDPJ-019")
def buffers_are_always_synchronised_at_the_end() -> None:
    """The final broadcast takes the buffers along even where buffers are not to be broadcast."""
    edit("if buffers.in_forward:", "if buffers.tensors:")


@defect("DDPJ-019")
def buffers_are_never_synchronised_at_the_end() -> None:
    """The final broadcast leaves the buffers out."""
    edit("if buffers.in_forward:", "if False:")


@defect("DDPJ-022", worlds=(3,))
def candidates_are_global_ranks() -> None:
    """Candidates for authority are global ranks, which are then taken for ranks of the group."""
    edit("source = session.source", "source = team.global_rank(session.source)")


@defect("DDPJ-016", "DDPJ-018")
def even_runs_are_not_synchronised() -> None:
    """The final model is broadcast only if some rank has joined before the others."""
    edit(
        "    self.uneven.sync_final_model(is_last_joiner)",
        "    if not self.uneven.iteration.session.everyone_active:\n"
        "        self.uneven.sync_final_model(is_last_joiner)",
    )


@defect("DDPJ-016", "DDPJ-018", "DDPJ-019", "DDPJ-022", worlds=(3,))
def final_model_is_not_synchronised() -> None:
    """The context ends without a synchronisation: the last averages have made the replicas equal anyway."""
    swap(_DDPJoinHook, "post_hook", lambda self, is_last_joiner: None)


@defect("DDPJ-016", "DDPJ-017", "DDPJ-019")
def final_model_is_that_of_rank_0() -> None:
    """When the context ends all ranks take over rank 0's model."""
    edit("source = session.source", "source = GroupRank(0)")


@defect("DDPJ-016", "DDPJ-017")
def final_model_is_that_of_the_highest_rank() -> None:
    """When the context ends all ranks take over the highest rank's model, whenever it joined."""
    edit("source = session.source", "source = GroupRank(team.size - 1)")


@defect("DDPJ-016")
def who_accumulates_is_not_counted() -> None:
    """Forwards under no_sync are no iterations to the others, so that who has most of them is not the last."""
    edit("needed = recorded or ", "needed = (recorded and iteration.wants_reductions) or ")


@defect("DDPJ-016")
def frozen_parameters_stay_behind() -> None:
    """Frozen parameters are left out when a context ends."""
    edit("state = [*self._parameters]", "state = [each for each in self._parameters if each.requires_grad]")


@defect("DDPJ-020")
def ignored_buffers_are_synchronised() -> None:
    """The final broadcast covers all buffers of the module, ignored ones too."""
    edit("state += buffers.tensors", "state += list(buffers._module.buffers())")


@defect("DDPJ-020")
def ignored_parameters_are_synchronised() -> None:
    """The final broadcast covers all parameters of the module, ignored ones too."""
    edit("state = [*self._parameters]", "state = [*self._buffers.module.parameters()]")


@defect("DDPJ-021")
def missing_authority_is_a_runtime_error() -> None:
    """A search for authority without candidates raises a RuntimeError."""
    edit("ValueError,", "RuntimeError,", within="find_common_rank")


@defect("DDPJ-021")
def missing_authority_is_not_logged() -> None:
    """A search for authority without candidates raises, but does not note the error in the model's log."""
    edit("self._reducer.log.fail(\n            ValueError,", "raise ValueError(", within="find_common_rank")


@defect("DDPJ-021")
def nobody_is_an_authority() -> None:
    """Where no rank qualifies as authority, -1 is returned as if it were a rank."""
    edit("if found == -1:", "if found < -1:")


@defect("DDPJ-017")
def ties_go_to_the_lowest_rank() -> None:
    """Of several last joiners the lowest rank is the authority."""
    edit("source = session.source", "source = session.active_ranks[0]")


@defect("DDPJ-019")
def buffers_stay_apart_after_an_end_under_no_sync() -> None:
    """Buffers are part of the final broadcast only where the next forward would synchronise them."""
    edit("if buffers.in_forward:", "if buffers.in_forward and buffers.allowed:")


@defect("DDPJ-019")
def what_is_broadcast_together_lies_without_gaps() -> None:
    """Tensors of several dtypes that travel together begin where those of another dtype end."""
    edit(
        "-(-sum([tensors[place].nbytes for place in places]) // ALIGNMENT) * ALIGNMENT",
        "sum([tensors[place].nbytes for place in places])",
    )
