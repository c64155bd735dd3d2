"""What a subject declares to lack ends a check as unsupported, also where the check looks for an error."""

from types import SimpleNamespace

import pytest

from conformance.checks.test_ddp_replicas import names
from conformance.fixtures.sharding import sharded
from conformance.ranks import Caught
from conformance.subjects import NotOffered, Subject, Unsupported
from conformance.subjects.declaring import EXTENSIONS


def rank_of(**lacks):
    names = {"ZeroRedundancyOptimizer": lambda *_, **__: None}
    return SimpleNamespace(subject=Subject("bare", "1", names, lacks))


def test_a_mode_that_is_declared_to_be_lacking_is_never_handed_to_the_local_optimizer():
    with pytest.raises(Unsupported, match="no overlap"):
        sharded(rank_of(overlap_with_ddp="no overlap"), [], overlap_with_ddp=True)
    assert sharded(rank_of(overlap_with_ddp="no overlap"), []) is None


def test_an_extension_that_a_subject_does_not_have_is_no_lack():
    for name in EXTENSIONS:
        with pytest.raises(NotOffered, match=f"bare does not offer {name}, which no document promises"):
            getattr(Subject("bare", "1", {}, {name: "no need"}), name)


def test_an_error_names_numbers_in_any_wording():
    for text in ("counts differ: {0: 2, 1: 1}", "rank 0 has 2 parameters, ranks 1 to 3 have 1", "params[2], 1 not 0."):
        assert names(Caught(("RuntimeError",), text), 0, 2, 1)
    for text in ("counts differ", "rank 10 has 21 of 12", "0.2 and 1"):
        assert not names(Caught(("RuntimeError",), text), 0, 2, 1)
