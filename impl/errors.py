"""The errors that our rooms raise beyond the standard ones; each is also the standard class that torch raises there."""

from __future__ import annotations


class SharedError(RuntimeError):
    """An error that every rank concerned raises by itself, from a message that all of them read.

    Nobody has to be told about it, so a context that is left by one leaves no failure note.
    """


class InputsExhausted(SharedError):
    """Uneven inputs were found in a context that throws on early termination (JOIN-041, JOIN-042)."""


class RanksDisagree(SharedError):
    """Ranks that still have inputs are at different places of the program, so their collectives would not match."""


class PeerFailed(SharedError):
    """Another rank left the join context by an exception; waiting for it makes no sense any more."""


class IllegalMove(RuntimeError):
    """A lifecycle was asked to make a move that its table does not hold: a mistake inside this package."""
