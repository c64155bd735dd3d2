"""What our implementation may show at a limit is listed; anything else is a break."""

from types import SimpleNamespace

import pytest

from conformance import deviations
from conformance.engine.limits import within
from conformance.engine.verdict import Verdict
from conformance.results import Case, Outcome
from conformance.subjects import NotOffered

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
        (Verdict(Outcome.NOT_RUN, str(NotOffered(SimpleNamespace(name="impl"), "regroup"))), ()),
    ):
        found = judged(verdict, notes)
        assert found.outcome is Outcome.FAILED
        said = (verdict.witness, *notes)[-1]
        assert found.witness == f"impl falls short in a way that is not among its limits: {said}"


def test_what_a_machine_lacks_is_no_break():
    verdict = Verdict(Outcome.NOT_RUN, "no GPU")
    assert judged(verdict) is verdict


@pytest.mark.parametrize(("subject", "backend"), [("torch", "gloo"), ("impl", "nccl")])
def test_nobody_else_and_no_other_backend_is_asked(subject, backend):
    passed = Verdict(Outcome.PASSED)
    assert judged(passed, ("the buffers stay apart",), subject, backend) is passed


def test_limits_are_texts(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("limits = [1]")
    with pytest.raises(deviations.DeviationError, match="limits must be a list of texts"):
        deviations.load(path)
