"""Defects of area ddp_join: a rank that is left alone, and models that are taken for one."""

from __future__ import annotations

from ..planting import defect, edit


@defect("DDPJ-031")
def lone_rank_settles_the_buckets_by_itself() -> None:
    """A reduction that the last rank with inputs keeps to itself is one after which it rebuilds its own buckets."""
    edit("    if not self._queue.alone:\n        self._note_reduction(agreement)\n",
         "    self._note_reduction(agreement)\n")  # fmt: skip


@defect("DDPJ-032")
def lone_rank_keeps_a_static_graph_to_itself() -> None:
    """A reduction of a static graph counts as one that only adds up gradients, from its first iteration on."""
    edit("not (self._facts.use_varies or skips", "not (self._facts.searched or skips")


@defect("DDPJ-009")
def lone_rank_gives_no_sign_of_life() -> None:
    """The last rank with inputs says nothing until it has run out, however long that takes."""
    edit("self.alone and time.monotonic() - channel.last_post_s < _SIGN_OF_LIFE_EVERY_S", "self.alone")


@defect("DDPJ-030")
def two_models_are_announced_as_one() -> None:
    """The buckets of one model are announced all at once though another model's may come in between."""
    edit(
        "self.several_leaders = len(self._leaders) > 1",
        "self.several_leaders = len(self._leaders) > 1 and len(joinables) > 2",
    )


@defect("DDPJ-037")
def held_back_gradients_are_flushed_in_every_reduction() -> None:
    """A joined rank adds what it held back to every reduction that it shadows."""
    edit(
        "    self._shadow_flights.append("
        "self._transport.start(bucket, bucket.zeros(), last=last, alone=False))\n",
        "    flat = bucket.zeros()\n"
        "    for view, parameter in zip(bucket.views_of(flat), bucket.parameters, strict=True):\n"
        "        if parameter.grad is not None:\n"
        "            view.copy_(parameter.grad * self._transport.factor_before())\n"
        "    self._shadow_flights.append(self._transport.start(bucket, flat, last=last, alone=False))\n",
    )


@defect("DDPJ-029")
def all_live_ranks_must_synchronise() -> None:
    """A joined rank is told that a backward is synchronised only if every live rank does so."""
    edit(
        "return bool(pending.wait(self.iteration.watch()).item()) if is_joined_rank else None",
        "return pending.wait(self.iteration.watch()).item() >= self.iteration.team.size - 1"
        " if is_joined_rank else None",
    )


@defect("JOIN-040")
def results_are_handed_out_before_the_roll_call_is_read() -> None:
    """Gradients are handed out before it is known whether the ranks were in one iteration."""
    edit("        session.confirm()\n", "        pass\n", within="_announce")


@defect("JOIN-051")
def a_models_forward_waits_for_the_roll_call() -> None:
    """Each forward of a model in a context waits until all ranks have called the roll."""
    edit(
        "        self._call_roll(place, act or likely)\n",
        "        self._call_roll(place, act or likely)\n        self._read_message()\n",
        within="_begin_iteration",
    )


@defect("DDP-062")
def who_is_alone_leaves_its_reduction_unfinished() -> None:
    """A rank that is alone, and whose last backward leaves a layer out, leaves without a word."""
    told = "self._reducer.check_finished()"
    edit(told, f"self.iteration.session.alone or {told}", within="UnevenInputs.leave")


@defect("JOIN-024")
def who_is_alone_reduces_with_others() -> None:
    """A failed backward of a rank that is alone counts as one in whose reduction others wait."""
    edit("return self.queue.started > 0 and not self.queue.alone", "return self.queue.started > 0")
