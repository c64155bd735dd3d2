"""The errors of our own beyond the standard ones; each is also the standard class that torch raises there."""

from __future__ import annotations


class SharedError(RuntimeError):
    """An error that every rank of one join context raises by itself, from what all of them read.

    Nobody there has to be told about it, so that context leaves no failure note; a context around it does.
    """

    #: stands for the session whose ranks all know; set where the error is raised, None if nobody knows. It is not the
    #: session itself, since a program may send the error to another process
    shared_in: object | None = None


class InputsExhausted(SharedError):
    """Uneven inputs were found in a context that throws on early termination (JOIN-041, JOIN-042)."""


class RanksDisagree(SharedError):
    """Ranks that still have inputs are at different places of the program, so their collectives would not match."""


class CollectivesDiffer(SharedError):
    """Ranks have started different collectives and wait for each other, or in strict mode were about to start them.

    Raised on every rank, in strict mode before data move.
    """

    #: those ranks, by their global numbers; others of a block around may wait for them
    among: frozenset[int] = frozenset()


class PeerFailed(SharedError):
    """Another rank left the join context by an exception, was killed or froze; waiting for it makes no sense."""


class IllegalMove(RuntimeError):
    """A lifecycle was asked to make a move that its table does not hold: a mistake inside this package."""
