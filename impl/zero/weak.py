"""A part's reference to the object that it is a part of."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class Weak(Generic[T]):
    """An attribute that is held weakly, so that an object which holds the part goes with its own last reference."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, part: None, kind: type) -> Weak[T]: ...

    @overload
    def __get__(self, part: object, kind: type) -> T: ...

    def __get__(self, part: object | None, kind: type) -> T | Weak[T]:
        if part is None:
            return self
        held: weakref.ref[T] | None = vars(part).get(self._name)
        value = None if held is None else held()
        if value is None:
            raise AttributeError(f"{kind.__name__}.{self._name} is gone, or not there yet")
        return value

    def __set__(self, part: object, value: T) -> None:
        vars(part)[self._name] = weakref.ref(value)
