"""What a subject may declare, and the slips that are refused with a sentence."""

import pytest

from conformance.subjects import Subject, SubjectError, declaring, resolve


class Thing:
    """Stands for anybody's class."""


def called():
    """Stands for anybody's function."""


def test_the_names_that_may_be_declared_are_those_of_torch_and_of_ours():
    assert set(declaring.NAMES) == set(resolve("impl").names) | set(resolve("torch").names)


@pytest.mark.parametrize(("given", "says"), [
    ({"names": {"DistributedDataParralel": Thing}}, "did you mean 'DistributedDataParallel'?"),
    ({"names": {"joinable": Thing}}, "did you mean 'Joinable'?"),
    ({"names": {"DDP": Thing}}, "did you mean 'DistributedDataParallel'?"),
    ({"lacks": {"ZeroRedundancyOptimiser": "none"}}, "did you mean 'ZeroRedundancyOptimizer'?"),
    ({"lacks": {"process groups written in python": "none"}}, "did you mean 'process groups written in Python'?"),
    ({"names": {"Joinable": None}}, "Joinable of subject mine must be a class, not None"),
    ({"names": {"Joinable": called}}, "Joinable of subject mine must be a class"),
    ({"names": {"Join": 3}}, "Join of subject mine must be a class or a function, not 3"),
    ({"names": {"default_hooks": None}}, "default_hooks of subject mine must be a module"),
    ({"names": {3: Thing}}, "declares 3, which is no name"),
    ({"version": 1}, "the version of subject mine must be a text, for example '1'"),
    ({"lacks": {"join": 3}}, "must give a reason for 'join' as a text, not 3"),
])  # fmt: skip
def test_a_slip_in_a_declaration_is_refused_with_what_was_meant(given, says):
    with pytest.raises(SubjectError) as refused:
        Subject(**{"name": "mine", "version": "1", "names": {}, **given})
    assert says in str(refused.value)


@pytest.mark.parametrize("given", [
    {"names": {"Join": called, "Joinable": Thing, "default_hooks": Thing, "answer": 42}},
    {"lacks": {"join_hook": "none", "register_comm_hook": "none", "device_mesh": "none", "pickling": "none"}},
])  # fmt: skip
def test_functions_own_names_methods_keywords_and_features_may_be_declared(given):
    Subject(**{"name": "mine", "version": "1", "names": {}, **given})
