"""The package itself: its public names, each imported when it is asked for, and no others."""

import pytest

import impl


def test_every_public_name_can_be_had():
    assert all(getattr(impl, name).__name__ for name in impl.__all__)


def test_other_names_are_missing_as_in_any_module():
    assert not hasattr(impl, "NoSuchName")
    with pytest.raises(AttributeError, match="NoSuchName"):
        impl.NoSuchName  # noqa: B018
