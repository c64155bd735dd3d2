"""What the tests of the suite share."""

import signal
from collections.abc import Iterator

import pytest

from conformance.defects import planted


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A shell's background job is started deaf to Ctrl-C, and hands that on to the commands which tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def nothing_stays_planted() -> Iterator[None]:
    """A command that was given a planted defect as its subject plants it in this process: the next test has none."""
    yield
    planted.clear()
