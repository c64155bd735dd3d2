"""Defects of area join: interplay with other ddp features."""

from __future__ import annotations

from ..planting import defect, edit


@defect("DDPJ-034")
def consolidations_are_counted_by_their_target() -> None:
    """Whether ranks are in step is told by how many collectives they have started, and the target counts more."""
    counting = "        arriving[source] = size\n        team.tally.count()\n"
    edit("        arriving[source] = size\n", counting, within="_sent_on")


@defect("DDPJ-034")
def notes_of_the_past_are_read() -> None:
    """A failure in one context is taken for one in the contexts that follow."""
    edit("last + 1)", "1)", within="GroupRecord.next_session_key")


@defect("JOIN-025")
def iterations_of_a_lone_rank_belong_to_one_model() -> None:
    """What a lone rank has not reported of one model is reported as iterations of the next one that begins."""
    edit("channel.unreported != place or ", "")


@defect("DDPJ-009")
def thawed_parameters_stay_apart() -> None:
    """What was frozen when the model was wrapped is not taken over at the end of a context, whether thawed or not."""
    edit("[*self._module_parameters, *self._delayed", "[*self.reducer.parameters, *self._delayed")
