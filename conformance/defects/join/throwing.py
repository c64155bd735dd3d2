"""Defects of area join: throwing on early termination."""

from __future__ import annotations

from impl.join.failures import SessionFailures

from ..planting import defect, edit, swap


@defect("JOIN-042")
def active_rank_blames_itself() -> None:
    """An active rank reports the exhaustion of another rank as its own."""
    swap(SessionFailures, "raise_exhausted_elsewhere", lambda self, count: self.raise_exhausted_here())


@defect("JOIN-045")
def count_of_exhausted_ranks_is_always_sent() -> None:
    """The second all-reduce of throwing mode is sent in every context."""
    edit(
        "    return handle\n",
        "    if not self.throw:\n        self._count_exhausted(team, device, 0)\n    return handle\n",
        within="PlainSession.notify",
    )


@defect("JOIN-047")
def disabled_context_throws() -> None:
    """Throwing on early termination works in a disabled context too."""
    edit("    if not config.enable:", "    if not config.enable and not config.throw_on_early_termination:")


@defect("JOIN-044")
def even_inputs_throw() -> None:
    """In throwing mode a rank raises when it runs out, even though all others have run out as well."""
    edit(
        "    return shadowed == 0\n",
        "    if self.throw:\n        self._failures.raise_exhausted_here()\n    return shadowed == 0\n",
    )


@defect("JOIN-041", "JOIN-043", "JOIN-046")
def exhausted_rank_leaves_in_silence() -> None:
    """In throwing mode the rank that has run out tells the others and then leaves as if nothing had happened."""
    edit("self._failures.raise_exhausted_here()", "return False", within="PlainSession.shadow")


@defect("JOIN-041", "JOIN-046")
def exhausted_rank_raises_another_class() -> None:
    """The rank that has exhausted its inputs raises a StopIteration."""
    edit("raise InputsExhausted(text)", "raise StopIteration(text)")


@defect("JOIN-042", "JOIN-046")
def exhausted_rank_tells_nobody() -> None:
    """In throwing mode the rank that has run out raises without adding itself to the count of exhausted ranks."""
    edit("self._count_exhausted(self.team, self._device, 1)", "self._count_exhausted(self.team, self._device, 0)")


@defect("JOIN-046")
def first_notification_does_not_look() -> None:
    """In throwing mode the first notification does not ask who has run out: surely everybody has one input."""
    edit(
        "        if exhausted:\n",
        "        first, self._asked = not hasattr(self, '_asked'), True\n"
        "        if exhausted and not first:\n",
    )


@defect("JOIN-042", "JOIN-045")
def throwing_mode_does_not_wait() -> None:
    """In throwing mode a notification looks at the answer of the one before, to save the wait."""
    edit(
        "        exhausted = self._count_exhausted(team, device, 0)\n",
        "        former = getattr(self, '_asked', None)\n"
        '        self._asked = self._count(team, device, 0, "Join: count of exhausted ranks")\n'
        "        exhausted = int(former.read(self.watch)[0]) if former is not None else 0\n",
    )


@defect("JOIN-043")
def throwing_rank_shadows_first() -> None:
    """In throwing mode the rank that has run out runs its main hooks once before it raises."""
    edit(
        "            self._failures.raise_exhausted_here()\n",
        "            for hook in self._hooks:\n                hook.main_hook()\n"
        "            self._failures.raise_exhausted_here()\n",
        within="PlainSession.shadow",
    )


@defect("JOIN-042", "JOIN-046")
def throws_one_iteration_late() -> None:
    """An active rank does the iteration in which it hears that another has run out, and raises at the next one."""
    edit(
        "        if exhausted:\n            self._failures.raise_exhausted_elsewhere(exhausted)\n",
        "        self._late = getattr(self, '_exhausted', 0)\n"
        "        self._exhausted = exhausted\n"
        "        if self._late:\n            self._failures.raise_exhausted_elsewhere(self._late)\n",
    )


@defect("JOIN-042")
def throws_only_if_several_ran_out() -> None:
    """Active ranks go on as long as no more than one rank has run out."""
    edit("if exhausted:", "if exhausted > 1:")


@defect("JOIN-024")
def throw_that_was_caught_is_forgotten_at_the_end() -> None:
    """A rank that has caught the throw inside the block goes on shadowing at its end, alone."""
    edit("    self._failures.refuse_what_is_over()\n", "    pass\n", within="PlainSession.shadow")


@defect("JOIN-041", "JOIN-042")
def errors_hold_the_session() -> None:
    """An error that all ranks raise holds what cannot be pickled, so a parent that a rank sends it to gets nothing."""
    edit("self._mark = object()", "self._mark = self")
