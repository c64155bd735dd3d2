"""Programs drawn at random, from fixed seeds: a little of what ``make explore`` does, in every run of the suite."""

from conformance.api.checking import MANY, check
from conformance.explore import axes
from conformance.explore.drawing import sample
from conformance.explore.judging import of_ranks, train_each
from conformance.explore.source import source

COUNT = 12
#: What nobody is known to break, so that a break here is news; `make explore` draws from everything.
SOUND = (
    "wiring", "convolution", "shared", "types", "tensors", "buffers", "call", "outputs", "buckets", "gradients",
    "start", "buffer sync", "copying", "optimizer", "cleared", "ignored", "group",
)  # fmt: skip
NOT_SOUND = (("outputs", "one outside the loss"), ("outputs", "dataclass"), ("types", "complex"), ("types", "mixed"))
UNEVEN = ("context", "schedule", "divisor")


def features(*more):
    return [one for one in axes.FEATURES if one[0] in (*SOUND, *more) and one not in NOT_SOUND]


def train_as_one_process(ranks, programs):
    told = ranks(train_each, [source(program) for program in programs])
    for place, program in enumerate(programs):
        difference = of_ranks(program, [answers[place] for answers in told])
        assert not difference, f"{difference}, in the program {program.json()}"


@check("DDP-049", worlds=MANY)
def test_programs_drawn_at_random_train_as_one_process(ranks):
    train_as_one_process(ranks, sample(17, COUNT, features(), ranks.world))


@check("DDPJ-007", "DDPJ-008", worlds=MANY)
def test_programs_drawn_at_random_train_as_one_process_on_uneven_inputs(ranks):
    train_as_one_process(ranks, sample(23, COUNT, features(*UNEVEN), ranks.world))
