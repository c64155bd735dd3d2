"""How a defect is declared, planted and taken out again: ``edit`` a function's text, ``swap`` or ``override`` it."""

from __future__ import annotations
import __future__

import functools
import inspect
import sys
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import locating

_undo: list[tuple[Any, str, Any]] = []  # (owner, name, what was there), in the order of planting
_sources: dict[str, str] = {}  # of functions that are edited now, by their full names
_NOTHING = object()  # in its place: the attribute was not there


class PlantError(RuntimeError):
    """A defect that cannot be planted: what it replaces is not there, or not as it expects."""


def defect(*clauses: str, worlds: tuple[int, ...] = ()) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Declare a function that plants a defect: EACH of ``clauses`` must catch it, at the smallest of ``worlds``.

    Without ``worlds``: at two ranks, or as few as a check needs. The function's docstring says the mistake in a
    sentence. ``catalogue`` reads all this from the syntax tree, so the arguments must be literals.
    """
    del clauses, worlds
    return lambda plant: plant


def swap(owner: Any, name: str, wrong: Any) -> Any:
    """Replace an attribute that ``owner`` (a class or a module of impl) itself defines; returns the right one.

    What modules imported by name from each other is replaced in each of them. A function that needs the right one
    takes it from the returned value: ``right = swap(Team, "size", lambda self: right(self) + 1)``.
    """
    raw = _defined(owner, name)
    if isinstance(raw, staticmethod | classmethod | property) and not isinstance(wrong, type(raw)):
        wrong = type(raw)(wrong)
    for holder, held in _holders(owner, name, raw):
        _undo.append((holder, held, raw))
        setattr(holder, held, wrong)
    if isinstance(wrong, functools.cached_property):
        wrong.__set_name__(owner, name)
    if isinstance(raw, property):
        return raw.fget
    return raw.__func__ if isinstance(raw, staticmethod | classmethod) else raw


def edit(old: str, new: str, *, within: str = "") -> None:
    """Replace ``old`` in the source of the one function or method of impl that holds it, exactly once.

    So a function may move to another class or file and the defect still finds it. Where several functions hold the
    same text, ``within`` names the right one by the end of its dotted name, such as ``after_forward`` or
    ``Reducer.begin``. The source begins at the function's own ``def`` (or decorator) at column 0; pieces of several
    lines are written with the indentation that follows from that.
    """
    places = [place for place in locating.holding(old, _sources) if place.is_called(within)]
    if len(places) != 1:
        where = f" within {within}" if within else ""
        named = f" ({', '.join(sorted(place.called for place in places))})" if places else ""
        raise PlantError(
            f"{len(places)} functions of impl hold what the defect changes{where}, not one{named}: {old!r}; adapt the "
            "defect to the new text, or say within which function it is meant"
        )
    (place,) = places
    owner = place.owner()
    edit_in(owner, place.name, old, new)
    _sources[place.called] = _function(_defined(owner, place.name), place.called).planted_source


def edit_in(owner: Any, name: str, old: str, new: str) -> None:
    """Replace ``old``, which must occur exactly once, in the source of this function or method."""
    raw = _defined(owner, name)
    function = _function(raw, f"{_called(owner)}.{name}")
    source = getattr(function, "planted_source", None) or textwrap.dedent(inspect.getsource(function))
    found = source.count(old)
    if found != 1:
        raise PlantError(
            f"{_called(owner)}.{name} holds {found} times what the defect changes, not once: {old!r}; "
            "adapt the defect to the new text"
        )
    swap(owner, name, _compiled(source.replace(old, new), function, f"{_called(owner)}.{name}"))


def override(owner: Any, name: str, wrong: Any) -> Any:
    """Give a class of impl a method that it so far inherits; returns the inherited one."""
    if name in vars(owner):
        raise PlantError(f"{_called(owner)} defines {name!r} itself; use swap")
    right = getattr(owner, name, None)
    if right is None:
        raise PlantError(f"{_called(owner)} does not inherit {name!r} any more; adapt the defect")
    _undo.append((owner, name, _NOTHING))
    setattr(owner, name, wrong)
    return right


def undo() -> None:
    """Put everything back that was replaced since the last time."""
    _sources.clear()
    while _undo:
        owner, name, raw = _undo.pop()
        if raw is _NOTHING:
            delattr(owner, name)
        else:
            setattr(owner, name, raw)


def changes() -> frozenset[tuple[str, str, object]]:
    """What is replaced in this process, and by what: the same for two defects that are one."""
    return frozenset((_called(owner), name, _substance(vars(owner).get(name))) for owner, name, _ in _undo)


def _substance(wrong: Any) -> object:
    function = inspect.unwrap(getattr(wrong, "fget", getattr(wrong, "__func__", wrong)))
    return getattr(function, "planted_source", getattr(function, "__code__", repr(wrong)))


def changed() -> bool:
    """Whether anything is planted in this process."""
    return bool(_undo)


def _defined(owner: Any, name: str) -> Any:
    try:
        return vars(owner)[name]
    except KeyError:
        by = [base.__qualname__ for base in getattr(owner, "__mro__", ()) if name in vars(base)]
        hint = f"; {by[0]} defines it" if by else ""
        raise PlantError(f"{_called(owner)} does not define {name!r} any more{hint}; adapt the defect") from None


def _holders(owner: Any, name: str, raw: Any) -> list[tuple[Any, str]]:
    """Where the attribute must be replaced: for a module's, in every module of impl that holds the same object."""
    if not isinstance(owner, ModuleType):
        return [(owner, name)]
    rooms = [module for key, module in list(sys.modules.items()) if key.partition(".")[0] == "impl"]
    others = [(module, held) for module in rooms for held, value in list(vars(module).items()) if value is raw]
    return others if callable(raw) else [(owner, name)]


def _function(raw: Any, called: str) -> Any:
    if isinstance(raw, property):
        raw = raw.fget
    elif isinstance(raw, staticmethod | classmethod):
        raw = raw.__func__
    elif isinstance(raw, functools.cached_property):
        raw = raw.func
    function = inspect.unwrap(raw)
    if not inspect.isfunction(function):
        raise PlantError(f"{called} is a {type(raw).__name__}, whose source cannot be edited; use swap")
    return function


def _compiled(source: str, function: Any, called: str) -> Any:
    """The function that an edited source defines, in its own module's namespace, with ``super()`` working."""
    cell = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)).get("__class__")
    wrapped = f"def _made(__class__):\n{textwrap.indent(source, '    ')}\n    return {function.__name__}\n"
    made: dict[str, Any] = {}
    try:
        code = compile(wrapped, f"<{called}, edited>", "exec", __future__.annotations.compiler_flag, dont_inherit=True)
        exec(code, function.__globals__, made)
        edited = made["_made"](cell.cell_contents if cell is not None else None)
    except (SyntaxError, NameError) as error:
        raise PlantError(f"{called}: what the defect makes of it is no Python: {error}") from error
    _function(edited, called).planted_source = source  # for a further edit
    return edited


def _called(owner: Any) -> str:
    return str(getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner)))
