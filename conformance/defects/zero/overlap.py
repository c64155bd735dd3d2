"""Defects of area zero: overlap mode."""

from __future__ import annotations

from impl.zero.optimizer import ZeroRedundancyOptimizer
from impl.zero.shard import Shard

from ..planting import defect, edit, swap


@defect("ZERO-028")
def closure_beside_gradients_is_dropped() -> None:
    """A closure that is given together with gradients is dropped without a word."""
    edit("        if closure is not None:\n", "        if False:\n")


@defect("ZERO-028")
def delayed_initialisation_without_overlap() -> None:
    """The delayed initialisation without overlap is refused with an error of its own making."""
    edit("raise AssertionError(", "raise RuntimeError(", within="_init_zero_for_overlap")


@defect("ZERO-024")
def early_loading_is_not_refused() -> None:
    """In overlap mode a state can be loaded before the first backward, only to be lost."""
    edit(
        "    self._check_overlap_initialized()\n",
        "    if self.overlap is not None and not self.overlap.initialized:\n        return\n",
        within="load_state_dict",
    )


@defect("ZERO-028")
def gradients_without_overlap_are_taken() -> None:
    """Gradients that are given to a local step without overlap are ignored."""
    edit("if gradients is not None:", "if gradients is not None and self.overlap:")


@defect("ZERO-025")
def group_is_added_in_overlap_mode() -> None:
    """In overlap mode a group can be added, whose parameters nobody steps."""
    edit("if self._under_construction:", "if self._under_construction or self.overlap is not None:")


@defect("ZERO-025")
def groups_are_those_of_before() -> None:
    """In overlap mode a parameter that is moved to another group goes on with the settings of the former one."""
    edit("ids_by_group(self.shard.by_group()) != ids_by_group(", "len(self.shard.by_group()) != len(")


@defect("ZERO-030")
def idle_rank_cannot_be_built() -> None:
    """The groups of a rank that owns nothing are left out, and its local optimizer cannot be built without any."""
    def local_groups(self: Shard, rank: int) -> list:
        return [group for group in right(self, rank) if group["params"]]

    right = swap(Shard, "local_groups", local_groups)


@defect("ZERO-030")
def idle_rank_does_not_take_part() -> None:
    """A rank that owns nothing leaves step() at once, and with it the others' transfers."""
    edit(
        "    session = self._join_session\n",
        "    if not self.shard.owned_by(self.shard.team.rank):\n        return None\n"
        "    session = self._join_session\n",
        within="step",
    )


@defect("ZERO-030")
def idle_rank_of_an_overlapped_step_receives_nothing() -> None:
    """In overlap mode a rank takes part in the transfers of a bucket only if it owns a piece of some bucket."""
    edit(
        "    for publication in part.publications:\n",
        "    for publication in part.publications if any(each.own for each in self._layout.parts) else ():\n",
    )


@defect("ZERO-031")
def learning_rate_is_fixed_in_overlap_mode() -> None:
    """In overlap mode the local optimizer keeps the settings that it was built with."""
    edit("self.shard.take_changes()", "self.shard.optim.state = self.shard.exposed.state", within="Overlap.begin")


@defect("ZERO-031")
def learning_rate_of_joined_ranks_is_old_in_overlap_mode() -> None:
    """In overlap mode a joined rank steps with the settings that it had when it ran out of inputs."""
    edit("if session is not None:", "if False:", within="Overlap.begin")


@defect("ZERO-028")
def ordinary_broadcast_in_overlap_mode() -> None:
    """The ordinary broadcast of parameters is let through in overlap mode."""
    edit("if self.overlap is not None:", "if rank < 0:", within="_broadcast_params_from_rank")


@defect("ZERO-029")
def partition_may_hold_strangers() -> None:
    """A manual partition may hold parameters that are not the optimizer's."""
    edit("if id(parameter) not in known:", "if parameter is None:")


@defect("ZERO-029")
def partition_may_lack_a_rank() -> None:
    """A manual partition may have fewer lists than there are ranks."""
    edit("if len(params_per_rank) != shard.team.size:", "if len(params_per_rank) > shard.team.size:")


@defect("ZERO-029")
def partition_gives_all_ranks_the_first_ones_part() -> None:
    """By a manual partition every rank is given what the first one is to have."""
    edit("groups, members) for members in params_per_rank", "groups, params_per_rank[0]) for _ in params_per_rank")


@defect("ZERO-029")
def partition_must_be_whole() -> None:
    """A manual partition must hold all parameters; a subset is refused."""
    edit(
        "    for rank, members in enumerate(params_per_rank):\n",
        "    if sum(map(len, params_per_rank)) != len(known):\n"
        '        raise ValueError("params_per_rank must hold every parameter")\n'
        "    for rank, members in enumerate(params_per_rank):\n",
    )


@defect("ZERO-025")
def refused_group_stays() -> None:
    """In overlap mode an added group is refused only after it has been noted."""
    edit(
        "    if self.overlap is not None:\n",
        "    if self.overlap is not None:\n        super().add_param_group(param_group)\n",
        within="add_param_group",
    )


@defect("ZERO-024")
def state_before_the_first_backward_is_not_refused() -> None:
    """In overlap mode the state is not refused before the first backward: it fails with an AttributeError."""
    swap(ZeroRedundancyOptimizer, "_check_overlap_initialized", lambda self: None)


@defect("ZERO-029")
def strangers_are_looked_up_by_value() -> None:
    """A stranger in a manual partition is let in if it equals a parameter of the optimizer."""
    edit("if id(parameter) not in known:", "if not any(torch.equal(parameter, own) for own in shard.parameters()):")


@defect("ZERO-027", worlds=(3,))
def trainability_is_checked_by_owners_only() -> None:
    """In overlap mode only ranks that own something notice a change of requires_grad."""
    edit(
        "    self.shard.check_trainability_unchanged()\n",
        "    if self.shard.plan.owned_by(self.shard.team.rank):\n        self.shard.check_trainability_unchanged()\n",
    )


@defect("ZERO-027")
def trainability_may_change_in_overlap_mode() -> None:
    """In overlap mode nobody notices a change of requires_grad."""
    edit("    self.shard.check_trainability_unchanged()\n", "")


@defect("ZERO-031")
def learning_rate_of_joined_ranks_is_old_in_a_context_of_the_model() -> None:
    """A context that does not list the overlapping optimizer does not bring new settings to joined ranks."""
    edit("if session is not None:", "if self.joining._zero._join_session is not None:", within="Overlap.begin")


@defect("ZERO-016")
def overlapped_steps_make_no_state_old() -> None:
    """A state that was consolidated before the last overlapped steps is handed out without a word."""
    edit("self.shard.steps_since_consolidation += 1", "pass", within="Overlap.end")
