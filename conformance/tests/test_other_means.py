"""The suite has nothing against a subject that is right by other means than torch's."""

import pytest

from conformance.__main__ import main
from conformance.pages.record_book import read_source
from conformance.results import Outcome

pytestmark = pytest.mark.slow

#: Clauses that a wrapper of any make can keep: equal starts, averages, no_sync, buffers.
ASKED = "DDP-025,DDP-035,DDP-039,DDP-050,DDP-056,DDP-072,DDP-073,DDP-075,DDP-076,DDP-080,DDP-087"


def test_a_subject_that_is_right_by_other_means_gets_no_false_alarm(tmp_path):
    subject = "conformance.tests.other_means:subject"
    main(["run", "--subject", subject, "--select", ASKED, "--worlds", "1,2", "--tier", "quick", "--jobs", "2",
          "--out", str(tmp_path)])  # fmt: skip
    results = read_source(tmp_path).results
    alarms = [f"{each.clause} {each.case}: {each.witness}" for each in results
              if each.broken or each.outcome is Outcome.SUITE_ERROR]  # fmt: skip
    assert not alarms
    kept = {each.clause for each in results if each.outcome is Outcome.PASSED}
    assert len(kept) >= 8, "most of them must have an answer at all"
