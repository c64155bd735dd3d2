"""What the tests of the suite share."""

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A shell's background job is started deaf to Ctrl-C, and hands that on to the commands which tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
