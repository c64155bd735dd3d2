"""What our implementation may show at a limit is listed; anything else is a break."""

import pytest

from conformance import deviations
from conformance.engine.limits import within
from conformance.engine.verdict import Verdict
from conformance.results import Case, Outcome

LISTED = deviations.load(deviations.HERE / "impl.toml").limits


def judged(verdict, notes=(), subject="impl", backend="gloo"):
    case = Case("test_something", "", subject, backend, 2)
    return within(verdict, notes, case, {"impl": "impl", "torch": "torch"})


def test_what_is_listed_is_no_break():
    passed = Verdict(Outcome.PASSED)
    assert judged(passed) is passed
    assert all(judged(passed, (text,)) is passed for text in LISTED)
    lacking = [Verdict(Outcome.UNSUPPORTED, text) for text in LISTED]
    assert all(judged(verdict) is verdict for verdict in lacking)


def test_what_is_not_listed_is_one_and_says_so():
    for verdict, notes in (
        (Verdict(Outcome.PASSED), ("the buffers stay apart",)),
        (Verdict(Outcome.UNSUPPORTED, "the buffers stay apart"), ()),
    ):
        found = judged(verdict, notes)
        assert found.outcome is Outcome.FAILED
        assert found.witness == "impl falls short in a way that is not among its limits: the buffers stay apart"


@pytest.mark.parametrize(("subject", "backend"), [("torch", "gloo"), ("impl", "nccl")])
def test_nobody_else_and_no_other_backend_is_asked(subject, backend):
    passed = Verdict(Outcome.PASSED)
    assert judged(passed, ("the buffers stay apart",), subject, backend) is passed


def test_limits_are_texts(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("limits = [1]")
    with pytest.raises(deviations.DeviationError, match="limits must be a list of texts"):
        deviations.load(path)
