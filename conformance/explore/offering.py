"""What a program asks of a subject that declares to lack it: it is judged without, and left out if it cannot be."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import replace

from ..subjects import Subject, Unsupported
from . import axes
from .axes import Choices, Feature
from .loading import used_names
from .program import Program
from .source import source

#: Services that a choice asks for and no word of the program's text names.
ASKED: dict[Feature, str] = {
    ("copied", "pickled"): "pickling", ("copied", "deeply"): "pickling", ("averaged", "of the wrapper"): "pickling",
}  # fmt: skip
#: What a program is about: without a choice on these it would decide another clause.
SUBJECT_MATTER = ("world", "context", "schedule", "sharded", "overlapped")


def offered(programs: Iterable[Program], subject: Subject) -> list[Program]:
    """The programs without what the subject declares to lack; ``Unsupported`` if none can be without."""
    reasons, left = set(), []
    for program in programs:
        within = _within(program, subject)
        if within is None:
            reasons.add(lacking(program, subject))
        else:
            left.append(within)
    if reasons and not left:
        raise Unsupported(f"{subject.name} lacks what each of these programs asks for: {', '.join(sorted(reasons))}")
    return left


def lacking(program: Program, subject: Subject) -> str:
    """The first thing that the program asks for and the subject does not have; empty if it has them all.

    A name that it does not provide, a keyword, an attribute or a method that ``lacks`` names and no class of it has,
    or a service.
    """
    return next(iter(_missing(program, subject)), "")


def _missing(program: Program, subject: Subject) -> list[str]:
    """What is lacking, as often as the program asks for it."""
    text = source(program)
    missing = [name for name in used_names(text) if name not in subject.names for _ in _found(rf"\b{name}\b", text)]
    for name in sorted(subject.lacks):  # as a keyword or as an attribute
        asked = _found(rf"\b{re.escape(name)}=(?!=)|\.{re.escape(name)}\b", text)
        missing += [] if asked and _has(subject, name) else [name for _ in asked]
    return missing + sorted(ASKED[each] for each in program.features if ASKED.get(each, "") in subject.lacks)


def _found(pattern: str, text: str) -> list[str]:
    return [found[0] for found in re.finditer(pattern, text)]


def _within(program: Program, subject: Subject) -> Program | None:
    """The program without the choices that ask for what is missing, one by one; None if one of them has to stay."""
    while missing := _missing(program, subject):
        for axis in program.choices:
            choices = _without(program.choices, axis)
            smaller = None if choices is None else replace(program, choices=choices)
            if smaller is not None and len(_missing(smaller, subject)) < len(missing):
                program = smaller
                break
        else:
            return None
    return program


def _without(choices: Choices, axis: str) -> Choices | None:
    """The choices without one, and without those that need it; None if that is not to be."""
    rest = {other: value for other, value in choices.items() if other != axis}
    while True:
        made = axes.closed(rest)
        if made is None or any(other in SUBJECT_MATTER and other not in made for other in choices):
            return None
        if set(made) <= set(rest):
            return made
        needy = [other for other in rest if not set(axes.closed({other: rest[other]}) or {}) <= set(rest)]
        if not needy:
            return None
        del rest[needy[0]]


def _has(subject: Subject, name: str) -> bool:
    """Whether a class of the subject has such a member, or takes such a keyword, though ``lacks`` names it."""
    return any(hasattr(each, name) or name in _keywords(each) for each in subject.names.values()
               if isinstance(each, type))  # fmt: skip


def _keywords(kind: type) -> Iterable[str]:
    try:
        return inspect.signature(kind).parameters
    except (TypeError, ValueError):  # a class of native code
        return ()
