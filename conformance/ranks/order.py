"""What the ranks of one run are to do: a plain value, pickled once by the driver and read by every rank."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import spawn
from typing import Any


@dataclass(frozen=True)
class Order:
    """One run as its ranks see it. ``payload`` stays pickled until a rank has taken over paths and environment."""

    number: int  # of the run; prefixes its keys in the store
    port: int  # of the store in which the ranks meet
    world: int
    backend: str
    payload: bytes  # (function, args, subject)
    init: bool  # whether the ranks set up a default process group
    trace: bool
    group_timeout_s: float
    environ: dict[str, str]
    sys_path: list[str] = field(default_factory=lambda: list(sys.path))
    cwd: str = field(default_factory=os.getcwd)
    host: str = "127.0.0.1"  # of the store
    prefix: str = ""  # of all our keys, in a store that is not ours alone
    first: int = 0  # rank of the pool's first member: a pool on one of several machines begins above 0
    device: int | None = None  # number of the member's accelerator, where that is not its rank
    placing: bool = True  # whether what the function creates is to lie on the rank's device
    poison: bool = False  # whether buffers in flight are poisoned: see poison.py
    one_machine: bool = True  # whether all ranks see the same files and reach each other by the loopback
    main: dict[str, Any] | None = None  # how to import the driver's main module, where the payload refers to it


def pack(function: Callable[..., Any], args: Sequence[Any], subject: Any) -> bytes:
    """Pickle what the ranks call; a ``TypeError`` says what to do when that cannot be."""
    try:
        return pickle.dumps((function, tuple(args), subject))
    except Exception as error:
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(
            f"{name} cannot be sent to the ranks: {error}. Usual cause: a lambda, a nested function or an argument "
            "that holds one. Use a function at module level, and plain data as arguments."
        ) from error


def main_module(payload: bytes) -> dict[str, Any] | None:
    """How ranks find the classes and functions of the driver's ``__main__``; None where nothing refers to it."""
    if b"__main__" not in payload:
        return None
    wanted = ("init_main_from_name", "init_main_from_path")
    about = spawn.get_preparation_data("rank")
    return {key: about[key] for key in wanted if key in about}


def import_main(main: dict[str, Any] | None) -> None:
    """In a rank: import the driver's main module under the names that pickle looks for."""
    if main:
        spawn.prepare(main)

