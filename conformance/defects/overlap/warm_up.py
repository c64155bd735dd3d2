"""Defects of area overlap: warm-up and delayed initialisation."""

from __future__ import annotations

from ..planting import defect, edit


@defect("HOOK-015")
def buckets_are_noted_backwards() -> None:
    """The buckets are noted in the reverse of their order."""
    edit("for bucket in buckets]\n", "for bucket in reversed(buckets)]\n", within="_lay_out")


@defect("HOOK-017", "HOOK-018")
def optimizer_is_built_anew_with_the_buckets() -> None:
    """When the buckets are rebuilt the local optimizer is built again, and its state is lost."""
    edit(
        "    if plan.owners != self._shard.plan.owners:\n        self._overlap.name_owners(self._shard.team, plan)\n",
        "    self._overlap.initialized = False\n    self._overlap.name_owners(self._shard.team, plan)\n",
    )


@defect("HOOK-010")
def parameters_are_sent_before_there_is_an_update() -> None:
    """Until the buckets are rebuilt nothing is stepped, but the parameters are sent all the same."""
    edit("if gradients or", "if gradients and self._live_ddp().reducer.facts.rebuilt or", within="OverlapSession._step")


@defect("HOOK-017", "HOOK-018")
def some_parameters_miss_the_first_update() -> None:
    """The first update is made with the last bucket only."""
    edit(
        "if gradients or",
        "reductions = self._live_ddp().reducer.facts.reductions\n"
        "    if gradients and (reductions > 1 or flights[-1] is self._flights[-1]) or",
        within="OverlapSession._step",
    )


@defect("HOOK-013", "HOOK-015")
def status_goes_ahead_of_the_buckets() -> None:
    """The optimizer says that it is initialised, but keeps no note of the buckets that it was initialised with."""
    edit("[list(bucket.parameters) for bucket in buckets]", "[]")


@defect("HOOK-013")
def status_never_says_initialised() -> None:
    """The optimizer never says that it is initialised."""
    edit("    self.info.status = OverlapState.INITIALIZED\n", "")


@defect("HOOK-015")
def total_size_is_always_summed() -> None:
    """The buckets' sizes are summed up without sharding too."""
    edit("if info.shard_buckets:", "if True:")


@defect("HOOK-009")
def wrapped_hook_is_called_twice() -> None:
    """The wrapped hook is called once more for the last bucket, to be sure that it is averaged."""
    edit(
        "    self.future = call_hook(hook, state, bucket)\n",
        "    self.future = call_hook(hook, state, bucket)\n"
        "    if bucket.is_last():\n        self.future = hook(state, bucket)\n",
    )


@defect("HOOK-009")
def wrapped_hook_is_not_given_its_state() -> None:
    """The wrapped hook is called without the state that was registered."""
    edit("call_hook(hook, state, bucket)", "call_hook(hook, None, bucket)", within="__init__")
