"""How an implementation plugs in: a subject is a name, a version, and the public names that it provides."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .declaring import EXTENSIONS, fault

#: an environment variable: "1" turns our implementation's strict mode on; others take no notice
STRICT = "JOINERY_STRICT"
#: another: after so many seconds of silence a rank counts as frozen, and ranks as waiting for each other
DETECTION = "JOINERY_FAILURE_DETECTION_S"
#: ends the reason for which a check of an extension is not run
BEYOND = "which no document promises"
_KEYWORD = re.compile(r"(?:unexpected|multiple values for) keyword argument '(\w+)'")  # as Python says it


class Unsupported(BaseException):
    """The subject declares that it lacks a feature. Ends a check as *unsupported*, never as passed.

    No ``Exception``: a check that expects an error must not take it for one.
    """


class NotOffered(Unsupported):
    """The subject does not offer something that goes beyond the documents. Ends a check as *not run*.

    What is promised can be kept without it, so it says nothing about a clause.
    """

    def __init__(self, subject: Subject, what: str) -> None:
        super().__init__(f"{subject.name} does not offer {what}, {BEYOND}")


class SubjectError(ValueError):
    """A subject that cannot be used: unknown, not importable, or badly declared."""


@dataclass(frozen=True)
class Subject:
    """One implementation under judgement.

    ``names`` maps torch's public names (``Join``, ``DistributedDataParallel`` …) to this implementation's objects; they
    are read as attributes: ``subject.Join``. Reading a name that the subject does not provide raises ``Unsupported``
    with the reason from ``lacks`` where one is given; of an extension, ``NotOffered``. ``lacks`` may also hold the
    names of methods, attributes and keywords that the provided classes do not have (see ``excuse``), and free-form
    feature names (for example ``"overlap on gloo"``) that checks ask for with ``subject.require``.
    """

    name: str
    version: str
    names: Mapping[str, Any]
    lacks: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise SubjectError("a subject needs a name: Subject(name='mine', version='1.0', names={...})")
        if not isinstance(self.names, Mapping) or not isinstance(self.lacks, Mapping):
            raise SubjectError(f"names and lacks of subject {self.name} must be mappings: {{'Join': MyJoin, ...}}")
        if wrong := fault(self.name, self.version, self.names, self.lacks):
            raise SubjectError(wrong)

    def __getattr__(self, wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        try:
            return self.names[wanted]
        except KeyError:
            if wanted in EXTENSIONS:
                raise NotOffered(self, wanted) from None
            reason = self.lacks.get(wanted, "not declared in its names")
            raise Unsupported(f"{self.name} does not provide {wanted}: {reason}") from None

    def require(self, feature: str) -> None:
        """Raise ``Unsupported`` if the subject declares that it lacks ``feature``."""
        if feature in self.lacks:
            raise Unsupported(f"{self.name} lacks {feature}: {self.lacks[feature]}")

    def excuse(self, error: BaseException) -> Unsupported | None:
        """What a check that raised ``error`` ends with instead: it asked for something that is declared to be lacking.

        An attribute or a method that is not there, or a keyword that is not taken; ``None`` for everything else.
        """
        name = ""
        if isinstance(error, AttributeError):
            name = error.name or ""
        elif isinstance(error, TypeError) and (found := _KEYWORD.search(str(error))):
            name = found[1]
        return Unsupported(f"{self.name} lacks {name}: {self.lacks[name]}") if name in self.lacks else None


_BUILT_IN = {"impl": "conformance.subjects.impl:subject", "torch": "conformance.subjects.torch:subject"}


def is_built_in(spec: str) -> bool:
    """Whether the suite itself brings this subject."""
    return spec in _BUILT_IN


def module_of(spec: str) -> str:
    """The module that a subject is in; loading it loads the implementation."""
    return _BUILT_IN.get(spec, spec).partition(":")[0]


def resolve(spec: str) -> Subject:
    """The subject called ``spec``: ``impl``, ``torch`` or anybody's ``package.module:attribute``."""
    module_name, colon, attribute = _BUILT_IN.get(spec, spec).partition(":")
    if not colon or not module_name or not attribute:
        known = ", ".join(sorted(_BUILT_IN))
        raise SubjectError(f"unknown subject {spec!r}: use one of {known}, or package.module:attribute")
    try:
        with warnings.catch_warnings():  # torch's own modules warn about each other when they are imported
            warnings.simplefilter("ignore", DeprecationWarning)
            found = getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:  # its module is somebody else's code: it may raise, or end the process
        kind = "" if isinstance(error, SubjectError) else f"{type(error).__name__}: "
        raise SubjectError(f"subject {spec!r} cannot be loaded: {kind}{error}") from error
    if not isinstance(found, Subject):
        raise SubjectError(f"subject {spec!r} is a {type(found).__name__}, not a conformance.subjects.Subject")
    if found.name in _BUILT_IN and spec not in (found.name, _BUILT_IN[found.name]):
        raise SubjectError(f"subject {spec!r} is called {found.name!r}, as the suite's own is; give it another name")
    return found
