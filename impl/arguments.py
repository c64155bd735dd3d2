"""What the arguments of all constructors have in common."""

from __future__ import annotations


def flag(name: str, value: object) -> bool:
    """An argument that is true or false; None, as of a setting that was left out, is false.

    TypeError for what has no truth value of its own: the text "false" would count as true.
    """
    if value is not None and not hasattr(type(value), "__bool__"):
        raise TypeError(f"{name} must be True or False, not {value!r}.")
    return bool(value)
