"""Defects of area overlap: bookkeeping and assignment."""

from __future__ import annotations

from ..planting import defect, edit


@defect("HOOK-039")
def buckets_are_given_away_as_they_come() -> None:
    """Sharded buckets are given to ranks in their own order, not the smallest first."""
    edit("sorted(range(len(owned)), key=lambda k: sizes[k])", "range(len(owned))")


@defect("HOOK-038")
def buckets_are_owned_in_blocks() -> None:
    """The first buckets belong to the first rank, the next ones to the second, and so on."""
    edit("place % world", "place * world // len(buckets)")


@defect("HOOK-037")
def buckets_of_a_failed_backward_are_kept() -> None:
    """Buckets of a backward that failed half-way are stepped with those of the next one."""
    edit("        self._forget()\n        self._follow", "        self._follow")


@defect("HOOK-037")
def futures_pile_up() -> None:
    """The buckets and futures of an iteration are kept, and never cleared."""
    edit(
        "        self._forget()\n",
        '        self._seen = [*getattr(self, "_seen", ()), *self._flights]\n        self._forget()\n',
        within="OverlapSession._advance",
    )


@defect("HOOK-039", worlds=(3,))
def loads_are_not_counted() -> None:
    """Pieces go to the lowest free rank, whatever it owns already."""
    edit("key=lambda rank: (loads[rank], rank)", "key=lambda rank: rank")


@defect("HOOK-040")
def more_pieces_than_ranks_fail() -> None:
    """A bucket that needs more pieces than there are ranks fails."""
    edit("min(free or range(world), ", "min(free, ")


@defect("HOOK-038")
def owners_are_those_of_the_expected_buckets() -> None:
    """Owners stay those of the buckets that were expected, even though DDP has settled on others."""
    edit("        self._reassign_owners(ddp)\n", "        pass\n")


@defect("HOOK-038")
def late_owners_are_those_of_the_expected_buckets() -> None:
    """Where the overlap begins after DDP has settled, owners are those of the buckets that had been expected."""
    edit("self.plan if self.facts.rebuilt or self.facts.searched", "self.plan if self.facts.searched")


@defect("HOOK-039", worlds=(3,))
def pieces_are_as_large_as_the_whole() -> None:
    """The limit of a piece is the total of all buckets, without dividing it by the number of ranks."""
    edit("sum(sizes) / world", "sum(sizes)", within="sharded_buckets")


@defect("HOOK-039", worlds=(3,))
def pieces_are_measured_by_their_bucket() -> None:
    """The limit of a piece is a share of its own bucket instead of a share of all buckets."""
    edit("numels, limit)", "numels, sizes[place] / world)", within="sharded_buckets")


@defect("HOOK-039")
def what_is_in_no_bucket_counts() -> None:
    """The limit of a piece is a share of all that the optimizer has, with what is frozen and in no bucket."""
    edit("sum(sizes) / world", "sum(numels) / world")


@defect("HOOK-039", worlds=(2,))
def a_piece_may_reach_the_limit() -> None:
    """A piece is cut only where it would exceed the limit, not where it would reach it."""
    edit("numels[index] >= room", "numels[index] > room", within="cut")


@defect("HOOK-037", "HOOK-018")
def seen_buckets_are_not_cleared() -> None:
    """The buckets seen in one iteration still count as seen in the next."""
    edit("self._flights, self._completed = [], 0", "self._flights = []", within="_forget")
    edit("self._completed = due", "self._completed = max(self._completed, due)", within="_advance")


@defect("HOOK-018")
def optimizer_stays_on_the_former_group() -> None:
    """An optimizer that follows DDP to another group is put back on the former one in every iteration."""
    edit("    self._team = reducer.team\n", "")
    edit("team = reducer.team if moves", "team = self._team if moves")


@defect("HOOK-018")
def optimizer_follows_from_other_ranks() -> None:
    """An optimizer follows DDP to another group though it was on other ranks than DDP, of the same number."""
    edit(
        "overlap.shard.team.global_ranks() == ddp.reducer.team.global_ranks()",
        "overlap.shard.team.size == ddp.reducer.team.size",
    )


@defect("HOOK-042")
def joined_ranks_step_what_nobody_uses() -> None:
    """Joined ranks step parameters that no rank ever uses, with gradients of zeros."""
    edit(
        "kept = {place: bucket.kept_gradient(place) for place in unused}",
        "kept = {place: bucket.kept_gradient(place) for place in unused}\n"
        "    if kept and session is not None and session.shadowing:\n"
        "        self._overlap.joining.share_kept(kept, bucket.spec.device, session)\n"
        "        return {place: torch.zeros_like(bucket.parameters[place]) for place in unused}",
    )


@defect("HOOK-018")
def common_norm_is_taken_in_single_precision() -> None:
    """The norms that make up the common one are of float32, whatever the gradients are."""
    edit("len(parameters), dtype=dtype, device", "len(parameters), dtype=torch.float32, device")


@defect("HOOK-018")
def pieces_are_reduced_with_what_lies_between() -> None:
    """What one rank owns of a bucket is reduced in one message from its first place to its last."""
    edit("if ranges and ranges[-1][1] == place:", "if ranges:")


@defect("HOOK-018")
def optimizer_follows_only_on_the_same_group() -> None:
    """An optimizer follows DDP to another group only if it was on DDP's own, not on another one of the same ranks."""
    edit(
        "overlap.shard.team.global_ranks() == ddp.reducer.team.global_ranks()",
        "overlap.shard.team.group is ddp.reducer.team.group",
    )


@defect("HOOK-018")
def averages_of_strangers_are_dropped() -> None:
    """Where gradients are reduced to their owners, the averages of parameters that nobody steps become zeros."""
    edit("part_of_flat, label), True)", "part_of_flat, label), False)")


@defect("HOOK-018")
def bucket_without_owners_is_not_reduced() -> None:
    """Where gradients are reduced to their owners, a bucket without a single one of them stays local."""
    edit("if strangers else part.pieces", "if strangers and len(strangers) < len(part.members) else part.pieces")


@defect("HOOK-038")
def owners_are_those_of_buckets_that_are_never_built() -> None:
    """Owners are named by the buckets of a rebuilding, also under a search, where the first buckets stay."""
    edit("if self.facts.rebuilt or self.facts.searched else", "if self.facts.rebuilt else", within="expected_plan")


@defect("HOOK-039", worlds=(3,))
def every_piece_weighs_the_same() -> None:
    """The load of a rank is the number of its pieces, however large they are."""
    edit("loads[owner] += sum(numels[index] for index in piece)", "loads[owner] += 1")


@defect("HOOK-037")
def finished_buckets_of_a_failed_backward_count() -> None:
    """After a backward that failed, as many buckets of the next one count as finished as had been then."""
    edit(
        "        self._forget()\n        self._follow",
        "        self._flights, self._publications, self._advanced = [], [], 0\n        self._follow",
    )
    edit("self._completed = due", "self._completed = max(self._completed, due)", within="_advance")


@defect("HOOK-037")
def settings_of_a_failed_iteration_are_kept() -> None:
    """After an iteration that failed, the next one is stepped with the settings with which that one began."""
    edit(
        "    self.shard.take_changes()\n",
        "    if not vars(self).get('is_under_way'):\n        self.shard.take_changes()\n    self.is_under_way = True\n",
        within="Overlap.begin",
    )
    edit("    self.shard.show_changes()\n", "    self.shard.show_changes()\n    self.is_under_way = False\n",
         within="Overlap.end")  # fmt: skip


@defect("HOOK-015")
def total_size_stays_that_of_the_first_buckets() -> None:
    """The total size does not follow where DDP leaves parameters out of its buckets later."""
    edit(
        "info.total_size = sum(bucket.spec.numel for bucket in buckets)",
        "info.total_size = info.total_size or sum(bucket.spec.numel for bucket in buckets)",
    )
