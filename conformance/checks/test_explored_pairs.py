"""Every two choices that a program may make meet in one of a few programs, each trained as one process trains it."""

from conformance.api.checking import NotRun, check
from conformance.explore.covering import batches, once_failed
from conformance.explore.judging import first_broken, train_each
from conformance.explore.listed import listed
from conformance.explore.offering import offered
from conformance.explore.session import allowed_features
from conformance.explore.source import source

WORLDS = (2, 3)


def worlds_of(programs):
    return {program.world for program in programs}


def writes_what_a_graph_has_saved(program):
    """Whether a user's hook receives buffers that batch norm has saved: autograd notices it where Gloo copies them."""
    return program["norm"] == "batch" and program["buffer hook"] != "none"


def train_as_one_process(ranks, programs):
    """What a subject's listed deviations explain is decided by the checks of their clauses."""
    allowed = set(allowed_features(ranks.subject_spec))
    left = [each for each in programs if each.features <= allowed and not listed(each, ranks.subject_spec)]
    left = [each for each in left if not (ranks.backend.startswith("gloo+") and writes_what_a_graph_has_saved(each))]
    if not left:
        raise NotRun("each of these programs chooses what is listed as broken, or not offered")
    left = offered(left, ranks.subject)
    told = ranks(train_each, [source(program) for program in left])
    broken = first_broken(left, told)
    assert not broken, broken


@check("DDP-049", worlds=WORLDS, at=worlds_of, beyond=False, scenarios=batches("plain"))
def test_every_pair_of_choices_trains_as_one_process(ranks, scenario):
    train_as_one_process(ranks, scenario)


@check("DDPJ-007", worlds=WORLDS, at=worlds_of, beyond=False, scenarios=batches("in a context"))
def test_every_pair_of_choices_trains_as_one_process_in_a_context(ranks, scenario):
    train_as_one_process(ranks, scenario)


@check("ZERO-022", worlds=WORLDS, at=worlds_of, beyond=False, scenarios=batches("sharded"))
def test_every_pair_of_choices_trains_as_one_process_with_a_sharded_optimizer(ranks, scenario):
    train_as_one_process(ranks, scenario)


@check("DDP-049", worlds=(2,), beyond=False)
def test_programs_that_failed_once_train_as_one_process(ranks):
    train_as_one_process(ranks, once_failed())
