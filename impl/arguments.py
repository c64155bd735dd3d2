"""What the arguments of all constructors have in common."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

Kind = TypeVar("Kind", bound=Enum)


def flag(name: str, value: object) -> bool:
    """An argument that is true or false; None, as of a setting that was left out, is false.

    TypeError for what has no truth value of its own: the text "false" would count as true.
    """
    if value is not None and not hasattr(type(value), "__bool__"):
        raise TypeError(f"{name} must be True or False, not {value!r}.")
    return bool(value)


def member(kind: type[Kind], given: object) -> Kind | None:
    """The member of an enumeration that is given, or torch's of the same names; None for anything else."""
    return kind.__members__.get(str(getattr(given, "name", None))) if type(given).__name__ == kind.__name__ else None
