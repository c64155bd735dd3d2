"""Defects of area ddp_join: buffers inside a join."""

from __future__ import annotations

from impl.ddp import buffers
from impl.ddp.iteration import Iteration

from ..planting import defect, edit, swap


@defect("DDPJ-024", "DDPJ-022", worlds=(3,))
def buffers_come_from_rank_0() -> None:
    """Inside a context buffers come from rank 0, which may have joined long ago."""
    swap(Iteration, "source", lambda self: 0)


@defect("DDPJ-024")
def buffers_come_from_the_last_rank() -> None:
    """Inside a context buffers come from the group's last rank, joined or not."""
    edit("return self._current().source", "return GroupRank(self.team.size - 1)")


@defect("DDPJ-024")
def buffers_come_from_the_lowest_active_rank() -> None:
    """Inside a context buffers come from the lowest rank that is still active."""
    edit("self.source = ranks[-1]", "self.source = ranks[0]")


@defect("DDPJ-024")
def guessed_source_is_not_confirmed() -> None:
    """Buffers are taken from the rank that was the source before, even if it has just run out."""
    right = swap(buffers, "broadcast_coalesced", lambda *arguments: right(*arguments[:6]))  # without the question


@defect("DDPJ-025")
def joined_rank_keeps_its_own_buffers() -> None:
    """A joined rank takes part in the broadcast of the buffers, but does not keep what it receives."""
    edit(
        "iteration.team, self.tensors,",
        "iteration.team, [b.clone() for b in self.tensors] if iteration.session and iteration.session.shadowing"
        " else self.tensors,",
    )


@defect("DDPJ-024")
def source_of_buffers_is_one_iteration_old() -> None:
    """The source of buffers is the highest rank that was active in the iteration before."""
    edit("self._current().source", "self._membership.source")


@defect("DDPJ-027", "DDPJ-035")
def stays_in_its_session() -> None:
    """After the block a model still asks the context that it has left for the divisor and the source."""
    edit("    joinable._join_session = None\n", "")


@defect("DDPJ-026")
def the_last_rank_forgets_its_buffer_hook() -> None:
    """A rank that is alone does not call its buffer hook."""
    edit(" and self.hook is None", "", within="due_before_forward")


@defect("DDPJ-016", "DDPJ-019")
def a_buffer_replaced_before_the_end_is_not_the_final_one() -> None:
    """The final synchronisation sends the buffers that the model had before."""
    edit("    buffers.look_up()\n    state =", "    state =")


@defect("DDPJ-024", worlds=(3,))
def the_lowest_of_three_active_ranks_is_the_source() -> None:
    """With more than two active ranks buffers come from the lowest of them."""
    edit("self.source = ranks[-1]", "self.source = ranks[0] if len(ranks) > 2 else ranks[-1]")


@defect("DDPJ-024")
def frozen_statistics_are_an_evaluation_in_a_context() -> None:
    """In a context, a forward in eval mode leaves the buffers alone though it has gradients."""
    edit(
        "if torch.is_grad_enabled() or self._iteration",
        "if torch.is_grad_enabled() and self._iteration.session is None or self._iteration",
    )


@defect("DDPJ-024")
def training_in_eval_mode_calls_no_roll() -> None:
    """A forward in eval mode calls no roll, though a backward follows it."""
    edit("needed = recorded or", "needed = (recorded and self.training) or")


@defect("JOIN-054", worlds=(3,))
def who_was_the_source_before_is_guessed() -> None:
    """Live ranks expect the buffers from who was their source two messages ago, joined ranks from the one after."""
    edit("self._membership.source if self._channel.in_flight is not None else ", "")


@defect("DDPJ-026")
def futures_outlast_the_block() -> None:
    """What a buffer hook has started in the last iteration of a block may write to the final model's buffers."""
    edit("self.iteration.await_futures()", "pass", within="sync_final_model")


@defect("DDP-080")
def sizes_in_the_final_model_are_not_compared() -> None:
    """At the end of a block buffers are taken over without a look at their sizes."""
    edit("formerly = [*map(size_of, state), *buffers.formerly]", "pass")
