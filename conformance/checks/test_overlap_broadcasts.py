"""How the owners' parameters travel after a partial step: everybody takes part, in one order, and nothing is left."""

from dataclasses import replace
from functools import partial

import torch

from conformance.api.checking import MANY, check
from conformance.fixtures import models, overlapping
from conformance.fixtures.observing import started
from conformance.fixtures.overlapping import Overlap, iteration, merged, names_in, pair_of, published
from conformance.fixtures.training import private
from conformance.ranks import Caught, caught
from conformance.subjects import Unsupported

READY = 4  # by then every implementation steps
WAYS = {
    "sequential": Overlap(hook=overlapping.settled),
    "sequential, sharded": Overlap(hook=overlapping.settled, shard=True),
    "interleaved": Overlap(True, hook=overlapping.settled),
    "interleaved, sharded": Overlap(True, hook=overlapping.settled, shard=True),
}
DEADLINE_S = 5.0


def send(ctx, how):
    """What one rank sees of an iteration: its buckets, whose state it keeps, and the messages with parameters."""
    buckets = []

    def hook(state, bucket):
        buckets.append(names_in(pair, bucket))
        return overlapping.settled(state, bucket)

    pair = pair_of(ctx, replace(how, hook=hook))
    for number in range(READY):
        iteration(pair, number)
    buckets.clear()
    events = started(ctx, lambda: iteration(pair, READY))
    sizes = {name: parameter.numel() for name, parameter in pair.model.named_parameters()}
    return buckets, overlapping.stateful(pair), published(events), all(event.done for event in ctx.trace()), sizes


def expected_order(buckets, states, sizes):
    """(source, elements) of an iteration: bucket by bucket, in each the owners in ascending order."""
    found = []
    for names in buckets:
        for rank, owned in enumerate(states):
            if elements := sum(sizes[name] for name in names if name in owned):
                found.append((rank, elements))
    return merged(found)


@check("HOOK-026", "HOOK-027", "HOOK-029", worlds=MANY, scenarios=WAYS, deadline_s=DEADLINE_S)
def test_owners_send_their_parameters_bucket_by_bucket_and_everybody_takes_part(ranks, scenario):
    how = replace(scenario, model=partial(models.Sum, ranks.world + 2))  # more buckets than ranks
    results = ranks(send, how, trace=True)
    buckets, _, messages, _, sizes = results[0]
    states = [owned for _, owned, _, _, _ in results]
    assert len(buckets) > ranks.world
    for rank, (theirs, _, sent, everything_ended, _) in enumerate(results):
        assert theirs == buckets
        shapes = [(event.op, event.source, event.shape, event.group) for event in sent]
        assert shapes == [(event.op, event.source, event.shape, event.group) for event in messages], f"rank {rank}"
        assert sent, "no parameters were sent"
        assert everything_ended, f"rank {rank} has collectives running after backward"
    if all(event.op == "broadcast" for event in messages):  # who gathers instead has no order of sources
        seen = merged((event.source, torch.Size(event.shape).numel()) for event in messages)
        assert seen == expected_order(buckets, states, sizes)


# -- HOOK-028, HOOK-029: nothing is forgotten


def keep_state(ctx, how):
    """For each iteration: the handles that are still waited for, and the parameters whose state this rank keeps."""
    pair = pair_of(ctx, how)
    rows = []
    for number in range(READY):
        iteration(pair, number)
        handles = getattr(private(pair.zero, "_overlap_info"), "broadcast_handles", ())
        rows.append(len(handles))
    return rows, sorted(overlapping.stateful(pair)), sorted(name for name, _ in pair.model.named_parameters())


@check("HOOK-028", "HOOK-029", "HOOK-025", "HOOK-039", scenarios=WAYS, deadline_s=DEADLINE_S)
def test_every_parameter_has_one_owner_and_no_message_is_left(ranks, scenario):
    results = ranks(keep_state, scenario)
    _, _, names = results[0]
    assert sorted(name for _, owned, _ in results for name in owned) == names
    for rank, (handles, _, _) in enumerate(results):
        assert handles == [0] * READY, f"rank {rank}: messages that nobody has waited for, by iteration: {handles}"


# -- HOOK-025, HOOK-028, HOOK-029: what torch's helpers refuse


class Unassigned:
    """A bucket under a number that no assignment knows."""

    def __init__(self, pair):
        self.pair = pair

    def index(self):
        return 77

    def is_last(self):
        return False

    def parameters(self):
        return list(self.pair.model.parameters())

    def gradients(self):
        return [torch.zeros_like(parameter) for parameter in self.parameters()]

    def buffer(self):
        return torch.zeros(sum(parameter.numel() for parameter in self.parameters()))


def helpers(ctx):
    """What a partial step, a broadcast and a wait say of something that does not belong to them."""
    module = ctx.subject.ddp_zero_hook
    step, send_bucket = (getattr(module, name, None) for name in ("_perform_local_step", "_broadcast_bucket"))
    if step is None or send_bucket is None:
        raise Unsupported(
            f"{ctx.subject.name} has no helpers to be called with a bucket that is not assigned; what it does with its "
            "own buckets is judged by the parameters, owners and messages of every iteration"
        )
    pair = overlapping.warmed(ctx, Overlap(hook=overlapping.settled))
    info = private(pair.zero, "_overlap_info")
    unassigned = [caught(step, Unassigned(pair), pair.zero, ctx.rank), caught(send_bucket, 77, pair.zero)]
    kept = info.assigned_ranks_per_bucket[0]
    info.assigned_ranks_per_bucket[0] = set()
    nobody = caught(send_bucket, 0, pair.zero)
    info.assigned_ranks_per_bucket[0] = kept
    return [*unassigned, nobody, caught(info.wait_for_broadcasts)]


@check("HOOK-025", "HOOK-028", "HOOK-029", worlds=(1, 2), deadline_s=DEADLINE_S)
def test_helpers_refuse_what_is_not_assigned(ranks):
    for rank, errors in enumerate(ranks(helpers)):
        for error in errors:
            assert isinstance(error, Caught)
            assert error.is_a(AssertionError)
        assert "77" in errors[0].text
        assert str(rank) in errors[0].text
