"""How commands end early, here and in perf: bad input, an interruption, a reader of the output who has had enough."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from .bad_input import BadInput

_BAD_INPUT, _INTERNAL, _INTERRUPTED, _NO_READER = 2, 3, 130, 141  # the last two as by SIGINT and SIGPIPE


def status_of(name: str, act: Callable[[], int]) -> int:
    """The exit status of ``act``; where it does not come to its end, a sentence of the command ``name`` says why."""
    try:
        return act()
    except BadInput as error:
        print(f"{name}: {error}", file=sys.stderr)
        return _BAD_INPUT
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output has had enough
        sys.stderr.close()
        return _NO_READER
    except Exception:  # 1, which Python would end with, is an answer: something is broken, slower, not caught
        traceback.print_exc()
        print(f"{name}: the command itself failed, which says nothing of what it was asked", file=sys.stderr)
        return _INTERNAL


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """A polite request to end (SIGTERM) ends a run as Ctrl-C does: recorded, and without leaving ranks behind."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
