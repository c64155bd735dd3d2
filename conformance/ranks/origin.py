"""Whose an error is: the subject's, or the suite's own, whose check fell over and can decide nothing.

What tells is the traceback. An assertion that does not hold is what checks are made of, and never counts here. Of the
rest, on a rank an error is the suite's if a line of the suite itself raised it, with these exceptions:

- the subject stands between: it called back (a hook, a module), and may have handed over what nobody expects;
- the line reached for an attribute that an object of the subject's lacks, or called the subject by another signature;
- it says ``raise``: a rank may be meant to end so, and its peers are what the check is about;
- it is a RuntimeError or an OSError: tensors that do not fit, a peer that is gone. The subject can have caused these
  without being on the stack, as it can whatever torch raises below a line of a check, in backward or in a collective.

A name or import that does not exist is always the suite's. In the driver nothing of a subject's runs but what a check
calls, so there every error is the suite's unless the subject raised it.
"""

from __future__ import annotations

import dis
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..subjects import Subject, SubjectError

_HOME = Path(__file__).parents[1]
#: Of the suite's own folders these are on the stack of every error, or hold what is planted in a subject.
_BESIDE = tuple(str(_HOME / name) for name in ("ranks", "subjects", "defects"))
_NEVER_THE_SUBJECTS = (NameError, ImportError, SyntaxError)
_MAY_BE_CAUSED_FROM_AFAR = (RuntimeError, OSError)
_NO_ANSWER = ("Unsupported", "NotOffered", "NotRun", "NotRunnable")  # raised on purpose
_CALLED = re.compile(r"([\w.]+)\(\) (?:got|missing|takes)\b")  # how Python says that a signature does not fit


@dataclass(frozen=True)
class Sides:
    """Files and folders of the suite (its checks may be elsewhere) and of the subject, and the subject itself."""

    checks: tuple[str, ...] = ()
    subject: Subject | None = None
    spec: str = ""

    @staticmethod
    def of(function: Callable[..., Any], subject: Subject | None, spec: str) -> Sides:
        """The sides of a run, or of a check: ``function`` is what it runs."""
        file = getattr(sys.modules.get(getattr(function, "__module__", "")), "__file__", None)
        return Sides((str(Path(file).parent),) if file else (), subject, spec)

    @property
    def subjects_files(self) -> tuple[str, ...]:
        names = {_module_of(value) for value in self.subject.names.values()} if self.subject else set()
        return tuple(sorted({place for name in {*names, self.spec.partition(":")[0]} for place in _places(name)}))


def fell_over(error: BaseException, sides: Sides, on_rank: bool) -> bool:
    """Whether the suite raised this by itself."""
    if isinstance(error, (AssertionError, SubjectError)) or type(error).__name__ in _NO_ANSWER:
        return False
    if on_rank and _on_purpose(error):
        return False
    theirs = sides.subjects_files
    owners = [_owner(file, sides.checks, theirs) for file in _files_through(error)]
    last = next((owner for owner in reversed(owners) if owner), "")
    if isinstance(error, _NEVER_THE_SUBJECTS):
        return last == "suite"
    if last == "subject" or _is_about(error, sides.subject, theirs):
        return False
    if not on_rank:
        return True
    at_a_line_of_ours = bool(owners) and owners[-1] == "suite" and "subject" not in owners
    return at_a_line_of_ours and not isinstance(error, _MAY_BE_CAUSED_FROM_AFAR)


def _files_through(error: BaseException) -> list[str]:
    """The files that the error passed through, the innermost last."""
    return [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]


def _on_purpose(error: BaseException) -> bool:
    """Whether a statement ``raise`` raised it, and not an operation that failed."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_code.co_code[place.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _owner(file: str, checks: Iterable[str], theirs: Iterable[str]) -> str:
    """``"subject"``, ``"suite"``, or nothing for a library. A package may hold checks, and the other way round."""
    ours = max(_depth(file, checks), 0 if _in(file, _BESIDE) else _depth(file, [str(_HOME)]))
    depth = _depth(file, theirs)
    return "subject" if depth and depth >= ours else "suite" if ours else ""


def _in(file: str, places: Iterable[str]) -> bool:
    return _depth(file, places) > 0


def _depth(file: str, places: Iterable[str]) -> int:
    """The length of the longest of these places that the file is in; 0 for none."""
    return max((len(place) for place in places if file == place or file.startswith(f"{place}/")), default=0)


def _is_about(error: BaseException, subject: Subject | None, theirs: tuple[str, ...]) -> bool:
    """Whether a name that the subject lacks, or a signature of its, made a line of the suite fail."""
    if isinstance(error, AttributeError):
        found = getattr(error, "obj", None)
        owner = found if isinstance(found, (type, ModuleType)) else type(found)
        return any(_in(file, theirs) for file in _files(owner))
    called = _CALLED.match(str(error)) if isinstance(error, TypeError) else None
    if called is None or subject is None:
        return False
    first = called[1].partition(".")[0]
    provided = subject.names.values()
    modules = [each for each in provided if isinstance(each, ModuleType)]
    return any(getattr(each, "__name__", "") == first for each in provided) or any(hasattr(m, first) for m in modules)


def _files(thing: type | ModuleType) -> list[str]:
    module = thing if isinstance(thing, ModuleType) else sys.modules.get(thing.__module__)
    return [file] if (file := getattr(module, "__file__", None)) else []


def _module_of(value: Any) -> str:
    return value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", "") or "")


def _places(name: str) -> list[str]:
    """Where the code of a subject's module lies: its whole package; of torch the folder, for the rest is library."""
    own = sys.modules.get(name)
    if name.startswith("conformance.subjects.foreign."):
        return [str(getattr(own, "__file__", None))]
    if name.partition(".")[0] in ("", "builtins", "conformance"):
        return []
    if name.partition(".")[0] == "torch":
        file = getattr(own, "__file__", None)
        return [str(Path(file).parent)] if file and name != "torch" and not name.startswith("torch._C") else []
    top = getattr(sys.modules.get(name.partition(".")[0]), "__file__", None)
    if not top:
        return []
    return [str(Path(top).parent) if Path(top).name == "__init__.py" else top]
