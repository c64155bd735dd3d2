"""The suite has nothing against a subject that is right by other means than torch's."""

import pytest

from conformance.__main__ import main
from conformance.clauses import load
from conformance.engine.inventory import declared
from conformance.pages.record_book import read_source
from conformance.results import Outcome

pytestmark = pytest.mark.slow

#: What the subject does not do, and the suite rightly says so: clauses or checks. Of all else it may say nothing.
NOT_DONE = {
    "optimizers that step within backward see what is not yet averaged": ("DDP-129", "DDP-130", "DDP-132"),
    "distributed autograd has gradients of its own": ("DDP-022",),
    "it has no search that could be needless": ("DDP-104",),
    "it reduces where a gradient comes, so that a rank which passes a whole model by is missed": (
        "test_a_model_that_a_rank_passes_by_is_reduced_before_the_one_that_comes_before_it",
    ),
}  # fmt: skip


@pytest.mark.long
def test_a_subject_that_is_right_by_other_means_gets_no_false_alarm(tmp_path):
    without = {clause for clauses in NOT_DONE.values() for clause in clauses}
    asked = [clause.id for clause in load() if clause.id.startswith("DDP-") and clause.id not in without]
    main(["run", "--subject", "conformance.tests.other_means:subject", "--select", ",".join(asked), "--worlds", "2",
          "--tier", "quick", "--jobs", "2", "--out", str(tmp_path)])  # fmt: skip
    beside = {each.name for each in declared() if without.intersection([each.name, *each.clauses])}
    results = [each for each in read_source(tmp_path).results if each.case.check not in beside]
    alarms = [f"{each.clause} {each.case}: {each.witness}" for each in results
              if each.broken or each.outcome is Outcome.SUITE_ERROR]  # fmt: skip
    assert not alarms
    kept = {each.clause for each in results if each.outcome is Outcome.PASSED}
    assert len(kept) >= 40, "most of what is not a service of torch's own must have an answer at all"
