"""Programs drawn at random, from fixed seeds: a little of what ``make explore`` does, in every run of the suite."""

import inspect

from conformance.api.checking import MANY, check
from conformance.explore import axes
from conformance.explore.drawing import sample, spread
from conformance.explore.judging import first_broken, train_each
from conformance.explore.offering import offered
from conformance.explore.source import source
from conformance.subjects import NotOffered

FEW = 4  # every pair of choices meets in test_explored_pairs.py
COUNT = 12
#: What nobody is known to break, so that a break here is news; `make explore` draws from everything.
SOUND = (
    "wiring", "convolution", "shared", "types", "tensors", "buffers", "call", "outputs", "buckets", "gradients",
    "start", "buffer sync", "copying", "optimizer", "cleared", "ignored", "group",
)  # fmt: skip
NOT_SOUND = (("outputs", "one outside the loss"), ("outputs", "dataclass"), ("types", "complex"), ("types", "mixed"))
UNEVEN = ("context", "schedule", "divisor")


def drawn(ranks, seed, *more):
    """A few programs of this seed, without what the subject lacks."""
    features = [one for one in axes.FEATURES if one[0] in (*SOUND, *more) and one not in NOT_SOUND]
    return offered(sample(seed, FEW, features, ranks.world), ranks.subject)


def train_as_one_process(ranks, programs):
    told = ranks(train_each, [source(program) for program in programs])
    broken = first_broken(programs, told)
    assert not broken, broken


@check("DDP-049", worlds=MANY)
def test_programs_drawn_at_random_train_as_one_process(ranks):
    train_as_one_process(ranks, drawn(ranks, 17))


@check("DDPJ-007", "DDPJ-008", worlds=MANY)
def test_programs_drawn_at_random_train_as_one_process_on_uneven_inputs(ranks):
    train_as_one_process(ranks, drawn(ranks, 23, *UNEVEN))


# -- sharded optimizers: programs that choose something on nearly every axis

ACTS = "cleared", "evaluation", "forwards", "shared", "use", "optimizer", "group"
SAVED = "param groups", "state", "frozen"
STEPPED = "unused", "graph", "accumulation", "buckets", "convolution", "data", "tensors"
OVERLAPPED = {
    "overlapped": ("sequential", "interleaved"), "overlap": ("usual", "shard_buckets", "reduce_scatter", "both"),
}  # fmt: skip
UNEVENLY = {"context": ("Join",), "schedule": ("uneven", "none on some")}


def train_full_programs(ranks, seed, fixed, free, count=COUNT):
    programs = spread(seed, count, {"world": (str(ranks.world),), **fixed}, free)
    train_as_one_process(ranks, offered(programs, ranks.subject))


@check("ZERO-008", worlds=MANY, deadline_s=20)
def test_programs_with_a_sharded_optimizer_train_as_one_process(ranks):
    twice = {"blocks": ("two",), "tensors": ("few", "many small")}
    assigned = {"data": ("kept", "assigned", "one assigned")}
    train_full_programs(ranks, 12, {"sharded": ("zero",), **assigned, **twice}, (*ACTS, *SAVED), COUNT // 2)
    train_full_programs(ranks, 16, {"sharded": ("bucket views",), **twice}, (*ACTS, *SAVED), COUNT // 2)


@check("ZERO-022", worlds=MANY, deadline_s=20)
def test_programs_with_a_sharded_optimizer_train_as_one_process_on_uneven_inputs(ranks):
    fixed = {"sharded": ("zero", "bucket views"), "blocks": ("two", "second without context"), **UNEVENLY}
    train_full_programs(ranks, 11, fixed, (*ACTS, *SAVED, "data", "tensors", "divisor", "listed"))


@check("HOOK-018", worlds=MANY, deadline_s=20)
def test_programs_with_an_overlapped_step_train_as_one_process(ranks):
    reduces_to_owners(ranks.subject)
    train_full_programs(ranks, 12, OVERLAPPED, (*ACTS, *STEPPED, "moved"))


@check("HOOK-018", worlds=MANY, deadline_s=20)
def test_programs_with_an_overlapped_step_train_as_one_process_on_uneven_inputs(ranks):
    reduces_to_owners(ranks.subject)
    train_full_programs(ranks, 11, {**OVERLAPPED, **UNEVENLY}, (*ACTS, *STEPPED, "blocks", "divisor", "listed"))


def reduces_to_owners(subject):
    if "reduce_scatter" not in inspect.signature(subject.hook_with_zero_step).parameters:
        raise NotOffered(subject, "overlap hooks with reduce_scatter")
