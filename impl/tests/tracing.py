"""The labels of the collectives that this process starts, in order."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from impl.comm.pending import Pending


@contextmanager
def tracing() -> Iterator[list[str]]:
    """Collect those of all that are started inside the block."""
    labels: list[str] = []
    begin = Pending.__init__

    def note(self, label, buffer, work, *args, **options):
        if work is not None:
            labels.append(label)
        begin(self, label, buffer, work, *args, **options)

    with mock.patch.object(Pending, "__init__", note):
        yield labels
