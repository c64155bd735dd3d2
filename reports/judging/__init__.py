"""Judges a history of nights by pure functions: the same history always gives the same verdicts."""

from ..history import LeftOut
from .judge import judge
from .model import (
    Accounting,
    Basis,
    Change,
    ClauseChange,
    ClauseHistory,
    ClauseState,
    Health,
    JudgedHistory,
    Machine,
    Night,
    Part,
    Point,
    Series,
    State,
)
from .parameters import DEFAULT, Parameters

__all__ = [
    "DEFAULT", "Accounting", "Basis", "Change", "ClauseChange", "ClauseHistory", "ClauseState", "Health",
    "JudgedHistory", "LeftOut", "Machine", "Night", "Parameters", "Part", "Point", "Series", "State",
    "judge",
]  # fmt: skip
